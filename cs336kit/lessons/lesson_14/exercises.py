"""Exercises of lesson 14: training memory."""

import torch

from cs336kit import measure
from cs336kit.teach.exercises.core import exercise

#: What a net of one's own needs besides its products.
_ANOTHER = "at least one operation besides the products whose gradient needs a tensor"


def _own_run(result, args):
    """How the bytes that somebody predicted for a net of theirs differ from those that it keeps, and whether it is a net."""
    N, D, H = args
    net, said = result
    draw = torch.Generator().manual_seed(0)
    x, up, down = (torch.randn(shape, generator=draw).requires_grad_() for shape in ((N, D), (D, H), (H, D)))
    try:
        out = net(x, up, down)
        found = measure.saved_activation_bytes(lambda: net(x, up, down), without=[up, down])
    except Exception as error:
        return {"your net": f"raises {type(error).__name__}: {error}", "bytes": "", "both weights": "", _ANOTHER: ""}
    gradients = torch.autograd.grad(out.sum(), (up, down), allow_unused=True)
    known = {
        found.total // 4: "a quarter", found.total + 8 * D * H: "the weights, too",
        found.total + 4 * N * D: "N · D numbers more", found.total - 4 * N * D: "N · D numbers less",
        found.total + 4 * N * H: "N · H numbers more", found.total - 4 * N * H: "N · H numbers less",
        found.total: "as counted",
    }  # fmt: skip
    return {
        "your net": "runs",
        "bytes": known.get(said, f"{said} predicted, {found.total} counted"),
        "both weights": out.shape == x.shape and None not in gradients,
        _ANOTHER: bool({t.operation for t in found.tensors} - {"matmul", "linear", "einsum"}),
    }


def _little(N, D, H):
    return lambda x, up, down: (x @ up + 1) @ down, 4 * N * (D + H)


@exercise(
    "14.1",
    cases=[(3, 4, 5), (8, 16, 64), (1, 6, 2)],
    observe=_own_run,
    mistakes={
        "(right[0], right[1] // 4)": "you predicted numbers, but a number in fp32 has 4 bytes.",
        "(right[0], right[1] + 8 * D * H)": "you counted the weights, which exist anyway.",
        "(right[0], right[1] + 4 * N * D)": "you predicted N · D numbers too many. Does anything need the result, or is one "
        "tensor in your sum twice?",
        "(right[0], right[1] - 4 * N * D)": "you predicted N · D numbers too few. Did you leave out x, or what an operation "
        "on rows of D keeps?",
        "(right[0], right[1] + 4 * N * H)": "you predicted N · H numbers too many. A tensor that two operations keep counts "
        "once, and a sum keeps nothing.",
        "(right[0], right[1] - 4 * N * H)": "you predicted N · H numbers too few. Ask of each operation between the two "
        "products, and of the second product, what its gradient needs.",
        _little: "your bytes are right, but your net needs at least one operation besides the products whose gradient needs a "
        "tensor, such as a norm, a softmax or GELU. Adding and summing up need none.",
    },
    hints=(
        "Write one operation to a line, and beside it what its rule for the gradient needs: its input, its result, or nothing.",
        "Cross out what appears twice, and the weights. If you are still off, run kept_by_line on your function and compare it "
        "with your list.",
    ),
    checked="your net on 3, 8 and 1 rows: your bytes are those that torch keeps.",
    avoid=("saved_tensors_hooks", "saved_activation_bytes", "kept_by_line", "measure", "grad_fn"),
)
def mine(N, D, H):
    def net(x, up, down):
        return torch.sigmoid(x @ up) @ down

    return net, 4 * N * (D + H)


@exercise(
    "14.2",
    cases=[(3, 8, 6, 2, 8, 2), (1, 3, 2, 2, 4, 4), (1, 128, 8, 1, 16, 2), (2, 5, 6, 3, 10, 4)],
    mistakes={
        "right_if(K=A)": "your key and value are as wide as the query, but there are only K heads of them.",
        "right - 4 * B * A * S + p * A * B * S**2": "you still count S² weights, but fused attention computes them again.",
        "right - 4 * B * A * S": "you left out the logarithms, with which the weights are computed again.",
        "right - (4 - p) * B * A * S": "the logarithms are in fp32. They take 4 bytes, whatever p is.",
        "right - p * B * S * h * A": "you left out the result, which is needed for the gradient of the softmax.",
        "right - 4 * (B - 1) * A * S": "you counted the logarithms of one sequence, but there are B of them.",
        "right - p * B * S * h * (A - K)": "the result has a row for each query, so it has A heads.",
        "right - p * B * S * h * K": "you counted the K heads once, but both keys and values have them.",
        "right - 4 * B * S * (A - K)": "the logarithms belong to the queries, so there is one for each of the A heads.",
    },
    hints=(
        "Which tensors does it take to compute the scores again, and which is the result?",
        "How many heads does each tensor have: the queries, the keys, the values, the result, the logarithms?",
    ),
    checked="equal, grouped and single heads for keys and values, with 2 and 4 bytes for a number.",
)
def fused_bytes(B, S, A, K, h, p):
    return p * B * S * h * (2 * A + 2 * K) + 4 * B * A * S


@exercise(
    "14.3",
    cases={
        "one token": (1, 1, 8, 2, 1, 3),
        "a small block of lm.Llama": (4, 64, 64, 8, 2, 224),
        "as many heads of keys as of queries": (3, 6, 16, 4, 4, 40),
        "Llama 3 70B": (1, 8192, 8192, 64, 8, 28672),
    },
    mistakes={
        "right - 12 * B * S * D": "your norms keep their input in bf16, as layer_norm does. Which two tensors does rms_norm "
        "keep?",
        "right - 8 * B * S * D": "each norm keeps two tensors in fp32: the wide input, and what is multiplied by the scale.",
        "right - 8 * B * S": "you left out the number that each norm keeps for each token, in fp32.",
        "right_if(K=A)": "your key and value are as wide as the query, but there are only K heads of them.",
        "right - 4 * A * B * S + 2 * A * B * S**2": "you still count S² weights, but fused attention computes them again.",
        "right - 4 * A * B * S": "you left out the logarithms of fused attention.",
        "right - 2 * A * B * S": "the logarithms of fused attention are in fp32, whatever the model's type is.",
        "right - 2 * B * S * d_ff": "three tensors of width d_ff are not enough. Go from n2 to the last product, operation by "
        "operation.",
        "right - 4 * B * S * d_ff": "you have only two tensors of width d_ff. A product of two activations keeps both factors.",
        "right + 2 * B * S * d_ff": "five tensors of width d_ff are one too many. Which of them is the same tensor twice?",
        "right + 4 * B * S * D": "that is two tensors of width D too many. What goes into q, k and v is one tensor, kept once.",
        "right + 2 * B * S * D": "that is one tensor of width D too many. n2 goes into two products, and is kept once. What "
        "the last product returns is not kept at all.",
        "right - 2 * B * S * D": "one tensor of width D is missing. Apart from the norms, four of them are kept: which?",
        "right / (2 * B * S * D)": "these are the rows for a token. The task asks for bytes.",
        "2 * right - B * S * (16 * D + 8 + 4 * A)": "you took 4 bytes for every number, but only the norms are in fp32.",
    },
    hints=(
        "Write the block as in section 2, one operation to a line, with rms_norm in place of layer_norm. Which lines does bf16 "
        "leave in fp32?",
        "Three groups: each norm keeps 2 fp32 tensors and a number for each token; attention keeps n1, q, k, v, z and the "
        "logarithms, where k and v have K heads; behind it n2 and some tensors of width d_ff are left to find.",
    ),
    checked="one token, all heads alike, Llama 3 70B, and a small block whose bytes the kit predicts and torch counts.",
)
def block_bytes(B, S, D, A, K, d_ff):
    norms = 2 * (2 * 4 * D + 4)
    attention = 2 * (3 * D + 2 * K * (D // A)) + 4 * A
    mlp = 2 * (D + 4 * d_ff)
    return B * S * (norms + attention + mlp)


def _kept(result) -> int:
    """Bytes of the storages that the result's graph keeps, each once; plain numbers are kept as they are."""
    nodes = measure.graph(result).nodes
    kept = sum({kept.storage: kept.bytes for node in nodes for kept in node.saved if kept.shape}.values())
    # An operation of one's own may keep tensors as attributes, too.
    steps = [result.grad_fn]
    for step in steps:
        steps += [before for before, _ in step.next_functions if before is not None and before not in steps]
        own = [*getattr(step, "__dict__", {}).values()]
        kept += sum(value.untyped_storage().nbytes() for value in own if isinstance(value, torch.Tensor) and value.ndim)
    return kept


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
    avoid=("data",),
)
def dropout(x, noise, p):
    return (x / (1 - p)).masked_fill(noise <= p, 0)


@exercise(
    "14.5",
    tolerance=0.03,
    mistakes={
        "('A', ...)": "by the rules of a CPU 70 GiB would be left, because autocast also copies weights and inputs there. On "
        "CUDA it keeps the softmax's weights in 6 bytes each, and that makes 107 GiB.",
        "('C', ...)": "momentum is one number for each parameter instead of two. That saves 4 bytes for each of 1.56 billion.",
        "('B', 23)": "the softmax's weights are not all of the activations. What is their share at 1,024 tokens?",
        "('B', 39)": "these are the activations alone. All four buckets have to fit.",
    },
    hints=(
        "100 − 77 is what the other three buckets take. Which plan changes those, and which changes the 77?",
        "Find the share that the softmax's weights have of a block that keeps sixteen rows, at this sequence length and width "
        "of a head. Then ask in how many bytes autocast keeps these weights on CUDA.",
    ),
    checked="plan B, about 62 GiB: at 1,024 tokens with heads of 64, the S² term is half of the activations.",
)
def one_change():
    return "B", 62.4
