"""Exercise 12.3: unscale, then clip."""

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def clipped(scaled_gradient, scale, max_norm):
    gradient = scaled_gradient / scale
    norm = _norm(gradient)
    return gradient * (max_norm / norm) if norm > max_norm else gradient


def _norm(gradient):
    return float(torch.linalg.vector_norm(gradient))


def _max(gradient):
    return float(gradient.abs().max())


EXERCISE = Exercise(
    id="12.3",
    reference=clipped,
    cases=lambda: [
        Case(
            (torch.tensor([3.0, 4.0], dtype=torch.float64) * 1024, 1024.0, 1.0),
            label="true gradient (3, 4), max_norm 1",
        ),
        Case(
            (torch.tensor([0.03, 0.04], dtype=torch.float64) * 4, 4.0, 1.0),
            label="true gradient (0.03, 0.04), scale 4, max_norm 1",
        ),
        Case(
            (torch.tensor([0.03, 0.04], dtype=torch.float64) * 1024, 1024.0, 1.0),
            label="true gradient (0.03, 0.04), scale 1024, max_norm 1",
        ),
        Case((torch.zeros(3, dtype=torch.float64), 1024.0, 1.0), label="a gradient of zeros"),
        Case((torch.tensor([6.0, -8.0, 0.0], dtype=torch.float64), 1.0, 2.0), label="scale 1, gradient (6, −8, 0)"),
    ],
    mistakes=(
        Mistake(
            lambda g, s, m: g * min(1.0, m / _norm(g)) / s,
            "For {case} you returned {given}: you clipped the scaled gradient. Its norm is scale times too large, so almost "
            "every step is clipped to max_norm ÷ scale. Unscale first.",
        ),
        Mistake(
            lambda g, s, m: g * min(1.0, m / _norm(g)),
            "For {case} you returned {given}: you never divided by the scale, and clipped the scaled gradient.",
        ),
        Mistake(
            lambda g, s, m: g * min(1.0, m * s / _norm(g)),
            "For {case} you returned {given}: the factor of the clipping is right, and the result is still scaled.",
        ),
        Mistake(
            lambda g, s, m: g / s * (m * s / _norm(g)) if _norm(g) > m else g / s,
            "For {case} you returned {given}: you asked the scaled gradient whether it is too long. Ask the true one.",
        ),
        Mistake(
            lambda g, s, m: g / s * min(1.0, m * s / _max(g)),
            "For {case} you returned {given}: you clipped by the largest element. The norm is the root of the sum of squares.",
        ),
        Mistake(
            lambda g, s, m: g / s * min(1.0, m / _norm(g / s) ** 2),
            "For {case} you returned {given}: you forgot the root of the sum of squares.",
        ),
        Mistake(
            lambda g, s, m: g * (s if _norm(g) * s < m else m / _norm(g)),
            "For {case} you returned {given}: the gradient was multiplied by the scale, so divide by it.",
        ),
        Mistake(lambda g, s, m: g / s, "For {case} you returned {given}: unscaled, and not clipped."),
        Mistake(
            lambda g, s, m: g / s * (m / _norm(g / s)),
            "For {case} you returned {given}: a gradient that is shorter than max_norm stays as it is; you stretched it.",
        ),
        Mistake(
            lambda g, s, m: (g / s).clamp(-m, m),
            "For {case} you returned {given}: you cut every element on its own, which turns the gradient. Clipping by norm "
            "multiplies all elements by one factor.",
        ),
    ),
    hints=(
        "max_norm is meant for the true gradient. What do you hold?",
        "Divide by the scale. Take the norm. If it is above max_norm, multiply everything by max_norm / norm.",
        "gradient = scaled_gradient / ___; norm = gradient.norm(); return gradient * (max_norm / norm) if norm > ___ else ___",
    ),
    checked="a long gradient, a short one and one of zeros that must stay, and scale 1.",
    tolerance=1e-5,  # library functions divide by the norm plus 1e-6
)
