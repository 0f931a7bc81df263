"""Exercise 09.1: the momentum buffer."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake
from cs336kit.teach.exercises.lesson_09.gradients import MIXED


def momentum_buffer(gradients, momentum):
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * velocity + gradient
    return velocity


def _average(gradients, momentum):
    mean = 0.0
    for gradient in gradients:
        mean = momentum * mean + (1 - momentum) * gradient
    return mean


def _decays_the_new(gradients, momentum):
    velocity = 0.0
    for gradient in gradients:
        velocity = momentum * (velocity + gradient)
    return velocity


EXERCISE = Exercise(
    id="09.1",
    reference=momentum_buffer,
    cases=lambda: [
        Case(args=([2.0], 0.9)),
        Case(args=([1.0, 1.0], 0.9)),
        Case(args=(MIXED, 0.8)),
        Case(args=([1.0] * 50, 0.5), label="50 gradients of 1 at momentum 0.5"),
    ],
    mistakes=(
        Mistake(
            _average,
            "You returned an average, with weight 1 − momentum on the new gradient. torch's buffer is a decayed sum: "
            "{expected} for {case}.",
        ),
        Mistake(lambda g, m: sum(g), "Nothing decays in your sum: multiply the old buffer by momentum first."),
        Mistake(_decays_the_new, "The newest gradient enters undecayed: you multiplied it by momentum too."),
        Mistake(
            lambda g, m: sum(x * m**i for i, x in enumerate(g)),
            "You let the newest gradients decay most; the oldest has been multiplied by momentum most often.",
        ),
        Mistake(
            lambda g, m: momentum_buffer([*g, g[-1]], m),
            "That is Nesterov's direction, g + momentum · buffer; the buffer itself is {expected} for {case}.",
        ),
        Mistake(lambda g, m: g[-1], "You returned the last gradient alone; the buffer remembers the earlier ones."),
    ),
    hints=(
        "What is the buffer after one gradient, and after two?",
        "Each step multiplies the old buffer by momentum and adds the new gradient.",
        "Start at 0.0 and loop: velocity = momentum * velocity + ____.",
    ),
    checked="one gradient, two, five of both signs, and 50 that reach the limit g/(1 − momentum).",
)
