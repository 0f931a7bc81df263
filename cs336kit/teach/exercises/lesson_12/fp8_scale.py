"""Exercise 12.4: the scale of an fp8 tensor."""

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def fp8_scale(values, largest):
    amax = max(abs(value) for value in values)
    return amax / largest if amax else 1.0


EXERCISE = Exercise(
    id="12.4",
    reference=fp8_scale,
    cases=lambda: [
        Case(([1.0, -2.0, 0.5], 448.0), label="values 1, −2, 0.5 in E4M3"),
        Case(([1e-6, 3e-6], 448.0), label="values 1e-6, 3e-6 in E4M3"),
        Case(([1000.0, 10.0], 57344.0), label="values 1000, 10 in E5M2"),
        Case(([0.0, 0.0], 448.0), label="only zeros"),
    ],
    mistakes=(
        Mistake(
            lambda v, m: m / max(abs(x) for x in v) if any(v) else 1.0,
            "For {case} you returned {given}: that brings values into the format. Asked is the factor that brings them "
            "back: x ≈ q · scale.",
        ),
        Mistake(
            lambda v, m: max(v) / m if any(v) else 1.0,
            "For {case} you returned {given}: the largest magnitude belongs to a negative number. Take the absolute value.",
        ),
        Mistake(
            lambda v, m: max(abs(x) for x in v) / 448 if any(v) else 1.0,
            "For {case} you returned {given}: 448 is E4M3's largest number. Take the one that is given.",
        ),
        Mistake(
            lambda v, m: max(abs(x) for x in v) if any(v) else 1.0,
            "For {case} you returned {given}: that puts the largest magnitude on 1, and leaves the range above 1 unused.",
        ),
        Mistake(
            lambda v, m: (max(v) - min(v)) / (2 * m) if any(v) else 1.0,
            "For {case} you returned {given}: the format's range has its middle at zero, wherever the values lie. Take the "
            "largest magnitude.",
        ),
        Mistake(
            lambda v, m: sum(abs(x) for x in v) / len(v) / m if any(v) else 1.0,
            "For {case} you returned {given}: with the mean on the largest number, everything above the mean overflows.",
        ),
        Mistake(
            lambda v, m: max(abs(x) for x in v) / m,
            "For {case} you returned {given}: values are divided by the scale, and a tensor of zeros must not divide by 0.",
        ),
        Mistake(
            lambda v, m: max(1.0, max(abs(x) for x in v) / m),
            "For {case} you returned {given}: small tensors need their scale most. Without one they fall below the "
            "smallest number.",
        ),
    ),
    hints=(
        "Which number of the tensor should land on the largest number of the format?",
        "x ≈ q · scale, and the largest |x| gets q = largest. Zeros need a scale that can be divided by.",
        "amax = max(abs(v) for v in values); return amax / ___ if amax else ___",
    ),
    checked="E4M3 and E5M2, tiny and large values, a negative maximum, and zeros.",
    tolerance=1e-6,  # an answer in fp32 is right too
)
