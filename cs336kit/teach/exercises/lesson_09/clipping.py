"""Exercise 09.5: clipping by the joint norm."""

import math

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def _norm(gradients):
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))


def clip(gradients, max_norm):
    norm = _norm(gradients)
    return [g * min(1.0, max_norm / norm) for g in gradients] if norm else list(gradients)


def _in_place(gradients, max_norm):
    norm = _norm(gradients)
    return [g.mul_(min(1.0, max_norm / norm) if norm else 1.0) for g in gradients]


def _clipped(result, args):
    """The result, or a word for it where the tensors that were given have themselves been scaled to the limit."""
    gradients, max_norm = args
    same = any(new is old for new, old in zip(result, gradients, strict=False))
    return (
        "your own input, changed in place" if same and math.isclose(_norm(result), max_norm, rel_tol=1e-4) else result
    )


def _clip_each(gradients, max_norm):
    return [clip([g], max_norm)[0] for g in gradients]


def _scale_up(gradients, max_norm):
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
    return [g * (max_norm / norm) for g in gradients] if norm else list(gradients)


def _sum_of_norms(gradients, max_norm):
    total = sum(float(g.norm()) for g in gradients)
    return [g * min(1.0, max_norm / total) for g in gradients] if total else list(gradients)


def _clip_cases():
    a, b = torch.tensor([3.0, 4.0]), torch.tensor([[12.0], [0.0]])
    yield Case(args=([a, b], 1.3), label="two gradients of norms 5 and 12, max_norm=1.3")
    yield Case(args=([a / 100, b / 100], 1.0), label="gradients that are already small enough")
    yield Case(args=([torch.tensor([10.0, 0.1])], 1.0), label="one gradient with a large and a small element")
    yield Case(args=([torch.zeros(3)], 1.0), label="a gradient of zeros")


EXERCISE = Exercise(
    id="09.5",
    reference=clip,
    cases=_clip_cases,
    tolerance=1e-5,
    observe=_clipped,
    mistakes=(
        Mistake(
            _clip_each,
            "You clipped each tensor by its own norm, which turns the direction of the update. One factor for all.",
        ),
        Mistake(
            lambda gs, m: [g.clamp(-m, m) for g in gs],
            "You clamped element by element; that changes the direction. Scale all gradients by one factor.",
        ),
        Mistake(
            _scale_up,
            "You also scale *up*: gradients that are below the limit must stay as they are.",
        ),
        Mistake(
            lambda gs, m: [g * min(1.0, m / max(1e-9, *(float(t.norm()) for t in [*gs, gs[0]]))) for g in gs],
            "You took the norm of the longest tensor alone; the joint norm of 5 and 12 is 13, not 12.",
        ),
        Mistake(
            lambda gs, m: [g * min(1.0, m / max(1e-9, sum(float((t**2).sum()) for t in gs))) for g in gs],
            "You divided by the sum of squares; the norm is its root.",
        ),
        Mistake(
            _in_place,
            "You changed the gradients that you were given; the task asks for new tensors (g * scale, not g.mul_).",
        ),
        Mistake(
            _sum_of_norms,
            "Norms of parts do not add: the joint norm of parts with norms 5 and 12 is 13, not 17.",
        ),
        Mistake(lambda gs, m: list(gs), "Nothing was clipped: {case} is longer than the limit."),
    ),
    hints=(
        "If all gradients were laid end to end in one vector, how long would it be?",
        "The joint norm is the root of the sum of all squares; multiply every gradient by max_norm/norm if below 1.",
        "scale = min(1.0, max_norm / norm), with norm = math.sqrt(sum(float((g**2).sum()) for g in ____)).",
    ),
    checked="two tensors together, gradients below the limit, uneven elements, and zeros.",
)
