"""Exercises of lesson 07: the FLOPs of gradients."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 07.1: the two-layer model ----------------------------------------------------------------------------------------


def two_layer_flops(B, D, K):
    return 2 * B * D * D + 2 * B * D * K, 2 * B * D * D + 4 * B * D * K


_TWO_LAYERS = Exercise(
    id="07.1",
    reference=two_layer_flops,
    cases=lambda: [
        Case((1024, 256, 64), label="B, D, K = 1024, 256, 64"),
        Case((1, 1, 1), label="B, D, K = 1, 1, 1"),
        Case((8, 3, 5), label="B, D, K = 8, 3, 5"),
        Case((4096, 768, 50257), label="B, D, K = 4096, 768, 50257"),
    ],
    mistakes=(
        Mistake(
            lambda B, D, K: (2 * B * D * (D + K), 4 * B * D * (D + K)),
            "For {case} you returned {given}: 4BDD for the first layer. Its 4 is two products, and one of them is the "
            "gradient of x, which is data: 2BDD.",
        ),
        Mistake(
            lambda B, D, K: (2 * B * D * (D + K), 4 * B * D * D + 2 * B * D * K),
            "For {case} you returned {given}: the exception is at the wrong end. The last layer passes its gradient on "
            "(4BDK); the first has nobody to pass it to.",
        ),
        Mistake(
            lambda B, D, K: (B * D * (D + K), B * D * D + 2 * B * D * K),
            "For {case} you returned {given}: half of everything. A multiply and an add are two FLOPs.",
        ),
        Mistake(
            lambda B, D, K: (2 * B * D * (D + K), 2 * B * D * (D + K)),
            "For {case} you returned {given}: only the weights' gradients. w1's gradient needs h1's first, one more 2BDK.",
        ),
        Mistake(
            lambda B, D, K: (2 * B * D * (D + K), 4 * B * D * D + 6 * B * D * K),
            "For {case} you returned {given}: the second number is forward and backward together; give backward alone.",
        ),
        Mistake(
            lambda B, D, K: (2 * B * D * (D + K), 6 * B * D * (D + K)),
            "For {case} you returned {given}: the second number is 6NP, the rule for a whole step. Give backward alone, "
            "without the gradient of x.",
        ),
        Mistake(
            lambda B, D, K: (2 * B * D * (D + K), 4 * B * D * K),
            "For {case} you returned {given}: backward stops at layer 2 there. w1 is trained too: one more product, 2BDD.",
        ),
        Mistake(
            lambda B, D, K: two_layer_flops(B, D, K)[::-1],
            "For {case} you returned {given}: these are the two numbers in the other order; forward comes first.",
        ),
        Mistake(
            lambda B, D, K: two_layer_flops(1, D, K),
            "For {case} you returned {given}: that is the count for one row. A batch has B of them.",
        ),
    ),
    hints=(
        "Name the products of backward one by one. Which of the four does nobody ask for?",
        "w2.grad, h1.grad and w1.grad are computed, x.grad is not. Each costs as much as its layer's forward product.",
        "forward = 2BDD + 2BDK; backward = 2BDK (w2) + 2BDK (h1) + … (w1).",
    ),
    checked="four shapes, the lecture's among them.",
)

# --- 07.2: the weight gradient with loops -----------------------------------------------------------------------------


def weight_gradient(h, g):
    gradient, flops = torch.zeros(h.shape[1], g.shape[1], dtype=h.dtype), 0
    for b in range(h.shape[0]):
        for d in range(h.shape[1]):
            for k in range(g.shape[1]):
                gradient[d, k] += h[b, d] * g[b, k]
                flops += 2
    return gradient, flops


def _product(h, g):
    return h.T @ g


def _weight_cases():
    def pair(B, D, K, seed):
        generator = torch.Generator().manual_seed(seed)
        make = lambda *shape: torch.randint(-3, 4, shape, generator=generator).double()  # noqa: E731
        return make(B, D), make(B, K)

    shapes = {(3, 3, 3): 0, (5, 3, 4): 1, (1, 4, 3): 2, (2, 6, 1): 3}
    return [Case(pair(*s, seed), label=f"B, D, K = {s[0]}, {s[1]}, {s[2]}") for s, seed in shapes.items()]


_WEIGHTS = Exercise(
    id="07.2",
    reference=weight_gradient,
    cases=_weight_cases,
    mistakes=(
        Mistake(
            lambda h, g: (h @ g if h.shape[0] == h.shape[1] else _product(h, g), 2 * h.numel() * g.shape[1]),
            "For {case} the gradient is h @ g: the transpose is missing. The sum runs over b, the first index of both.",
        ),
        Mistake(
            lambda h, g: (_product(h, g).T.contiguous(), 2 * h.numel() * g.shape[1]),
            "For {case} the gradient came out transposed. It has the shape of the weight, (D, K), and the index [d, k].",
        ),
        Mistake(
            lambda h, g: (torch.outer(h[-1], g[-1]), 2 * h.numel() * g.shape[1]),
            "For {case} only the last row of the batch is left: you assigned where you should add. Every row uses the same "
            "weight, a fan-out.",
        ),
        Mistake(
            lambda h, g: (_product(h, g), 4 * h.numel() * g.shape[1]),
            "For {case} you counted 4BDK operations. In the innermost loop there are one multiply and one add: 2BDK. The "
            "other 2BDK belong to the gradient of h.",
        ),
        Mistake(
            lambda h, g: (_product(h, g), h.numel() * g.shape[1]),
            "For {case} you counted BDK operations: the multiply without the add.",
        ),
        Mistake(
            lambda h, g: (_product(h, g), (2 * h.shape[0] - 1) * h.shape[1] * g.shape[1]),
            "For {case} you counted (2B − 1)DK operations. The sum starts at 0, so every round of the loop adds, the first "
            "one too: 2BDK.",
        ),
        Mistake(
            lambda h, g: (_product(h, g) / len(h), 2 * h.numel() * g.shape[1]),
            "For {case} you averaged over the batch. g is given; every row contributes in full, so sum.",
        ),
        Mistake(
            lambda h, g: (_product(h, g).float(), 2 * h.numel() * g.shape[1]),
            "For {case} the numbers are right and the dtype is not: make the zeros with dtype=h.dtype.",
        ),
    ),
    hints=(
        "Which elements of h and g does gradient[d, k] need, and what is summed away?",
        "Three loops, over b, d and k; the innermost line adds one product to gradient[d, k].",
        "gradient[d, k] += h[b, d] * g[b, k], and flops += … in the same place.",
    ),
    checked="a square case and three others, gradient and count.",
)

# --- 07.3: which gradients are needed ---------------------------------------------------------------------------------


def backward_flops(batch, sizes, trained):
    total = 0
    for i, (inner, columns) in enumerate(zip(sizes, sizes[1:], strict=False), start=1):
        product = 2 * batch * inner * columns
        if i in trained:
            total += product
        if any(j < i for j in trained):
            total += product
    return total


def _products(batch, sizes):
    return {i: 2 * batch * m * n for i, (m, n) in enumerate(zip(sizes, sizes[1:], strict=False), start=1)}


_FROZEN = Exercise(
    id="07.3",
    reference=backward_flops,
    cases=lambda: [
        Case((32, (8, 16, 4), {1, 2}), label="two layers, both trained"),
        Case((32, (8, 16, 4), {2}), label="two layers, only the last trained"),
        Case((32, (8, 16, 4), {1}), label="two layers, only the first trained"),
        Case((10, (5, 6, 7, 8, 9), {2, 4}), label="four layers, 2 and 4 trained"),
        Case((10, (5, 6, 7, 8, 9), set()), label="nothing trained"),
        Case((3, (2, 2, 2, 2, 2, 2), {1, 2, 3, 4, 5}), label="five equal layers, all trained"),
    ],
    mistakes=(
        Mistake(
            lambda b, s, t: sum(2 * f for f in _products(b, s).values()) if t else 0,
            "For {case} you returned {given}: two products for every layer. A frozen weight needs no gradient, and below "
            "the first trained layer nothing is computed at all.",
        ),
        Mistake(
            lambda b, s, t: sum(f for i, f in _products(b, s).items() if i in t),
            "For {case} you returned {given}: only the weights' gradients. The gradient has to travel down to a trained "
            "layer, through frozen ones too.",
        ),
        Mistake(
            lambda b, s, t: sum(f * 2 for i, f in _products(b, s).items() if i in t),
            "For {case} you returned {given}: two products per trained layer, none per frozen one. A frozen layer above a "
            "trained one passes the gradient on; the lowest trained one passes it to nobody.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) + any(j <= i for j in t)) for i, f in _products(b, s).items()),
            "For {case} you returned {given}: the lowest trained layer counts 4 there. Nothing below it learns, so the "
            "gradient of its input is not computed.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) + any(j > i for j in t)) for i, f in _products(b, s).items()),
            "For {case} you returned {given}: you looked for trained layers above. The gradient comes from the loss; what "
            "matters is whether anything below still needs it.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) + (i > 1)) for i, f in _products(b, s).items()) if t else 0,
            "For {case} you returned {given}: you stop at the first layer only. The gradient stops at the lowest trained "
            "layer.",
        ),
        Mistake(
            lambda b, s, t: sum(f * ((i in t) or any(j < i for j in t)) for i, f in _products(b, s).items()),
            "For {case} you returned {given}: one product per layer, where a trained layer above another needs two, for its "
            "weight and for its input.",
        ),
        Mistake(
            lambda b, s, t: backward_flops(b, s, {i + 1 for i in t}),
            "For {case} you returned {given}: you counted the layers from 0. The lowest has the number 1.",
        ),
        Mistake(
            lambda b, s, t: backward_flops(b, s, t) + sum(_products(b, s).values()),
            "For {case} you returned {given}: that includes forward. Give backward alone.",
        ),
    ),
    hints=(
        "For each layer ask two questions: who needs the gradient of its weight, and who needs that of its input?",
        "The weight's: if the layer is trained. The input's: if some layer before it is trained.",
        "for layer i: total += product * ((i in trained) + any(… for j in trained))",
    ),
    checked="six choices of trained layers, none and all among them.",
)

# --- 07.4: LoRA -------------------------------------------------------------------------------------------------------


def lora_flops(tokens, d_in, d_out, rank):
    base, pair = 2 * tokens * d_in * d_out, 2 * tokens * rank * (d_in + d_out)
    return 2 * base + 3 * pair


def _base(n, i, o):
    return 2 * n * i * o


def _pair(n, i, o, r):
    return 2 * n * r * (i + o)


_LORA = Exercise(
    id="07.4",
    reference=lora_flops,
    cases=lambda: [
        Case((2048, 768, 768, 8), label="768 → 768, rank 8"),
        Case((2048, 4096, 11008, 16), label="4096 → 11008, rank 16"),
        Case((10, 5, 7, 2), label="5 → 7, rank 2"),
    ],
    mistakes=(
        Mistake(
            lambda n, i, o, r: 3 * _base(n, i, o) + 3 * _pair(n, i, o, r),
            "For {case} you returned {given}: that includes the gradient of the frozen matrix. Forward and the input's "
            "gradient remain: 2 products, not 3.",
        ),
        Mistake(
            lambda n, i, o, r: 3 * _pair(n, i, o, r),
            "For {case} you returned {given}: only A and B. The frozen matrix still runs forward and passes the gradient on.",
        ),
        Mistake(
            lambda n, i, o, r: _base(n, i, o) + 3 * _pair(n, i, o, r),
            "For {case} you returned {given}: the frozen matrix runs forward only there. Layers below learn too, so the "
            "gradient of its input is needed.",
        ),
        Mistake(
            lambda n, i, o, r: 2 * _base(n, i, o) + 3 * _pair(n, i, o, r) - 2 * n * i * r,
            "For {case} you returned {given}: the gradient of x through A is missing. x feeds two paths, and both send "
            "something back.",
        ),
        Mistake(
            lambda n, i, o, r: 2 * _base(n, i, o) + 3 * 2 * n * i * o * r,
            "For {case} you returned {given}: the low-rank path multiplies by A and then by B, r·(d_in + d_out) weights; "
            "it never builds A·B.",
        ),
        Mistake(
            lambda n, i, o, r: 2 * _base(n, i, o) + _pair(n, i, o, r),
            "For {case} you returned {given}: A and B are trained, so each costs three products, not one.",
        ),
        Mistake(
            lambda n, i, o, r: _base(n, i, o) + 2 * _pair(n, i, o, r),
            "For {case} you returned {given}: backward alone. Forward and backward together are asked for.",
        ),
        Mistake(
            lambda n, i, o, r: 3 * _base(n, i, o),
            "For {case} you returned {given}: 6NP, a full step without adapters. W's own gradient is not computed, and A and "
            "B cost something.",
        ),
        Mistake(
            lambda n, i, o, r: 2 * _base(n, i, o) + 2 * _pair(n, i, o, r),
            "For {case} you returned {given}: A and B count two products each. They are trained, so their own gradients are a "
            "third.",
        ),
    ),
    hints=(
        "How many products does the frozen matrix take part in? And each of the two small ones?",
        "Frozen: forward and the gradient of x. Small ones: forward, gradient of the input, gradient of the weight.",
        "2 · 2·N·d_in·d_out + 3 · 2·N·rank·(…)",
    ),
    checked="three layers and ranks, against a closed form that the counter confirms in the lesson.",
)

# --- 07.5: recomputation with an early stop ---------------------------------------------------------------------------


def recomputed_flops(batch, sizes, segment):
    products = [2 * batch * m * n for m, n in zip(sizes, sizes[1:], strict=False)]
    return sum(f for i, f in enumerate(products) if (i + 1) % segment and i + 1 < len(products))


def _list(batch, sizes):
    return list(_products(batch, sizes).values())


_RECOMPUTE = Exercise(
    id="07.5",
    reference=recomputed_flops,
    cases=lambda: [
        Case((32, (8, 16, 4), 2), label="two layers in one segment"),
        Case((32, (8, 16, 4), 1), label="two layers, each its own segment"),
        Case((10, (5, 6, 7, 8, 9), 2), label="four layers in segments of two"),
        Case((10, (5, 6, 7, 8, 9, 10), 2), label="five layers in segments of two"),
        Case((7, (4, 5, 6, 7, 8, 9, 10), 3), label="six layers in segments of three"),
        Case((3, (4, 5, 6, 7), 10), label="three layers in one segment of up to ten"),
    ],
    mistakes=(
        Mistake(
            lambda b, s, n: sum(_list(b, s)),
            "For {case} you returned {given}: a whole forward pass, the rule of 8NP. Recomputation stops before a segment's "
            "last product, whose output backward does not need.",
        ),
        Mistake(
            lambda b, s, n: sum(_list(b, s)[:-1]),
            "For {case} you returned {given}: you left out the last product of the network. Every segment's last product "
            "is left out.",
        ),
        Mistake(
            lambda b, s, n: sum(f for i, f in enumerate(_list(b, s)) if i % n),
            "For {case} you returned {given}: you left out the first product of each segment. Its result is not stored "
            "(only its input is), so it is computed again; the last one is not.",
        ),
        Mistake(
            lambda b, s, n: sum(f for i, f in enumerate(_list(b, s)) if not (i + 1) % n or i + 1 == len(s) - 1),
            "For {case} you returned {given}: these are the last products of the segments, the ones that are not repeated.",
        ),
        Mistake(
            lambda b, s, n: sum(f for i, f in enumerate(_list(b, s)) if (i + 1) % n),
            "For {case} you returned {given}: the last segment is shorter, and its last product is not repeated either.",
        ),
        Mistake(
            lambda b, s, n: 2 * recomputed_flops(b, s, n),
            "For {case} you returned {given}, twice too much: a product that is computed again costs one forward.",
        ),
        Mistake(
            lambda b, s, n: sum(_list(b, s)) * (n - 1) // n,
            "For {case} you returned {given}, a share of forward. That is right only if all products cost the same and no "
            "segment is short.",
        ),
        Mistake(
            lambda b, s, n: sum(_list(b, s)) // n,
            "For {case} you returned {given}, forward divided by the segment's length. Go through the segments and leave out "
            "the last product of each.",
        ),
    ),
    hints=(
        "What does backward need from inside a segment: inputs of products, or outputs?",
        "A product keeps its input before it runs. Once the last product of a segment has its input, nothing is missing.",
        "Sum the products except number segment, 2·segment, … and except the very last.",
    ),
    checked="six cuts of networks with 2 to 6 layers, among them a short last segment and a segment longer than the network.",
)

# --- 07.6: from MFU to HFU --------------------------------------------------------------------------------------------


def hardware_utilization(mfu, forward, recomputed):
    return mfu * (3 * forward + recomputed) / (3 * forward)


_HFU = Exercise(
    id="07.6",
    reference=hardware_utilization,
    cases=lambda: [
        Case((0.45, 291_648_307_200, 144_955_146_240), label="MFU 0.45, half of forward computed again"),
        Case((0.5, 1000, 1000), label="MFU 0.5, all of forward computed again"),
        Case((0.3, 1000, 0), label="MFU 0.3, nothing computed again"),
        Case((0.38, 7e15, 5.1e15), label="MFU 0.38, 7e15 and 5.1e15 FLOPs"),
    ],
    mistakes=(
        Mistake(
            lambda u, f, r: u * 4 / 3,
            "For {case} you returned {given}: 4/3 is the rule for a whole forward pass again. Use the recomputed FLOPs that "
            "are given.",
        ),
        Mistake(
            lambda u, f, r: u * 3 * f / (3 * f + r),
            "For {case} you returned {given}, less than the MFU. The hardware executes more than the model needs, so HFU is "
            "the larger one.",
        ),
        Mistake(
            lambda u, f, r: u * (f + r) / f,
            "For {case} you returned {given}: you set the repeated FLOPs against forward alone. A step is forward and "
            "backward, three times forward.",
        ),
        Mistake(
            lambda u, f, r: u,
            "For {case} you returned the MFU itself. HFU also counts what is computed again.",
        ),
        Mistake(
            lambda u, f, r: u * (3 * f + r) / (2 * f),
            "For {case} you returned {given}: backward alone is 2 times forward; the step is 3 times forward.",
        ),
        Mistake(
            lambda u, f, r: u * (2 * f + r) / (2 * f),
            "For {case} you returned {given}: you set the repeated FLOPs against backward alone. A step has forward too.",
        ),
        Mistake(
            lambda u, f, r: u * (6 * f + r) / (6 * f),
            "For {case} you returned {given}: 6 is in units of NP, and forward is 2NP already. A step is 3 times forward.",
        ),
        Mistake(
            lambda u, f, r: u + r / (3 * f),
            "For {case} you returned {given}: you added a share of FLOPs to a utilization. Scale the MFU by executed ÷ needed.",
        ),
    ),
    hints=(
        "The time and the peak are the same for both. What differs?",
        "HFU / MFU = FLOPs executed / FLOPs of the model.",
        "The model needs 3·forward; the hardware executes 3·forward + ….",
    ),
    checked="four steps, with nothing, a part and all of forward computed again.",
)

EXERCISES = (_TWO_LAYERS, _WEIGHTS, _FROZEN, _LORA, _RECOMPUTE, _HFU)
