"""Exercises 05.3 and 05.4: intensity of a linear layer, and the batch that reaches the ridge."""

import math
from fractions import Fraction

from cs336kit.teach.exercises.core import Case, Exercise, Mistake


def intensity(tokens, d_in, d_out, p):
    return 2 * tokens * d_in * d_out / (p * (tokens * d_in + d_in * d_out + tokens * d_out))


INTENSITY = Exercise(
    id="05.3",
    reference=intensity,
    cases=lambda: [
        Case((1, 8192, 8192, 2), label="one token, D = 8192, bf16"),
        Case((4096, 4096, 4096, 2), label="4096 tokens, D = 4096, bf16"),
        Case((128, 512, 2048, 4), label="128 tokens, 512 to 2048, fp32"),
    ],
    mistakes=(
        Mistake(
            lambda n, d, f, p: intensity(n, d, f, p) / 2,
            "A factor of 2 is missing: for {case} you returned {given}, half of it. Each element pair is a multiply and an "
            "add.",
        ),
        Mistake(
            lambda n, d, f, p: intensity(n, d, f, p) * p,
            "These are FLOPs per element: for {case} you returned {given}. An element has p bytes.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n / p,
            "You counted the bytes of the weight alone: for {case} you returned {given}. That is the limit for few tokens; "
            "the input is read and the output written too.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n * d * f / (p * (n * d + d * f)),
            "The output is missing among the bytes: for {case} you returned {given}. It has to be written.",
        ),
        Mistake(
            lambda n, d, f, p: 1 / intensity(n, d, f, p),
            "This is bytes per FLOP: for {case} you returned {given}. Intensity is the other way round.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n * d * f / (p * (d * f + n * f)),
            "The input is missing among the bytes: for {case} you returned {given}. It has to be read.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n * d * f / (p * (n * d + n * f)),
            "The weight is missing among the bytes: for {case} you returned {given}. It lies in memory and is read too.",
        ),
        Mistake(
            lambda n, d, f, p: 2 * n * d * d / (p * (2 * n * d + d * d)),
            "You took a square layer: for {case} you returned {given}. d_in and d_out may differ.",
        ),
        Mistake(
            lambda n, d, f, p: intensity(n, d, f, p) * p * p,
            "p stands above: for {case} you returned {given}. Larger elements mean more bytes, and fewer FLOPs for each.",
        ),
    ),
    hints=(
        "Which three matrices cross between the chip and its memory?",
        "FLOPs: 2 · tokens · d_in · d_out. Bytes: p times the elements of input, weight and output. Divide.",
        "return 2 * tokens * d_in * d_out / (p * (tokens * d_in + ___ + ___))",
    ),
    checked="one token, 4096 tokens, and a widening layer in fp32.",
)


def smallest_batch(ridge, d, p):
    # 2Bd²/(p(2Bd + d²)) ≥ ridge, solved for B; Fractions, because a rounding error at the boundary costs a whole token.
    ridge = Fraction(ridge)
    below = 2 * d * d - 2 * p * d * ridge
    return None if below <= 0 else max(1, math.ceil(p * d * d * ridge / below))


def _floored(ridge, d, p):
    exact = smallest_batch(ridge, d, p)
    return exact if exact is None or exact == 1 else exact - 1


def _one_more(ridge, d, p):
    exact = Fraction(p * d * d * ridge, 2 * d * d - 2 * p * d * ridge) if d > p * ridge else None
    return exact and math.floor(exact) + 1


def _unguarded(ridge, d, p):
    return math.ceil(Fraction(p * d * d * ridge, (2 * d * d - 2 * p * d * ridge) or 1))


def _one_of_two(ridge, d, p):
    below = 2 * d * d - p * d * ridge
    return math.ceil(Fraction(p * d * d * ridge, below)) if below > 0 else None


BATCH = Exercise(
    id="05.4",
    reference=smallest_batch,
    cases=lambda: [
        Case((153, 8192, 2), label="an A100, D = 8192"),
        Case((295, 8192, 2), label="an H100, D = 8192"),
        Case((295, 4096, 2), label="an H100, D = 4096"),
        Case((295, 256, 2), label="an H100, D = 256"),
        Case((64, 512, 4), label="ridge 64, D = 512, fp32"),
        Case((1, 64, 2), label="a chip with ridge 1"),
    ],
    mistakes=(
        Mistake(
            lambda ridge, d, p: ridge * p // 2,
            "You counted the weight's bytes alone: for {case} you returned {given}. Then intensity is 2·tokens/p, which is "
            "a little too high: inputs and outputs cross too.",
        ),
        Mistake(
            _floored,
            "For {case} you returned {given}: one token short. At that batch the intensity is still below the ridge; round "
            "up.",
        ),
        Mistake(
            lambda ridge, d, p: smallest_batch(2 * ridge, d, p),
            "For {case} you returned {given}: the factor 2 of the FLOPs (a multiply and an add) is missing.",
        ),
        Mistake(
            lambda ridge, d, p: smallest_batch(ridge, d, 1),
            "For {case} you returned {given}: that is for elements of one byte. p bytes cross for each.",
        ),
        Mistake(
            _unguarded,
            "For {case} you returned {given}: there the ridge lies above D/p, which no number of tokens reaches, and the "
            "division turns negative. Return None.",
        ),
        Mistake(
            lambda *given: smallest_batch(*given) or 0,
            "For {case} you returned {given}: no batch reaches the ridge there. Return None, which is not the number 0.",
        ),
        Mistake(
            _one_more,
            "For {case} you returned {given}: one token too many. Where the division comes out even, the intensity equals "
            "the ridge, and that is enough.",
        ),
        Mistake(
            lambda ridge, d, p: smallest_batch(ridge, d, 2),
            "For {case} you returned {given}: that is for two bytes per element; here it is p.",
        ),
        Mistake(
            _one_of_two,
            "For {case} you returned {given}: B·D is counted once among the elements. The input is read, and the output, just "
            "as large, is written.",
        ),
    ),
    hints=(
        "As tokens grow, where does the intensity of a square layer go? Is the ridge always below that limit?",
        "Solve 2·B·D² ≥ ridge · p · (2·B·D + D²) for B. If the ridge is D/p or more, there is no answer: None. Round up.",
        "B ≥ ridge·p·D² / (2·D² − 2·p·D·ridge), so: math.ceil of that, or None where the denominator is ___ or less",
    ),
    checked="an A100 and an H100 at several widths, fp32, a layer too narrow for any batch, and a ridge of 1.",
)
