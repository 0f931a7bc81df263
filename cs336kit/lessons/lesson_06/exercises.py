"""Exercises of lesson 06: counting FLOPs."""

import torch

from cs336kit._torch import TorchDispatchMode
from cs336kit.teach.exercises.core import exercise

aten = torch.ops.aten

# No two counts of the cases below are equal: whoever returns a constant, or guesses an inner axis, is seldom right.
_X, _BATCH = torch.ones(6, 10), torch.ones(2, 3, 5, 7)
_BIASED, _PLAIN = torch.nn.Linear(10, 4), torch.nn.Linear(12, 3, bias=False)
_SECOND = torch.nn.Linear(4, 9)
#: Operation → which of its arguments has the inner axis as its last one.
_MATRICES = {aten.mm.default: 0, aten.bmm.default: 0}
_VECTORS = {aten.mv.default: 0, aten.dot.default: 0}
_WITH_BIAS = {aten.addmm.default: 1}


@exercise(
    "06.1",
    cases={
        # With an argument by name, which a counter has to hand on.
        "a product without bias": (lambda: torch.arange(60, dtype=torch.float32).view(5, 12) @ _PLAIN.weight.T,),
        "a batch of heads": (lambda: _BATCH @ _BATCH.transpose(-2, -1),),
        "a layer with bias": (lambda: _BIASED(_X),),
        "a matrix times a vector": (lambda: _BATCH[0, 0] @ torch.ones(7),),
        "two vectors": (lambda: torch.ones(9) @ torch.ones(9),),
        "two layers with an activation": (lambda: _SECOND(torch.relu(_BIASED(_X))),),
    },
    mistakes={
        "right_if(place=_MATRICES | _VECTORS)": "you missed the product with a bias: it has another name.",
        "right_if(place=_MATRICES | _VECTORS | {aten.addmm.default: 0})": "with a bias, the first argument is not the left "
        "factor.",
        "right_if(place=_MATRICES | _WITH_BIAS)": "you missed a product with a vector: it has another name.",
        "right_if(total=lambda found: found[-1])": "you counted only the last product. Add them up.",
        "right // 2": "you counted the multiplications alone, but each of them is followed by an addition.",
        "right_if(bias=1)": "you counted the addition of the bias, too. It is element-wise, and is left out here.",
    },
    hints=(
        "Print the shapes of `args` for each of the five names. Which two of them are factors?",
        "The size of the result and the inner axis are enough for all of them. Only the place of the inner axis differs: with a "
        "bias, the factors move up by one place.",
    ),
    checked="layers with and without bias, a batch of heads, products with vectors, and two layers with an activation.",
    avoid=("FlopCounterMode", "measure"),
)
def count_products(function, *, place=_MATRICES | _VECTORS | _WITH_BIAS, total=sum, bias=0):
    found = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            if operation in place:
                added = bias if operation in _WITH_BIAS else 0
                found.append((2 * args[place[operation]].shape[-1] + added) * result.numel())
            return result

    with Products():
        function()
    return total(found)


@exercise(
    "06.2",
    cases={
        "8 tokens, a window of 3": (8, 10, 3),
        "a window as long as the sequence": (6, 4, 6),
        "a window longer than the sequence": (5, 4, 100),
        "each token sees itself alone": (7, 3, 1),
        "Mistral's window on 32,768 tokens": (32768, 4096, 4096),
    },
    mistakes={
        "4 * sequence**2 * width": "these are all pairs, but a token looks at no later one, and at none before its window.",
        "right - 4 * width * sequence": "you left out the token itself, at which it looks, too.",
        "right_if(window=sequence)": "you did not use the window: these are all pairs of a causal mask.",
        "4 * sequence * min(window, sequence) * width": "the first tokens have fewer than `window` tokens to look at.",
        "2 * min(window, sequence) * (2 * sequence - min(window, sequence)) * width": "the diagonal counts in full: "
        "each token looks at itself, too.",
        "right // 2": "half is missing: there are two products, and in each a pair takes a multiplication and an addition.",
        "right_if(window=window + 1)": "your window is one token too long. The token itself is one of those in it.",
    },
    hints=(
        "How many tokens does the first token look at? And the second, and the last?",
        "Count the pairs first: each token has the smaller of two numbers. Then ask what one pair costs in each product.",
    ),
    checked="windows shorter than the sequence, as long, longer, of one token, and one of a real model.",
)
def window_flops(sequence, width, window):
    pairs = sum(min(query + 1, window) for query in range(sequence))
    return 4 * pairs * width


@exercise(
    "06.3",
    mistakes={
        "('A', ..., ..., ...)": "attention's two products are 17.2 GFLOPs, which is more than the first report lacks.",
        "('B', ..., ..., ...)": "the three layers with a bias are 12.9 GFLOPs, which is more than the first report lacks.",
        "(..., {'A', 'B', 'D'}, ..., ...)": "the second report lacks more than all of attention. What halves every product?",
        "(..., ..., 'A', ...)": "without attention it would report 51.5 GFLOPs, what the linear layers take.",
        "(..., ..., 'D', ...)": "the third report lacks more than half of attention.",
        "('D', 'C', 'B', 60.129542144)": "the letters are right, but this course counts all pairs.",
        "('D', 'C', 'B', 51.539607552)": "the letters are right, but that is without attention.",
        "('D', 'C', 'B', 68719476736)": "the letters are right, but that is in FLOPs, and the task asks for GFLOPs.",
    },
    hints=(
        "Begin with two numbers, the FLOPs of the linear layers and those of attention at this length. What is their sum?",
        "For each letter, compute what such a counter would report, or what it would lack. Three of the four fit.",
    ),
    checked="68.7 GFLOPs in all; half of attention is 8.6 of them, three layers with a bias are 12.9, and without additions "
    "half of everything is left.",
    tolerance=0.03,
)
def reports():
    S, D = 2048, 1024
    return "D", "C", "B", (24 * S * D**2 + 4 * S**2 * D) / 1e9


@exercise(
    "06.4",
    mistakes={
        "('B', ...)": "at 1,024 tokens that would be the best one. How do the two kinds of products grow with the sequence?",
        "('C', ...)": "shared keys and values make two projections smaller. Every head of queries still has its own scores.",
        "('A', 100 * right[1])": "A is right, but that is a percentage: give the share as a fraction.",
        "('A', 0.5)": "the plan saves half of attention. What share of all products is attention at this length?",
        "('A', 1 / 14)": "that is the share at 1,024 tokens; this sequence is sixteen times as long.",
        "('A', 8 / 11)": "that is attention's whole share. The plan saves a part of it.",
    },
    hints=(
        "Begin with the two numbers that make up the block, the FLOPs of its linear layers and of attention at this length.",
        "For each plan, ask which of the products become smaller and by how much; then divide by the sum of all products.",
    ),
    checked="at 16,384 tokens attention is 73 % of the products, and plan A saves half of it; B saves 9 % and C 3 %.",
    tolerance=0.03,
)
def what_to_cut():
    S, D = 16384, 1024
    linear, attention = 24 * S * D**2, 4 * S**2 * D
    return "A", attention / 2 / (linear + attention)
