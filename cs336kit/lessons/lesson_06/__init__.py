"""Exercises and figures of lesson 06."""
