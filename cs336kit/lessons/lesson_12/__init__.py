"""Exercises and figures of lesson 12."""
