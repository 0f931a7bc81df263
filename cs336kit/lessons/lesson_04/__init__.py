"""Exercises and figures of lesson 04."""
