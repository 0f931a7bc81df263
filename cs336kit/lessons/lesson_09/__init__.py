"""Exercises and figures of lesson 09."""
