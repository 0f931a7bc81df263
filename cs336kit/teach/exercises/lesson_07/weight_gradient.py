"""Exercise 07.2: the weight gradient with loops."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


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


EXERCISE = Exercise(
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
