"""Exercise 06.2: fan-out."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def fan_out_gradient(x):
    y = x * x
    return (3 + 2 * y) * 2 * x


EXERCISE = Exercise(
    id="06.2",
    reference=fan_out_gradient,
    cases=lambda: [Case((x,), label=f"x = {x:g}") for x in (3.0, -2.0, 0.5, 1.25, 0.0)],
    mistakes=(
        Mistake(
            lambda x: 2 * x * x * 2 * x,
            "For {case} you returned {given}: only the branch through v. You assigned y.grad a second time and lost what "
            "u had left there; write y.grad += ….",
        ),
        Mistake(
            lambda x: 3 * 2 * x,
            "For {case} you returned {given}: only the branch through u. y feeds v too, and both contributions add up.",
        ),
        Mistake(
            lambda x: 3 + 2 * x * x,
            "For {case} you returned {given}: that is dloss/dy. One more step back: multiply by dy/dx = 2x.",
        ),
        Mistake(
            lambda x: 3 * 2 * x * x * 2 * x,
            "For {case} you returned {given}: you multiplied the two branches. Factors along one way multiply; ways add.",
        ),
        Mistake(
            lambda x: (3 + 2 * x) * 2 * x,
            "For {case} you returned {given}: dv/dy is 2y, not 2x; the local derivative uses the node's own input.",
        ),
        Mistake(
            lambda x: 3 * 2 * x + 2 * x * x,
            "For {case} you returned {given}: the branch through v stops at y. Add both branches at y, then go on to x.",
        ),
        Mistake(
            lambda x: (3 + 2 * x * x) * x,
            "For {case} you returned {given}: half of it. The last step multiplies by dy/dx = 2x, not by x.",
        ),
        Mistake(
            lambda x: (3 * x * x + 2 * x * x) * 2 * x,
            "For {case} you returned {given}: du/dy is 3, the slope of u = 3y, not u itself.",
        ),
    ),
    hints=(
        "How many ways lead from the loss back to y?",
        "y.grad is a sum of two products, one per branch: dloss/du·du/dy + dloss/dv·dv/dy.",
        "y.grad = 1*3 + 1*(2*y); then x.grad = y.grad * (the derivative of x²).",
    ),
    checked="five values of x, negative and zero among them.",
)
