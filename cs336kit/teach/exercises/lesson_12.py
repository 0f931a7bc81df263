"""Exercises of lesson 12: mixed precision."""

import math

import torch

from cs336kit.teach.exercises.core import Case, Exercise, Mistake

# --- 12.1: a lost update ----------------------------------------------------------------------------------------------


def is_lost(weight, update, fraction_bits):
    spacing = 2.0 ** (math.floor(math.log2(weight)) - fraction_bits)
    odd = round(weight / spacing) % 2
    return update < spacing / 2 or (update == spacing / 2 and not odd)


def _lost_cases():
    return [
        Case((1.0, 0.001, 7), label="weight 1, update 0.001 in bf16"),
        Case((1.0, 0.005, 7), label="weight 1, update 0.005 in bf16"),
        Case((1.0, 2.0**-8, 7), label="weight 1, update 2⁻⁸ in bf16, exactly half a spacing"),
        Case((1 + 2.0**-7, 2.0**-8, 7), label="weight 1 + 2⁻⁷, update 2⁻⁸ in bf16"),
        Case((1.9375, 0.0045, 7), label="weight 1.9375, update 0.0045 in bf16"),
        Case((0.015625, 0.00005, 7), label="weight 2⁻⁶, update 0.00005 in bf16"),
        Case((256.0, 0.9, 7), label="weight 256, update 0.9 in bf16"),
        Case((1.0, 0.001, 10), label="weight 1, update 0.001 in fp16"),
        Case((1.0, 0.001, 23), label="weight 1, update 0.001 in fp32"),
    ]


def _spacing(weight, fraction_bits):
    return 2.0 ** (math.floor(math.log2(weight)) - fraction_bits)


_LOST = Exercise(
    id="12.1",
    reference=is_lost,
    cases=_lost_cases,
    mistakes=(
        Mistake(
            lambda w, u, f: u < _spacing(w, f),
            "For {case} you returned {given}: you asked for a whole spacing. Rounding goes to the nearest, so more than "
            "half a spacing is enough to move the weight.",
        ),
        Mistake(
            lambda w, u, f: u < _spacing(w, f) / 2,
            "For {case} you returned {given}: exactly half a spacing is a tie. A tie goes to the even neighbour, and a "
            "weight whose last bit is 0 stays.",
        ),
        Mistake(
            lambda w, u, f: u <= _spacing(w, f) / 2,
            "For {case} you returned {given}: the tie goes to the even neighbour. This weight's last bit is 1, so it moves.",
        ),
        Mistake(
            lambda w, u, f: u <= 2.0**-f / 2,
            "For {case} you returned {given}: 2⁻ᶠ is the spacing at 1. It grows and shrinks with the weight's power of two.",
        ),
        Mistake(
            lambda w, u, f: u <= w * 2.0**-f / 2,
            "For {case} you returned {given}: the spacing does not grow with the weight itself. It is the same from one "
            "power of two to the next.",
        ),
        Mistake(lambda w, u, f: not is_lost(w, u, f), "For {case} you returned {given}: the other way round."),
    ),
    hints=(
        "How far is it from the weight to the next larger number of the format?",
        "The spacing is 2 ** (floor(log2(weight)) - fraction_bits). An update below half of it rounds back; a tie goes to "
        "the neighbour whose last bit is 0.",
        "odd = round(weight / spacing) % 2; return update < spacing / 2 or (update == spacing / 2 and ___)",
    ),
    checked="bf16, fp16 and fp32, weights from 2⁻⁶ to 256, and two exact ties.",
)

# --- 12.2: the loss scale ---------------------------------------------------------------------------------------------


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


def _reference_scale(overflows, scale, growth_interval):
    return scale_after(overflows, scale, growth_interval)


_SCALE = Exercise(
    id="12.2",
    reference=_reference_scale,
    cases=lambda: [
        Case(([False] * 3, 1024.0, 3), label="3 clean steps, growth after 3"),
        Case(([True, True, False], 1024.0, 3), label="2 overflows and a clean step, growth after 3"),
        Case(([False, False, True, False, False], 1024.0, 3), label="2 clean, 1 overflow, 2 clean, growth after 3"),
        Case(([False] * 7, 8.0, 3), label="7 clean steps, growth after 3"),
        Case(([], 2.0, 3), label="no step"),
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
    ),
    hints=(
        "Which two numbers does the scaler carry from step to step?",
        "Carry the scale and the count of clean steps in a row. Overflow: halve, count from 0. Clean: count up, and at "
        "growth_interval double and count from 0.",
        "if overflow: scale, clean = scale / 2, ___",
    ),
    checked="clean runs, overflows in a row, an overflow in the middle of a count, and no step at all.",
)

# --- 12.3: unscale, then clip -----------------------------------------------------------------------------------------


def clipped(scaled_gradient, scale, max_norm):
    gradient = scaled_gradient / scale
    norm = torch.linalg.vector_norm(gradient)
    return gradient * min(1.0, max_norm / float(norm))


def _norm(gradient):
    return float(torch.linalg.vector_norm(gradient))


_CLIPPED = Exercise(
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
        "gradient = scaled_gradient / ___; return gradient * min(1.0, max_norm / gradient.norm().item())",
    ),
    checked="a long gradient, a short one that must stay, and scale 1.",
)

# --- 12.4: the scale of an fp8 tensor ---------------------------------------------------------------------------------


def fp8_scale(values, largest):
    amax = max(abs(value) for value in values)
    return amax / largest if amax else 1.0


_FP8 = Exercise(
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
)

# --- 12.5: from which batch on autocast saves memory ------------------------------------------------------------------


def smallest_batch(fp32_bytes, autocast_bytes, copies_bytes):
    return copies_bytes // (fp32_bytes - autocast_bytes) + 1


_BATCH = Exercise(
    id="12.5",
    reference=smallest_batch,
    cases=lambda: [
        Case((100, 60, 250), label="100 and 60 bytes a sequence, 250 of copies"),
        Case((345_344, 226_560, 229_380), label="345,344 and 226,560 bytes a sequence, 229,380 of copies"),
        Case((100, 60, 80), label="100 and 60 bytes a sequence, 80 of copies"),
        Case((100, 60, 79), label="100 and 60 bytes a sequence, 79 of copies"),
        Case((100, 60, 0), label="no copies"),
    ],
    mistakes=(
        Mistake(
            lambda a, c, w: w // (a - c),
            "For {case} you returned {given}: at that batch autocast does not keep fewer bytes yet. Round up, and a draw "
            "is not fewer.",
        ),
        Mistake(
            lambda a, c, w: -(-w // (a - c)),
            "For {case} you returned {given}: there both keep the same, and fewer is asked. Take one sequence more where "
            "the division leaves no rest.",
        ),
        Mistake(
            lambda a, c, w: 1, "For {case} you returned {given}: the copies of the weights are kept at any batch size."
        ),
        Mistake(
            lambda a, c, w: w // a + 1,
            "For {case} you returned {given}: per sequence autocast saves the difference, not all of fp32's bytes.",
        ),
        Mistake(
            lambda a, c, w: w / (a - c),
            "For {case} you returned {given}: a batch is a whole number of sequences.",
        ),
    ),
    hints=(
        "Write the bytes of both as a function of B. Which of the two has a constant?",
        "fp32 keeps a·B, autocast c·B + w. Ask for c·B + w < a·B and solve for the smallest whole B.",
        "return copies_bytes // (___ - ___) + 1",
    ),
    checked="the decoder of this lesson, an exact draw, one byte below a draw, and no copies.",
)

EXERCISES = (_LOST, _SCALE, _CLIPPED, _FP8, _BATCH)
