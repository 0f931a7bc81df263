"""Exercises and figures of lesson 08."""
