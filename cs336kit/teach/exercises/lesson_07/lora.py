"""Exercise 07.4: LoRA."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def lora_flops(tokens, d_in, d_out, rank):
    base, pair = 2 * tokens * d_in * d_out, 2 * tokens * rank * (d_in + d_out)
    return 2 * base + 3 * pair


def _base(n, i, o):
    return 2 * n * i * o


def _pair(n, i, o, r):
    return 2 * n * r * (i + o)


EXERCISE = Exercise(
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
