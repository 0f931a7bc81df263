"""Tensors that the exercises of lesson 04 try."""

import torch


def numbers(*shape):
    """0, 7, 14, 21, 5, … in float64, every number from 0 to 22 in turn."""
    # Whole numbers: sums of them are exact in any order, so an answer is right to the last bit or wrong.
    size = 1
    for length in shape:
        size *= length
    return (torch.arange(size, dtype=torch.float64) * 7 % 23).reshape(shape)
