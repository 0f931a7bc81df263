"""Exercises of lesson 16: mixed precision."""

import math

import torch

from cs336kit.teach.exercises.core import exercise


@exercise(
    "16.1",
    cases={
        "weight 1, update 0.001 in bf16": (1.0, 0.001, 7),
        "weight 1, update 0.005 in bf16": (1.0, 0.005, 7),
        "weight 1, update 2⁻⁸ in bf16, exactly half a spacing": (1.0, 2.0**-8, 7),
        "weight 1 + 2⁻⁷, update 2⁻⁸ in bf16": (1 + 2.0**-7, 2.0**-8, 7),
        "weight 1.9375, update 0.0045 in bf16": (1.9375, 0.0045, 7),
        "weight 2⁻⁶, update 0.00005 in bf16": (0.015625, 0.00005, 7),
        "weight 256, update 0.9 in bf16": (256.0, 0.9, 7),
        "weight 1, update 0.001 in fp16": (1.0, 0.001, 10),
        "weight 1, update 0.001 in fp32": (1.0, 0.001, 23),
    },
    mistakes={
        "is_lost(weight, update / 2, fraction_bits)": "you asked for a whole spacing. More than half of one moves the weight.",
        "is_lost(weight, update * (1 + 1e-9), fraction_bits)": "an exact tie goes to the even neighbour: a last bit of 0 stays.",
        "is_lost(weight, update * (1 - 1e-9), fraction_bits)": "an exact tie goes to the even neighbour: a last bit of 1 moves.",
        "update <= 2.0**-fraction_bits / 2": "2⁻ᶠ is the spacing at 1. It grows with the weight's power of two.",
        "update <= weight * 2.0**-fraction_bits / 2": "the spacing is the same from one power of two to the next.",
        "right_if(fraction_bits=7)": "that is for bf16, whatever the format. Take fraction_bits.",
    },
    hints=(
        "How far is it from the weight to the next larger number of the format?",
        "The spacing is 2 ** (floor(log2(weight)) - fraction_bits). An update below half of it rounds back; a tie goes to "
        "the neighbour whose last bit is 0.",
        "odd = round(weight / spacing) % 2; return update < spacing / 2 or (update == spacing / 2 and ___)",
    ),
    checked="bf16, fp16 and fp32, weights from 2⁻⁶ to 256, and two exact ties.",
)
def is_lost(weight, update, fraction_bits):
    spacing = 2.0 ** (math.floor(math.log2(weight)) - fraction_bits)
    odd = round(weight / spacing) % 2
    return update < spacing / 2 or (update == spacing / 2 and not odd)


@exercise(
    "16.2",
    cases={
        "3 clean steps, growth after 3": ([False] * 3, 1024.0, 3),
        "2 overflows and a clean step, growth after 3": ([True, True, False], 1024.0, 3),
        "2 clean, 1 overflow, 2 clean, growth after 3": ([False, False, True, False, False], 1024.0, 3),
        "6 clean steps, growth after 3": ([False] * 6, 8.0, 3),
        "7 clean steps, growth after 3": ([False] * 7, 8.0, 3),
        "no step": ([], 2.0, 3),
        "3 overflows, from a scale of 2": ([True] * 3, 2.0, 3),
        "4 clean, 1 overflow, 4 clean, growth after 4": ([False] * 4 + [True] + [False] * 4, 65536.0, 4),
    },
    mistakes={
        "scale_after(overflows, scale, growth_interval, reset=False)": "an overflow starts the count of clean steps again.",
        "right_if(growth_interval=growth_interval + 1)": "the scale doubles after growth_interval steps, not one later.",
        "right_if(growth_interval=10**9)": "the scale never grows again, and small gradients are lost for the rest of the run.",
        "right * 2 ** sum(overflows)": "an overflow does not lower your scale, so the next step overflows too.",
        "max(1, right)": "the scale may fall below 1; gradients that overflow unscaled need that.",
        "scale_after(overflows, scale, growth_interval, again=False)": "after a doubling the count starts again.",
    },
    hints=(
        "Which two numbers does the scaler carry from step to step?",
        "Carry the scale and the count of clean steps in a row. Overflow: halve, count from 0. Clean: count up, and at "
        "growth_interval double and count from 0.",
        "if overflow: scale, clean = scale / 2, ___",
    ),
    checked="clean runs, overflows in a row, an overflow in the middle of a count, and no step at all.",
)
def scale_after(overflows, scale, growth_interval, *, reset=True, again=True):
    clean = 0
    for overflow in overflows:
        clean = clean + 1 if not overflow else (0 if reset else clean)
        if overflow:
            scale = scale / 2
        elif clean >= growth_interval:
            scale, clean = scale * 2, 0 if again else clean
    return scale


def _norm(gradient):
    return float(torch.linalg.vector_norm(gradient))


@exercise(
    "16.3",
    cases=lambda: {
        "true gradient (3, 4), max_norm 1": (torch.tensor([3.0, 4.0]).double() * 1024, 1024.0, 1.0),
        "true gradient (0.03, 0.04), scale 4, max_norm 1": (torch.tensor([0.03, 0.04]).double() * 4, 4.0, 1.0),
        "true gradient (0.03, 0.04), scale 1024, max_norm 1": (torch.tensor([0.03, 0.04]).double() * 1024, 1024.0, 1.0),
        "a gradient of zeros": (torch.zeros(3).double(), 1024.0, 1.0),
        "scale 1, gradient (6, −8, 0)": (torch.tensor([6.0, -8.0, 0.0]).double(), 1.0, 2.0),
    },
    mistakes={
        "right_if(scale=1) / scale": "you clipped the scaled gradient, whose norm is scale times too large. Unscale first.",
        "right_if(scale=1)": "you never divided by the scale, and clipped the scaled gradient.",
        "right * scale": "the factor of the clipping is right, and the result is still scaled.",
        "scaled_gradient / scale": "that is unscaled, and not clipped.",
        "scaled_gradient / scale * (max_norm / (_norm(scaled_gradient / scale) or 1))": "a gradient that is "
        "shorter than max_norm stays as it is; you stretched it.",
        "(scaled_gradient / scale).clamp(-max_norm, max_norm)": "you cut every element on its own, which turns the gradient.",
    },
    hints=(
        "max_norm is meant for the true gradient. What do you hold?",
        "Divide by the scale. Take the norm. If it is above max_norm, multiply everything by max_norm / norm.",
        "gradient = scaled_gradient / ___; norm = gradient.norm(); return gradient * (max_norm / norm) if norm > ___ else ___",
    ),
    checked="a long gradient, a short one and one of zeros that must stay, and scale 1.",
    tolerance=1e-5,  # library functions divide by the norm plus 1e-6
)
def clipped(scaled_gradient, scale, max_norm):
    gradient = scaled_gradient / scale
    norm = _norm(gradient)
    return gradient * (max_norm / norm) if norm > max_norm else gradient


@exercise(
    "16.4",
    cases={
        "values 1, −2, 0.5 in E4M3": ([1.0, -2.0, 0.5], 448.0),
        "values 1e-6, 3e-6 in E4M3": ([1e-6, 3e-6], 448.0),
        "values 1000, 10 in E5M2": ([1000.0, 10.0], 57344.0),
        "only zeros": ([0.0, 0.0], 448.0),
    },
    mistakes={
        "1 / right": "that brings values into the format. Asked is the factor that brings them back: x ≈ q · scale.",
        "max(values) / largest or 1.0": "the largest magnitude belongs to a negative number. Take the absolute value.",
        "right_if(largest=448.0)": "448 is E4M3's largest number. Take the one that is given.",
        "right_if(largest=1.0)": "that puts the largest magnitude on 1, and leaves the range above 1 unused.",
        "right * any(values)": "values are divided by the scale, and a tensor of zeros must not divide by 0.",
        "max(1.0, right)": "small tensors need their scale most. Without one they fall below the smallest number.",
    },
    hints=(
        "Which number of the tensor should land on the largest number of the format?",
        "x ≈ q · scale, and the largest |x| gets q = largest. Zeros need a scale that can be divided by.",
        "amax = max(abs(v) for v in values); return amax / ___ if amax else ___",
    ),
    checked="E4M3 and E5M2, tiny and large values, a negative maximum, and zeros.",
    tolerance=1e-6,  # an answer in fp32 is right too
)
def fp8_scale(values, largest):
    amax = max(abs(value) for value in values)
    return amax / largest if amax else 1.0


@exercise(
    "16.5",
    cases={
        "100 and 60 bytes a sequence, 250 of copies": (100, 60, 250),
        "345,344 and 226,560 bytes a sequence, 229,380 of copies": (345_344, 226_560, 229_380),
        "100 and 60 bytes a sequence, 80 of copies": (100, 60, 80),
        "100 and 60 bytes a sequence, 79 of copies": (100, 60, 79),
        "no copies": (100, 60, 0),
    },
    mistakes={
        "right - 1": "at that batch autocast does not keep fewer bytes yet. Round up, and a draw is not fewer.",
        "max(right_if(copies_bytes=copies_bytes - 1), 0)": "there both keep the same, and fewer is asked: take one more.",
        "1": "the copies of the weights are kept at any batch size.",
        "right_if(autocast_bytes=0)": "per sequence autocast saves the difference, not all of fp32's bytes.",
        "copies_bytes / (fp32_bytes - autocast_bytes)": "a batch is a whole number of sequences, and a draw is not fewer.",
    },
    hints=(
        "Write the bytes of both as a function of B. Which of the two has a constant?",
        "fp32 keeps a·B, autocast c·B + w. Ask for c·B + w < a·B and solve for the smallest whole B.",
        "return copies_bytes // (___ - ___) + 1",
    ),
    checked="the decoder of this lesson, an exact draw, one byte below a draw, and no copies.",
)
def smallest_batch(fp32_bytes, autocast_bytes, copies_bytes):
    return copies_bytes // (fp32_bytes - autocast_bytes) + 1
