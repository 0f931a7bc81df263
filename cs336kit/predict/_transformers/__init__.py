"""The decoder as transformers writes it: the same matrix products as the course's, but other tensors saved for backward.

What an architecture does is in its configuration; how its module writes that down is a row of WRITINGS.
"""
