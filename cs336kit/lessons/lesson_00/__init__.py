"""Exercises and figures of lesson 00."""
