"""Exercises and figures of lesson 11."""
