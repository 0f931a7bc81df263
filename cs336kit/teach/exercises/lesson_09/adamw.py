"""Exercise 09.3: AdamW."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_09.gradients import MIXED
from cs336kit.teach.exercises.lesson_09.rule import update


def adamw(p, gradients, lr, betas, eps, weight_decay):
    return update(p, gradients, lr, betas, eps, weight_decay)


def _adamw_with(**switches):
    return lambda p, gradients, lr, betas, eps, weight_decay: update(
        p, gradients, lr, betas, eps, weight_decay, **switches
    )


EXERCISE = Exercise(
    id="09.3",
    reference=adamw,
    cases=lambda: [
        Case(args=(2.0, [0.0], 0.1, (0.9, 0.999), 1e-8, 0.5), label="one step of gradient 0 with decay 0.5"),
        Case(args=(2.0, [1.0], 0.1, (0.9, 0.999), 1e-8, 0.5), label="one step of gradient 1 with decay 0.5"),
        Case(args=(-1.0, MIXED, 0.01, (0.9, 0.99), 1e-8, 0.1), label="five mixed steps"),
        Case(args=(-1.0, MIXED, 0.01, (0.9, 0.99), 1e-8, 0.0), label="five mixed steps without decay"),
    ],
    mistakes=(
        Mistake(
            _adamw_with(decay="l2"),
            "That is Adam with an L2 penalty: you added the decay to the gradient, where √v̂ divides it away. AdamW "
            "shrinks p itself; for {case} that gives {expected}.",
        ),
        Mistake(
            _adamw_with(decay="without lr"),
            "torch's AdamW shrinks by 1 − lr·weight_decay; you left out lr, which makes the decay ignore the schedule.",
        ),
        Mistake(
            _adamw_with(decay="after"),
            "You shrink p after the step, so that the step shrinks too. torch shrinks first: {expected} for {case}.",
        ),
        Mistake(_adamw_with(decay="grows"), "Your parameter grows: the decay has to pull it towards 0."),
        Mistake(
            _adamw_with(decay="none"), "weight_decay does nothing in your answer: {case} should end at {expected}."
        ),
    ),
    hints=(
        "With a gradient of exactly 0, by what factor should p change?",
        "Multiply p by 1 − lr·weight_decay before the step, and keep the decay out of m and v.",
        "Take your answer to 09.2 and add one line at the start of the loop: p = p * (1 - ____).",
    ),
    checked="a gradient of 0, a single step, five mixed steps, and no decay at all.",
)
