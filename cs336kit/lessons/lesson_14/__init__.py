"""Exercises and figures of lesson 14."""
