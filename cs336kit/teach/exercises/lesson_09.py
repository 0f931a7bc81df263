"""Exercises of lesson 09: FLOPs of the backward pass."""

import torch

from cs336kit.teach.exercises.core import exercise


@exercise(
    "09.1",
    cases={
        f"B, D, K = {B}, {D}, {K}": (B, D, K) for B, D, K in ((1024, 256, 64), (1, 1, 1), (8, 3, 5), (4096, 768, 50257))
    },
    mistakes={
        "(right[0], 4 * B * D * (D + K))": "4BDD for the first layer: one of its products is the gradient of x, which is data.",
        "(right[0], 4 * B * D * D + 2 * B * D * K)": "the exception is at the wrong end: the first layer passes nothing on.",
        "(right[0] // 2, right[1] // 2)": "half of everything. A multiply and an add are two FLOPs.",
        "(right[0], right[0])": "only the weights' gradients. w1's gradient needs h1's first, one more 2BDK.",
        "(right[0], right[0] + right[1])": "the second number is forward and backward together; give backward alone.",
        "(right[0], 6 * B * D * (D + K))": "the second number is 6NP, a whole step. Give backward, without x's gradient.",
    },
    hints=(
        "Name the products of backward one by one. Which of the four does nobody ask for?",
        "w2.grad, h1.grad and w1.grad are computed, x.grad is not. Each costs as much as its layer's forward product.",
        "forward = 2BDD + 2BDK; backward = 2BDK (w2) + 2BDK (h1) + … (w1).",
    ),
    checked="four shapes, the lecture's among them.",
)
def two_layer_flops(B, D, K):
    return 2 * B * D * D + 2 * B * D * K, 2 * B * D * D + 4 * B * D * K


def _pair(B, D, K):
    draw = torch.Generator().manual_seed(B)
    return torch.randint(-3, 4, (B, D), generator=draw).double(), torch.randint(-3, 4, (B, K), generator=draw).double()


@exercise(
    "09.2",
    cases=lambda: {
        f"B, D, K = {B}, {D}, {K}": _pair(B, D, K) for B, D, K in ((3, 3, 3), (5, 3, 4), (1, 4, 3), (2, 6, 1))
    },
    mistakes={
        "(h @ g if len(h) == h.shape[1] else right[0], right[1])": "h @ g: the transpose is missing. The sum runs over b.",
        "(right[0].T.contiguous(), right[1])": "the gradient came out transposed. It has the shape of the weight, (D, K).",
        "(torch.outer(h[-1], g[-1]), right[1])": "only the last row of the batch is left: you assigned where you should add.",
        "(right[0], 2 * right[1])": "there are one multiply and one add in the innermost loop: 2BDK, not 4BDK.",
        "(right[0] / len(h), right[1])": "you averaged over the batch. g is given; every row contributes in full, so sum.",
        "(right[0].float(), right[1])": "the numbers are right and the dtype is not: make the zeros with dtype=h.dtype.",
    },
    hints=(
        "Which elements of h and g does gradient[d, k] need, and what is summed away?",
        "Three loops, over b, d and k; the innermost line adds one product to gradient[d, k].",
        "gradient[d, k] += h[b, d] * g[b, k], and flops += … in the same place.",
    ),
    checked="a square case and three others, gradient and count.",
)
def weight_gradient(h, g):
    return h.T @ g, 2 * h.numel() * g.shape[1]


def _total(batch, sizes, times):
    """The FLOPs of all layers' products, each `times(layer)` times; layers count from 1."""
    return sum(2 * batch * sizes[i - 1] * sizes[i] * times(i) for i in range(1, len(sizes)))


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
        "_total(batch, sizes, lambda i: 2) if trained else 0": "a frozen weight needs no gradient, and below "
        "the lowest trained layer nothing is computed at all.",
        "_total(batch, sizes, lambda i: i in trained)": "only the weights' gradients. They need the gradient "
        "that travels down to them, through frozen layers too.",
        "_total(batch, sizes, lambda i: 2 * (i in trained))": "frozen layers above pass the gradient on, the lowest "
        "trained one does not.",
        "right + _total(batch, sizes, lambda i: i == min(trained))": "nothing below the lowest trained layer needs a gradient.",
        "_total(batch, sizes, lambda i: (i in trained) + any(j > i for j in trained))": "you looked for trained "
        "layers above. What matters is whether anything below still needs the gradient.",
        "right + _total(batch, sizes, lambda i: 1)": "that includes forward. Give backward alone.",
    },
    hints=(
        "For each layer ask two questions: who needs the gradient of its weight, and who needs that of its input?",
        "The weight's: if the layer is trained. The input's: if some layer before it is trained.",
        "for layer i: total += product * ((i in trained) + any(… for j in trained))",
    ),
    checked="six choices of trained layers, none and all among them.",
)
def backward_flops(batch, sizes, trained):
    return _total(batch, sizes, lambda i: (i in trained) + any(j < i for j in trained))


@exercise(
    "09.4",
    cases={
        "768 → 768, rank 8": (2048, 768, 768, 8),
        "4096 → 11008, rank 16": (2048, 4096, 11008, 16),
        "5 → 7, rank 2": (10, 5, 7, 2),
    },
    mistakes={
        "right + 2 * tokens * d_in * d_out": "that includes the gradient of the frozen matrix: 2 products remain, not 3.",
        "right - 4 * tokens * d_in * d_out": "only A and B. The frozen matrix still runs forward and passes the gradient on.",
        "right - 2 * tokens * d_in * d_out": "the frozen matrix runs forward only, but layers below need its input's gradient.",
        "right - 2 * tokens * d_in * rank": "the gradient of x through A is missing. x feeds two paths, and both send back.",
        "4 * tokens * d_in * d_out + 6 * tokens * d_in * d_out * rank": "the low-rank path has r·(d_in + d_out) "
        "weights, not A·B.",
        "right - 2 * tokens * rank * (d_in + d_out)": "A and B are trained: the gradients of the two are a third product each.",
    },
    hints=(
        "How many products does the frozen matrix take part in? And each of the two small ones?",
        "Frozen: forward and the gradient of x. Small ones: forward, gradient of the input, gradient of the weight.",
        "2 · 2·N·d_in·d_out + 3 · 2·N·rank·(…)",
    ),
    checked="three layers and ranks, against a closed form that the counter confirms in the lesson.",
)
def lora_flops(tokens, d_in, d_out, rank):
    return 2 * (2 * tokens * d_in * d_out) + 3 * (2 * tokens * rank * (d_in + d_out))


@exercise(
    "09.5",
    cases={
        "two layers in one segment": (32, (8, 16, 4), 2),
        "two layers, each its own segment": (32, (8, 16, 4), 1),
        "four layers in segments of two": (10, (5, 6, 7, 8, 9), 2),
        "five layers in segments of two": (10, (5, 6, 7, 8, 9, 10), 2),
        "six layers in segments of three": (7, (4, 5, 6, 7, 8, 9, 10), 3),
        "three layers in one segment of up to ten": (3, (4, 5, 6, 7), 10),
    },
    mistakes={
        "_total(batch, sizes, lambda i: 1)": "a whole forward pass, the rule of 8NP. It stops before a segment's last product.",
        "right_if(segment=len(sizes))": "you left out the network's last product; every segment's is left out.",
        "_total(batch, sizes, lambda i: (i - 1) % segment > 0)": "the last product of a segment is left out, not the first.",
        "_total(batch, sizes, lambda i: 1) - right": "these are the segments' last products, which are not repeated.",
        "_total(batch, sizes, lambda i: i % segment > 0)": "the last, shorter segment's last product is not repeated either.",
        "2 * right": "twice too much: a product that is computed again costs one forward.",
    },
    hints=(
        "What does backward need from inside a segment: inputs of products, or outputs?",
        "A product keeps its input before it runs. Once the last product of a segment has its input, nothing is missing.",
        "Sum the products except number segment, 2·segment, … and except the very last.",
    ),
    checked="six cuts of networks with 2 to 6 layers, among them a short last segment and a segment longer than the network.",
)
def recomputed_flops(batch, sizes, segment):
    return _total(batch, sizes, lambda i: i % segment > 0 and i + 1 < len(sizes))


@exercise(
    "09.6",
    cases={
        "MFU 0.45, half of forward computed again": (0.45, 291_648_307_200, 144_955_146_240),
        "MFU 0.5, all of forward computed again": (0.5, 1000, 1000),
        "MFU 0.3, nothing computed again": (0.3, 1000, 0),
        "MFU 0.38, 7e15 and 5.1e15 FLOPs": (0.38, 7e15, 5.1e15),
    },
    mistakes={
        "mfu * 4 / 3": "4/3 is the rule for a whole forward pass again. Use the recomputed FLOPs that are given.",
        "mfu * mfu / right": "less than the MFU. The hardware executes more than the model needs, so HFU is the larger one.",
        "mfu * (forward + recomputed) / forward": "a step is forward and backward, three times forward.",
        "mfu * (2 * forward + recomputed) / (2 * forward)": "that is against backward alone. A step has forward too.",
        "mfu": "that is the MFU itself. HFU also counts what is computed again.",
        "mfu + recomputed / (3 * forward)": "you added a share of FLOPs to a utilization. Scale by executed ÷ needed.",
    },
    hints=(
        "The time and the peak are the same for both. What differs?",
        "HFU / MFU = FLOPs executed / FLOPs of the model.",
        "The model needs 3·forward; the hardware executes 3·forward + ….",
    ),
    checked="four steps, with nothing, a part and all of forward computed again.",
)
def hardware_utilization(mfu, forward, recomputed):
    return mfu * (3 * forward + recomputed) / (3 * forward)
