"""Exercise 06.1: the gradients of linear regression."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def regression_gradients(w0, w1, x, y):
    z = w0 + w1 * x - y
    return 2 * z, 2 * z * x


EXERCISE = Exercise(
    id="06.1",
    reference=regression_gradients,
    cases=lambda: [
        Case((1.0, 2.0, 3.0, 4.0), label="w0=1, w1=2, x=3, y=4"),
        Case((0.5, -1.0, 2.0, 4.0), label="w0=0.5, w1=−1, x=2, y=4"),
        Case((0.0, 1.0, -3.0, -3.0), label="a perfect prediction"),
        Case((2.0, 3.0, 0.0, 1.0), label="x = 0"),
        Case((-1.5, 0.25, -4.0, 2.5), label="w0=−1.5, w1=0.25, x=−4, y=2.5"),
    ],
    mistakes=(
        Mistake(
            lambda w0, w1, x, y: (w0 + w1 * x - y, (w0 + w1 * x - y) * x),
            "For {case} you returned {given}: the derivative of z² is 2z, and your 2 is missing.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w0 + w1 * x - y),) * 2,
            "For {case} you returned {given}, twice the same: u = w1·x, so the way to w1 has one more factor, du/dw1 = x.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (y - w0 - w1 * x), 2 * (y - w0 - w1 * x) * x),
            "For {case} you returned {given}, with the sign turned: z = ŷ − y, and ŷ enters with +1.",
        ),
        Mistake(
            lambda w0, w1, x, y: regression_gradients(w0, w1, x, y)[::-1],
            "For {case} you returned {given}: these are the two gradients in the other order; w0 comes first.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w0 + w1 * x - y), 2 * (w0 + w1 * x - y) * w1),
            "For {case} you returned {given}: you multiplied by w1, which is du/dx. The way to w1 goes through du/dw1 = x.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w1 * x - y), 2 * (w1 * x - y) * x),
            "For {case} you returned {given}: w0 is missing from the residual, z = w0 + w1·x − y.",
        ),
        Mistake(
            lambda w0, w1, x, y: (2 * (w0 + w1 * x - y) ** 2, 2 * (w0 + w1 * x - y) ** 2 * x),
            "For {case} you returned {given}: you multiplied by the loss z². Its derivative with respect to z is 2z.",
        ),
    ),
    hints=(
        "Which factors lie on the way from the loss back to w0, and which one more on the way to w1?",
        "z.grad = dloss/dz. Both w0 and u reach z through sums only, so their gradients equal z.grad.",
        "z = w0 + w1*x - y; w0.grad = 2*z; w1.grad = w0.grad times du/dw1, and u = w1*x.",
    ),
    checked="five points, with a zero residual, x = 0 and negative numbers among them.",
)
