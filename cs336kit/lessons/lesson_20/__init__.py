"""Exercises and figures of lesson 20."""
