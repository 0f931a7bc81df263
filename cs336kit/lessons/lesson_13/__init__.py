"""Exercises and figures of lesson 13."""
