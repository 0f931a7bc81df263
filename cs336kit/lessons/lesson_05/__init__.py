"""Exercises and figures of lesson 05."""
