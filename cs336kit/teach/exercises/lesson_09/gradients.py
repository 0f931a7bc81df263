"""Gradients that several exercises of lesson 09 try."""

MIXED = [0.5, -1.0, 3.0, 0.0, -2.5]
