"""Exercises and figures of lesson 03."""
