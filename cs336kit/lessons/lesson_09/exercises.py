"""Exercises of lesson 09: FLOPs of the backward pass."""

from itertools import pairwise

import torch

from cs336kit.teach.exercises.core import exercise
from cs336kit.teach.exercises.judging import whole


class Multiply:
    """a @ b, counted."""

    def __init__(self):
        self.calls = 0

    def __call__(self, a, b):
        self.calls += 1
        return a @ b


def _chain(seed, *sizes):
    """A batch and the weights of a chain of layers, in small whole numbers, so that every order of adding is exact."""
    draw = torch.Generator().manual_seed(seed)
    tokens, *widths = sizes
    x = torch.randint(-3, 4, (tokens, widths[0]), generator=draw).double()
    return x, [torch.randint(-3, 4, shape, generator=draw).double() for shape in pairwise(widths)], Multiply()


def _gradients_and_calls(found, args):
    return {"gradients": found, "number of calls of multiply": args[2].calls}


def _forward(x, weights, multiply):
    inputs = [x]
    for w in weights:
        inputs.append(multiply(inputs[-1], w))
    return inputs


def _data_gradient_too(x, weights, multiply):
    found = gradients(x, weights, multiply)
    multiply(torch.ones(len(x), weights[0].shape[1], dtype=x.dtype), weights[0].T)
    return found


def _forward_for_each(x, weights, multiply):
    found = gradients(x, weights, multiply)
    for layer in range(1, len(weights)):
        _forward(x, weights[:layer], multiply)
    return found


def _without_the_way_down(x, weights, multiply):
    inputs = _forward(x, weights, multiply)
    return [
        multiply(h.T, torch.ones(len(x), w.shape[1], dtype=x.dtype)) for h, w in zip(inputs[:-1], weights, strict=True)
    ]


@exercise(
    "09.1",
    cases=lambda: {
        "5 tokens through widths 3, 4, 2": _chain(1, 5, 3, 4, 2),
        "2 tokens through widths 4, 3, 5, 2": _chain(2, 2, 4, 3, 5, 2),
        "3 tokens through one layer": _chain(3, 3, 2, 4),
        "1 token through five layers": _chain(4, 1, 2, 3, 4, 3, 2, 6),
    },
    observe=_gradients_and_calls,
    mistakes={
        _data_gradient_too: "the gradients are right, but you took one product more than needed. Which gradient does nobody use?",
        _forward_for_each: "the gradients are right, but you run the chain again for each weight. Keep every layer's input "
        "from the first run.",
        "right_if(last=False)": "the gradients are right, but the last forward product is missing. The task asks for the whole "
        "forward pass.",
        "right": "the gradients are right, but the products did not go through multiply, so nobody counted them.",
        "gradients(x, weights, multiply)[::-1]": "the gradients are right, but their order is not: the backward pass finds the "
        "last one first.",
        "[g / (len(x) * weights[-1].shape[1]) for g in gradients(x, weights, multiply)]": "that is the gradient of the mean. "
        "The loss is the sum, whose gradient is 1 everywhere.",
        _without_the_way_down: "you gave every layer the last output's gradient, but its g comes down from the layer above.",
    },
    hints=(
        "What does a layer need for the gradient of its weights, and when did you last have that at hand?",
        "Forward, keep the input of every layer in a list. Then go from the last layer to the first with one g, and change "
        "g on the way down only where another layer waits below.",
    ),
    checked="chains of one to five layers, gradients and number of products.",
    avoid=("backward", "grad", "autograd", "requires_grad", "requires_grad_"),
)
def gradients(x, weights, multiply, *, last=True):
    inputs = _forward(x, weights if last else weights[:-1], multiply)[: len(weights)]
    g, found = torch.ones(len(x), weights[-1].shape[1], dtype=x.dtype), []
    for h, w in zip(reversed(inputs), reversed(weights), strict=True):
        found.insert(0, multiply(h.T, g))
        g = multiply(g, w.T) if h is not x else None
    return found


_LAYERS, _TOP = 32, 8
_STEP = 3 * _LAYERS


@exercise(
    "09.2",
    tolerance=0.01,  # 48 of 96 products are not 47
    mistakes={
        "('A', ...)": "A's gradient has to come down through all 32 layers, and forward runs through all 32 in any case. "
        "Count the products of both plans.",
        "('B', _TOP / _LAYERS)": "that is the share of the layers that is trained. Forward runs through the frozen ones, too.",
        "('B', (_LAYERS + _TOP) / _STEP)": "you left out the way down: most of the top layers must hand a gradient to the layer "
        "below.",
        "('B', (_LAYERS + _TOP + _LAYERS) / _STEP)": "you let the gradient travel down to the data. Nothing below the top "
        "layers is trained, so nobody needs it there.",
        "('B', (_LAYERS + 2 * _TOP) / _STEP)": "the lowest trained layer hands no gradient down, so it has one product less.",
        "('B', 2 / 3)": "that is plan A's share: everything but the weights' gradients of frozen matrices.",
    },
    hints=(
        "Count in products of one layer. A full step has three for each layer: which of them does each plan leave out?",
        "For plan B, walk down from the top and stop where nothing below is trained. How many layers hand a gradient on?",
    ),
    checked="plan B, at a little less than half of a full step; plan A saves about a third.",
)
def where_to_train():
    return "B", (_LAYERS + _TOP + _TOP - 1) / _STEP


def _total(tokens, sizes, times):
    """The FLOPs of all layers' products, each `times(layer)` times; layers count from 1."""
    return sum(2 * tokens * sizes[i - 1] * sizes[i] * times(i) for i in range(1, len(sizes)))


@exercise(
    "09.3",
    cases={
        "two layers, both trained": (32, (8, 16, 4), {1, 2}),
        "two layers, only the last trained": (32, (8, 16, 4), {2}),
        "two layers, only the first trained": (32, (8, 16, 4), {1}),
        "four layers, 2 and 4 trained": (10, (5, 6, 7, 8, 9), {2, 4}),
        "nothing trained": (10, (5, 6, 7, 8, 9), set()),
        "five equal layers, all trained": (3, (2, 2, 2, 2, 2, 2), {1, 2, 3, 4, 5}),
    },
    mistakes={
        "_total(tokens, sizes, lambda i: 2) if trained else 0": "a frozen weight needs no gradient, and below "
        "the lowest trained layer nothing is computed at all.",
        "_total(tokens, sizes, lambda i: i in trained)": "you counted only the weights' gradients. They need the gradient that "
        "travels down to them, through frozen layers, too.",
        "_total(tokens, sizes, lambda i: 2 * (i in trained))": "frozen layers above pass the gradient on, but the lowest trained "
        "one does not.",
        "right + _total(tokens, sizes, lambda i: i == min(trained))": "nothing below the lowest trained layer needs a gradient.",
        "_total(tokens, sizes, lambda i: (i in trained) + any(j > i for j in trained))": "you looked for trained "
        "layers above. What matters is whether anything below still needs the gradient.",
        "right + _total(tokens, sizes, lambda i: 1)": "that includes forward. Give backward alone.",
    },
    hints=(
        "For each layer ask two questions: who needs the gradient of its weight, and who needs that of its input?",
        "Go through the layers and add a product for each yes. The second question looks at all the layers before this one.",
    ),
    checked="six choices of trained layers, none and all among them.",
)
def backward_flops(tokens, sizes, trained):
    return _total(tokens, sizes, lambda i: (i in trained) + any(j < i for j in trained))


_MFU_A, _HFU_B = 0.36, 0.54


@exercise(
    "09.4",
    tolerance=0.02,
    mistakes={
        "('B', _HFU_B / _MFU_A)": "you compared an HFU with an MFU, but B executes some of its work twice.",
        "('A', _MFU_A / (_HFU_B * 3 / 6))": "B repeats one forward pass, two of eight FLOPs, not half of its work.",
        "('B', _HFU_B * 6 / 8)": "that is B's MFU. How many times A's is it?",
        "('A', ...)": "B does more useful work than A, even without what it repeats. Bring both to the same measure first.",
    },
    hints=(
        "The model needs the same FLOPs in both runs. Which of the two numbers is about these?",
        "Of the FLOPs that B executes per parameter and token, how many does the model need?",
    ),
    checked="run B, an eighth faster: the fuller batch pays for the repeated forward pass.",
)
def first_done():
    return "B", _HFU_B * 6 / 8 / _MFU_A


@exercise(
    "09.5",
    observe=lambda length, args: whole(length),
    cases={
        "a small one, all pairs": (1000, 2, 3, 5, False),
        "Llama-3-8B, all pairs": (7_504_658_432, 32, 32, 128, False),
        "Llama-3-8B, causal": (7_504_658_432, 32, 32, 128, True),
        "GPT-2, all pairs": (123_532_032, 12, 12, 64, False),
        "a small one, causal": (1000, 2, 3, 5, True),
    },
    mistakes={
        "2 * right": "attention has two products in a layer, queries with keys and weights with values.",
        "right / 2": "a multiply and an add are two FLOPs for a weight, too: 2 per parameter and token in the forward pass.",
        "right * heads": "that is where a single head's attention would take over, but all heads have attention.",
        "right * layers": "that is where a single layer's attention would take over, but all layers have attention.",
        "weights / (2 * layers * heads * head_dim)": "half of the pairs is half of the work: causal attention takes over later.",
        "weights / (4 * layers * heads * head_dim) if causal else right": "with half of the pairs the length must be "
        "greater, not smaller.",
        "3 * right": "you counted backward for the weights only. Count both sides forward, or both in training.",
        "right / 3": "you counted backward on one side only. It is twice the forward pass, for attention and weights alike.",
    },
    hints=(
        "Write down the FLOPs of one token for both. Which of them contains S?",
        "Per token, the products with weights are a constant and attention is a constant times S. Set them equal.",
    ),
    checked="two models and a made-up one, over all pairs and half of them.",
)
def takes_over(weights, layers, heads, head_dim, causal):
    return weights / (layers * heads * head_dim) * (1 if causal else 0.5)
