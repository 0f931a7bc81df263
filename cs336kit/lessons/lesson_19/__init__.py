"""Exercises and figures of lesson 19."""
