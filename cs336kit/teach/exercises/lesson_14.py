"""Exercises of lesson 14: training memory."""

import torch

from cs336kit import measure
from cs336kit.teach.exercises.core import exercise


@exercise(
    "14.1",
    cases=[(2, 4, 2, 2), (8, 64, 4, 1), (1, 5, 1, 0), (100, 32, 7, 2)],
    mistakes={
        "(*right[:3], 4 * B * D * L)": "you left out one input. The data count, and the head is a product, too.",
        "(*right[:3], 4 * B * (D * L + 1))": "the head keeps its input, as every layer does, and a row of it has D numbers.",
        "(*right[:3], right[3] + 4 * B)": "do not count the result: it is the input of a sum, which keeps nothing.",
        "(4 * L * D * D, 4 * L * D * D, 4 * states * L * D * D, right[3])": "you left out the weights of the head.",
        "tuple(part // 4 for part in right)": "you counted numbers, but a number in fp32 has 4 bytes.",
        "(*right[:2], 4 * states, right[3])": "the optimizer keeps `states` numbers for each parameter, not in all.",
    },
    hints=(
        "How many weights does the stack have, and how many the head? Three of the four answers follow from their sum.",
        "Which tensor does each product need for the gradient of its weights, and what does the sum need?",
    ),
    checked="one layer to seven, few and many rows, with no, one and two numbers of optimizer state.",
)
def buckets_of(B, D, L, states):
    P = L * D * D + D
    return 4 * P, 4 * P, 4 * states * P, 4 * B * D * (L + 1)


@exercise(
    "14.2",
    cases=[(1, 1, 8, 1, 3), (3, 6, 16, 4, 40), (1, 64, 32, 8, 88), (4, 1024, 768, 12, 2048)],
    mistakes={
        "right - 4 * (A - 1) * B * S**2": "each head has S × S weights of its own.",
        "right - 8 * B * S * F": "you have only two tensors of width F. A product of two activations keeps both of its factors.",
        "right - 4 * B * S * F": "three tensors of width F are not enough. Go from n2 to w.down, operation by operation.",
        "right + 8 * B * S * D": "that is two tensors of width D too many. What goes into q, k and v is one tensor, kept once.",
        "right + 4 * B * S * F": "five tensors of width F are one too many. Which of them is the same tensor twice?",
        "right // 4": "you counted numbers. In fp32 each takes 4 bytes.",
        "right - 16 * B * S": "you left out the two numbers that each norm keeps for each token.",
        "right + 4 * B * S * D": "that is one tensor of width D too many. n2 goes into two products, but is kept once.",
    },
    hints=(
        "Only the lines between n2 and the last residual sum differ. Write them down, one operation to a line.",
        "Five operations have width F or lead into it: two products with weights, silu, one product of activations, and the "
        "product with w.down. Write down what each keeps, and then cross out what appears twice.",
    ),
    checked="one token, small sizes, long sequences with narrow heads, and GPT-2's width at batch 4.",
)
def block_bytes(B, S, D, A, F):
    return 4 * (8 * B * S * D + 4 * B * S * F + A * B * S**2) + 16 * B * S


@exercise(
    "14.3",
    cases=[(2, 8, 6, 2, 8, 2), (1, 3, 2, 2, 4, 4), (1, 128, 8, 1, 16, 2), (2, 5, 6, 3, 10, 4)],
    mistakes={
        "right_if(K=A)": "your key and value are as wide as the query, but there are only K heads of them.",
        "right - 4 * B * A * S + p * A * B * S**2": "you still count S² weights, but the fused kernel computes them again.",
        "right - 4 * B * A * S": "you left out the logarithms, with which the kernel computes the weights again.",
        "right - (4 - p) * B * A * S": "the logarithms are in fp32. They take 4 bytes, whatever p is.",
        "right - p * B * S * h * A": "you left out the result, which the kernel needs for the gradient of the softmax.",
        "right - 4 * B * S * (A - K)": "the logarithms belong to the queries, so there is one for each of the A heads.",
    },
    hints=(
        "Which tensors does the kernel need to compute the scores again, and which did it return?",
        "How many heads does each tensor have: the queries, the keys, the values, the result, the logarithms?",
    ),
    checked="equal, grouped and single heads for keys and values, with 2 and 4 bytes for a number.",
)
def fused_bytes(B, S, A, K, h, p):
    return p * B * S * h * (2 * A + 2 * K) + 4 * B * A * S


def _kept(result) -> int:
    """Bytes of the storages that the result's graph keeps, each once; plain numbers are kept as they are."""
    nodes = measure.graph(result).nodes
    return sum({kept.storage: kept.bytes for node in nodes for kept in node.saved if kept.shape}.values())


def _observed(result, args):
    """The result, the gradient of x, and whether one byte for each number was enough."""
    x, *_ = args
    if not isinstance(result, torch.Tensor):
        return result
    if result.grad_fn is None:
        return {"result": result, "gradient": torch.zeros_like(x), "at most one byte for each number": True}
    little = _kept(result) <= x.numel()
    weights = torch.arange(1.0, x.numel() + 1).view_as(x)
    (gradient,) = torch.autograd.grad((result * weights).sum(), x)
    return {"result": result.detach(), "gradient": gradient, "at most one byte for each number": little}


def _noisy(seed: int, *shape: int):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator).requires_grad_()
    return x, torch.rand(*shape, generator=generator)


@exercise(
    "14.4",
    cases=lambda: {
        "12 numbers, p = 0.1": (*_noisy(0, 3, 4), 0.1),
        "200 numbers, p = 0.5": (*_noisy(1, 200), 0.5),
        "2 × 5 × 7 numbers, p = 0.25": (*_noisy(2, 2, 5, 7), 0.25),
        "noise that is exactly p, 0.5": (_noisy(3, 4)[0], torch.tensor([0.25, 0.5, 0.75, 0.5]), 0.5),
    },
    observe=_observed,
    tolerance=1e-6,
    mistakes={
        "x * (noise > p).float() / (1 - p)": "the result is right, but the graph keeps too much. A product keeps its other "
        "factor: which type does your mask have when it meets x?",
        "x * (noise > p)": "divide what survives by 1 − p, so that the mean stays the same.",
        "x.masked_fill(noise < p, 0) / (1 - p)": "where the noise is exactly p, the task asks for 0.",
        "x * (noise <= p) / (1 - p)": "you kept what should be dropped.",
        "x * (noise > p) / p": "divide by the share that survives, not by the share that is dropped.",
    },
    hints=(
        "Which type has one byte for each element, and which comparison gives it to you?",
        "Look for an operation that keeps only its condition, or make sure that the factor which a product keeps is still a "
        "tensor of booleans. Where can you divide by 1 − p so that nothing is kept for it?",
    ),
    checked="three shapes and shares: the result, the gradient of x, and the bytes that the graph keeps.",
    avoid=("backward", "data"),
)
def dropout(x, noise, p):
    return (x / (1 - p)).masked_fill(noise <= p, 0)


@exercise(
    "14.5",
    tolerance=0.03,
    mistakes={
        "('A', ...)": "by the rules of a CPU 81 GiB would be left, because autocast also copies weights and inputs there. On "
        "CUDA it keeps the softmax's weights in 6 bytes each, and that makes 128 GiB.",
        "('C', ...)": "momentum is one number for each parameter instead of two. That saves 4 bytes for each of 1.56 billion.",
        "('B', 23)": "the softmax's weights are not all of the activations. What is their share at 1,024 tokens?",
        "('B', 48)": "these are the activations alone. All four buckets have to fit.",
    },
    hints=(
        "119 − 96 is what the other three buckets take. Which plan changes those, and which changes the 96?",
        "Find the share that the softmax's weights have of a block that keeps sixteen rows, at this sequence length and width "
        "of a head. Then ask in how many bytes autocast keeps these weights on CUDA.",
    ),
    checked="plan B, about 72 GiB: at 1,024 tokens with heads of 64, the S² term is half of the activations.",
)
def one_change():
    return "B", 72.2
