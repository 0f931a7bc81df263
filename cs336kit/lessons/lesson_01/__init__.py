"""Exercises and figures of lesson 01."""
