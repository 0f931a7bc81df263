"""Exercise 07.1: the two-layer model."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def two_layer_flops(B, D, K):
    return 2 * B * D * D + 2 * B * D * K, 2 * B * D * D + 4 * B * D * K


EXERCISE = Exercise(
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
