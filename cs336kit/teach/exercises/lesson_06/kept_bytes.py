"""Exercise 06.5: the bytes that a ReLU network keeps."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def kept_bytes(batch, sizes):
    return 4 * batch * sum(sizes[:-1])


EXERCISE = Exercise(
    id="06.5",
    reference=kept_bytes,
    cases=lambda: [
        Case((32, (16, 64, 8)), label="batch 32, sizes (16, 64, 8)"),
        Case((1, (5, 3)), label="batch 1, sizes (5, 3)"),
        Case((1024, (784, 512, 256, 10)), label="batch 1024, sizes (784, 512, 256, 10)"),
        Case((7, (4, 4, 4, 4, 4)), label="batch 7, five sizes of 4"),
    ],
    mistakes=(
        Mistake(
            lambda b, s: 4 * b * (s[0] + 2 * sum(s[1:-1])),
            "For {case} you returned {given}: every hidden layer counts twice there. ReLU keeps its result, and the next "
            "product keeps the same tensor: one storage.",
        ),
        Mistake(
            lambda b, s: 4 * b * sum(s),
            "For {case} you returned {given}: you counted the last product's output. No product needs its own output for "
            "backward.",
        ),
        Mistake(
            lambda b, s: 4 * b * sum(s[1:-1]),
            "For {case} you returned {given}: x is missing. The first weight's gradient is xᵀ times something, so x is kept.",
        ),
        Mistake(
            lambda b, s: b * sum(s[:-1]),
            "For {case} you returned {given}: these are elements. An fp32 element takes 4 bytes.",
        ),
        Mistake(
            lambda b, s: 4 * (b * sum(s[:-1]) + sum(m * n for m, n in zip(s, s[1:], strict=False))),
            "For {case} you returned {given}: you counted the weights. They are referred to, and exist anyway.",
        ),
        Mistake(
            lambda b, s: 4 * b * sum(s[1:]),
            "For {case} you returned {given}: these are the outputs of the products. A product keeps its input.",
        ),
        Mistake(
            lambda b, s: 8 * b * sum(s[:-1]),
            "For {case} you returned {given}, twice too much: an fp32 element takes 4 bytes.",
        ),
        Mistake(
            lambda b, s: 4 * b * s[0],
            "For {case} you returned {given}: only x. Every product keeps its own input, the later ones the ReLU's result.",
        ),
    ),
    hints=(
        "Which operand does a product need again in order to compute the gradient of its weight?",
        "Every product keeps its input: x for the first, the ReLU's result for the others, which ReLU shares.",
        "4 bytes × batch × (the sum of all sizes except one of them).",
    ),
    checked="four networks of 1 to 4 layers.",
)
