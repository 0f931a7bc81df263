"""Exercises and figures of lesson 16."""
