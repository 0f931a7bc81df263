"""Exercises of lesson 10: how large weights are at initialization, and what follows."""

import math
from itertools import pairwise

import torch

from cs336kit.teach.exercises.core import exercise


@exercise(
    "10.1",
    cases={
        "a (100, 400) weight before nothing": ((100, 400), "linear"),
        "a (300, 100) weight before ReLU": ((300, 100), "relu"),
        "a (64, 3, 5, 5) convolution before ReLU": ((64, 3, 5, 5), "relu"),
        "a (7, 7) weight before ReLU": ((7, 7), "relu"),
    },
    mistakes={
        "right * math.sqrt(shape[1] / shape[0])": "you used fan-out, the first dimension of torch's layout (fan-out, fan-in).",
        "right**2": "that is the variance. The standard deviation is its square root.",
        "right_if(activation='linear')": "ReLU halves the mean square: the variance before it has to make up for that.",
        "right_if(activation='relu')": "nothing halves the mean square where nothing follows: no 2 there.",
        "right / 2 if activation == 'relu' else right": "ReLU halves the mean square already. Do not halve it once more.",
        "right * (math.sqrt(2) if activation == 'relu' else 1)": "a gain of 2 belongs to the variance; for a standard "
        "deviation it is √2.",
        "right_if(shape=shape[:2])": "a convolution's output also sums over its window.",
    },
    hints=(
        "How many terms does one output add up, and where is that number in the shape?",
        "By what factor does one layer multiply the mean square? Set it to 1, and solve for the standard deviation.",
    ),
    checked="wide, tall and square matrices and a convolution, with and without ReLU.",
    tolerance=1e-6,  # of whoever computes it by torch, in fp32
)
def keeps(shape, activation):
    return math.sqrt((2 if activation == "relu" else 1) / math.prod(shape[1:]))


def _chain(widths, seed):
    generator = torch.Generator().manual_seed(seed)
    matrices = [torch.randn(a, b, generator=generator) / math.sqrt(a) for a, b in pairwise(widths)]
    return torch.randn(6, widths[0], generator=generator), matrices, torch.randn(6, widths[-1], generator=generator)


def _back(g, w, h, y):
    """The gradient at the input h of a layer with weights w, from the one at its output y, behind the ReLU."""
    return torch.where(y > 0, g, 0) @ w.T


@exercise(
    "10.2",
    cases=lambda: {
        "one layer, 5 to 7": _chain((5, 7), 1),
        "three layers of width 8": _chain((8, 8, 8, 8), 2),
        "four layers, 4 to 16 to 8 to 3 to 5": _chain((4, 16, 8, 3, 5), 3),
    },
    mistakes={
        "right_if(back=lambda g, w, h, y: g @ w.T)": "the gradient must not pass where a ReLU's output is zero.",
        "right_if(back=lambda g, w, h, y: torch.where(h > 0, g @ w.T, 0))": "you masked each gradient by the layer's input, "
        "but the ReLU comes after the product, so its output shows where the gradient passes.",
        "(right[0], right[1][::-1])": "your second list is the wrong way round: the first layer's gradient comes first.",
        "tuple([math.sqrt(value) for value in values] for values in right)": "those are roots. The task asks for the mean "
        "square.",
        "([x.square().mean().item()] + right[0][:-1], right[1])": "your first list begins with x, not after the first layer.",
        "(right[0], right[1][1:] + [g.square().mean().item()])": "your gradients are at the layers' outputs, not at their "
        "inputs.",
    },
    hints=(
        "On the way down you need what came out of every ReLU on the way up. Keep it.",
        "Lesson 09 says which product brings a gradient from a layer's output to its input. What does the ReLU do to it first?",
    ),
    checked="one, three and four layers, square and not; values up and down.",
    tolerance=1e-4,
    avoid=("backward", "autograd"),
)
def both_signals(x, matrices, g, *, back=_back):
    signals = [x]
    for w in matrices:
        signals.append((signals[-1] @ w).relu())
    down = []
    for w, (h, y) in zip(reversed(matrices), reversed([*pairwise(signals)]), strict=True):
        g = back(g, w, h, y)
        down.append(g.square().mean().item())
    return [y.square().mean().item() for y in signals[1:]], down[::-1]


@exercise(
    "10.3",
    mistakes={
        "(4**50, ..., ...)": "every second layer narrows instead of widening, and its factor is the inverse.",
        "(4**25, ..., ...)": "25 layers multiply by 4. What do the other 25 do?",
        "(0.25**25, ..., ...)": "the 2 makes up for the ReLU on the way down, too; and if 25 layers shrink the gradient, what do "
        "the others do?",
        "(1, 1, 'A')": "your own numbers say that A keeps the gradient, too, so there is no reason to avoid A.",
        "(1, 1, 'B')": "your own numbers say that B keeps the activations, too, so there is no reason to avoid B.",
    },
    hints=(
        "Write down the factor of the gradient for one layer 256 → 1,024, and for one 1,024 → 256.",
        "Multiply the factors of two neighboring layers. What is left for the 50?",
    ),
    checked="neither: the factors 4 and ¼ of neighboring layers cancel, and only the first and the last width remain.",
    tolerance=1e-6,
)
def fan_in_or_fan_out():
    return (1, 1, "neither")


_WRITERS = ("attention out", "mlp down")


def _tensors(d, d_ff, inner, vocab=1000):
    return {
        "mlp down": (d, d_ff),
        "mlp up": (d_ff, d),
        "attention out": (d, inner),
        "query": (inner, d),
        "embedding": (vocab, d),
    }


@exercise(
    "10.4",
    cases={
        "12 layers of width 768": (_tensors(768, 3072, 768), 12),
        "2 layers of width 64": (_tensors(64, 256, 64), 2),
        "96 layers of width 12288": (_tensors(12288, 49152, 12288), 96),
        "3 layers of width 64, d_ff 172, query width 32": (dict(reversed(_tensors(64, 172, 32).items())), 3),
    },
    mistakes={
        "right_if(writers=1)": "each block ends two branches, not one.",
        "right_if(writers=4 * layers)": "you left out a square root: it is the mean square that adds up.",
        "right | {'mlp up': right['mlp up'] * math.sqrt(2)}": "here `mlp up` gets 1/√fan-in, too, without the 2.",
        "right_if(writers=0)": "you left out GPT-2's factor, which the two matrices that end a branch need.",
        "dict.fromkeys(shapes, 0.02)": "0.02 is for the embedding only. A matrix has 1/√fan-in.",
        "right_if(shapes={name: shape[::-1] for name, shape in shapes.items()})": "you used fan-out. An output sums over fan-in.",
        "right | {'embedding': 1 / math.sqrt(shapes['embedding'][1])}": "an embedding is looked up, not multiplied: 0.02.",
    },
    hints=(
        "How many branches does the whole model have?",
        "Which of the two numbers of a shape is the number of terms in the sum of one output?",
    ),
    checked="2, 3, 12 and 96 layers; all five tensors of each, in two orders.",
)
def decoder_stds(shapes, layers, *, writers=2):
    stds = {name: 1 / math.sqrt(fan_in) for name, (_, fan_in) in shapes.items()}
    scaled = {name: stds[name] / math.sqrt(writers * layers) for name in _WRITERS if writers}
    return {**stds, **scaled, "embedding": 0.02}


@exercise(
    "10.5",
    mistakes={
        "(0.004, ..., ...)": "that is the usual way, but its steps would be too large for the hidden matrices.",
        "(0.004 / 4, ..., ...)": "√16 is for sums of random signs. The terms of an update do not cancel: they grow with the "
        "width.",
        "(0.004 / 4096, ..., ...)": "what counts is how many times as wide the large model is, not its width.",
        "(0.004 / 16, 0.004 / 16, ...)": "an embedding is looked up, so there is no sum over the width.",
        "(0.004 / 16, 0.004, 4)": "the terms of the sum all have the same sign, so they add up without a root.",
    },
    hints=(
        "How many terms does the change of one hidden output have in the small model, and how many in the large one?",
        "Which of the two matrices is multiplied, and which is only looked up?",
    ),
    checked="hidden matrices learn a sixteenth as fast and the embedding as before; else an output changes 16 times as much.",
    tolerance=1e-3,
)
def rate_of_the_large_model():
    return (0.004 / 16, 0.004, 16)
