"""Exercise 09.2: Adam."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_09.gradients import MIXED
from cs336kit.teach.exercises.lesson_09.rule import update


def adam(p, gradients, lr, betas, eps):
    return update(p, gradients, lr, betas, eps)


def _adam_with(**switches):
    return lambda p, gradients, lr, betas, eps: update(p, gradients, lr, betas, eps, **switches)


_STEADY = [2.0, 2.0, 2.0]


EXERCISE = Exercise(
    id="09.2",
    reference=adam,
    cases=lambda: [
        Case(args=(1.0, [0.001], 0.1, (0.9, 0.999), 1e-8), label="one step, gradient 0.001"),
        Case(args=(0.0, _STEADY, 0.1, (0.9, 0.999), 1e-8), label="three steps of gradient 2"),
        Case(args=(1.0, MIXED, 0.01, (0.8, 0.95), 1e-8), label="five mixed steps"),
        Case(args=(0.0, [1e-6, 1e-6], 0.1, (0.9, 0.999), 1e-4), label="tiny gradients and a large eps"),
    ],
    mistakes=(
        Mistake(
            _adam_with(correct=(False, False)),
            "Both averages start at 0 and are too small at first: you forgot the bias correction by 1 − βᵗ. "
            "For {case} you end at {given}, and {expected} is right.",
        ),
        Mistake(
            _adam_with(correct=(True, False)),
            "You corrected m and not v: √v is too small at first, so that {case} moves too far.",
        ),
        Mistake(
            _adam_with(correct=(False, True)),
            "You corrected v and not m: the first steps are too short by 1 − β₁ᵗ.",
        ),
        Mistake(
            _adam_with(inside=True),
            "You put eps inside the root, √(v̂ + eps): it then weighs like √eps. torch adds it after the root.",
        ),
        Mistake(_adam_with(root=False), "You divided by v̂ itself; the step is m̂ over its root."),
        Mistake(
            _adam_with(outside=True),
            "You added eps to √v before correcting v, so that it counts for more at first. torch corrects, then adds.",
        ),
        Mistake(
            _adam_with(sums=True),
            "m and v are averages: the new gradient enters with 1 − β. Without it they are sums, too large for {case}.",
        ),
        Mistake(
            _adam_with(power=False),
            "You correct by 1 − β in every step; after t steps m lacks βᵗ, so raise beta to the power t.",
        ),
        Mistake(
            lambda p, gs, lr, betas, eps: adam(p, gs, lr, betas[::-1], eps),
            "You swapped the betas: the first belongs to m, the average of gradients, the second to v.",
        ),
        Mistake(
            lambda p, gs, lr, betas, eps: 2 * p - adam(p, gs, lr, betas, eps),
            "You walk uphill: the step is subtracted from p.",
        ),
    ),
    hints=(
        "What do m and v hold after the first step, if they started at 0?",
        "Divide m by 1 − beta1**t and v by 1 − beta2**t, with t from 1; then p −= lr · m̂ / (√v̂ + eps).",
        "for t, g in enumerate(gradients, start=1): update m, v; then p -= lr * (m / ____) / (math.sqrt(v / ____) + eps).",
    ),
    checked="a first step, steady and mixed gradients, other betas, and an eps that matters.",
)
