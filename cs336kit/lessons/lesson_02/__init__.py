"""Exercises and figures of lesson 02."""
