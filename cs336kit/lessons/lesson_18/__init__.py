"""Exercises and figures of lesson 18."""
