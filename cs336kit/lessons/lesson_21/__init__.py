"""Exercises and figures of lesson 21."""
