"""Exercises and figures of lesson 10."""
