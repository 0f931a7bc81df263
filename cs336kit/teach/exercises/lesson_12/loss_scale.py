"""Exercise 12.2: the loss scale."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def scale_after(overflows, scale, growth_interval, *, reset=True, growth=2.0, backoff=0.5, late=0):
    clean = 0
    for overflow in overflows:
        if overflow:
            scale, clean = scale * backoff, 0 if reset else clean
        else:
            clean += 1
            if clean == growth_interval + late:
                scale, clean = scale * growth, 0
    return scale


def _growing_on(overflows, scale, growth_interval):
    clean = 0
    for overflow in overflows:
        clean = 0 if overflow else clean + 1
        scale = scale / 2 if overflow else scale * (2 if clean >= growth_interval else 1)
    return scale


def _reference_scale(overflows, scale, growth_interval):
    return scale_after(overflows, scale, growth_interval)


EXERCISE = Exercise(
    id="12.2",
    reference=_reference_scale,
    cases=lambda: [
        Case(([False] * 3, 1024.0, 3), label="3 clean steps, growth after 3"),
        Case(([True, True, False], 1024.0, 3), label="2 overflows and a clean step, growth after 3"),
        Case(([False, False, True, False, False], 1024.0, 3), label="2 clean, 1 overflow, 2 clean, growth after 3"),
        Case(([False] * 7, 8.0, 3), label="7 clean steps, growth after 3"),
        Case(([], 2.0, 3), label="no step"),
        Case(([True] * 3, 2.0, 3), label="3 overflows, from a scale of 2"),
        Case(([False] * 4 + [True] + [False] * 4, 65536.0, 4), label="4 clean, 1 overflow, 4 clean, growth after 4"),
    ],
    mistakes=(
        Mistake(
            lambda o, s, g: scale_after(o, s, g, reset=False),
            "For {case} you returned {given}: an overflow starts the count of clean steps again. Otherwise the scale grows "
            "into the next overflow.",
        ),
        Mistake(
            lambda o, s, g: scale_after(o, s, g, late=1),
            "For {case} you returned {given}: the scale doubles after growth_interval clean steps, and you waited for one "
            "more.",
        ),
        Mistake(
            lambda o, s, g: scale_after(o, s, g, growth=1.0),
            "For {case} you returned {given}: the scale never grows again. After one early overflow small gradients would "
            "be lost for the rest of the run.",
        ),
        Mistake(
            lambda o, s, g: scale_after(o, s, g, backoff=1.0),
            "For {case} you returned {given}: an overflow does not lower your scale, so the next step overflows too.",
        ),
        Mistake(
            lambda o, s, g: max(1, scale_after(o, s, g)),
            "For {case} you returned {given}: the scale may fall below 1; gradients that overflow unscaled need that.",
        ),
        Mistake(
            lambda o, s, g: scale_after(o, s, g, growth=0.5, backoff=2.0),
            "For {case} you returned {given}: the other way round. An overflow means that the scale is too large.",
        ),
        Mistake(
            _growing_on,
            "For {case} you returned {given}: after a doubling the count starts again. You double at every step from then on.",
        ),
    ),
    hints=(
        "Which two numbers does the scaler carry from step to step?",
        "Carry the scale and the count of clean steps in a row. Overflow: halve, count from 0. Clean: count up, and at "
        "growth_interval double and count from 0.",
        "if overflow: scale, clean = scale / 2, ___",
    ),
    checked="clean runs, overflows in a row, an overflow in the middle of a count, and no step at all.",
)
