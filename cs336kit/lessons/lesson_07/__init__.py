"""Exercises and figures of lesson 07."""
