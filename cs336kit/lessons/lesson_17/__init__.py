"""Exercises and figures of lesson 17."""
