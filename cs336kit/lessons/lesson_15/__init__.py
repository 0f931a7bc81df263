"""Exercises and figures of lesson 15."""
