"""The decoder as transformers writes it: the same products as the course's, and other tensors kept for the backward pass.

What an architecture does stands in its configuration; how its module writes that down is a row of WRITINGS.
"""
