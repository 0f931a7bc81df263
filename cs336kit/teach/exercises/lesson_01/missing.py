"""Exercise 01.2: the first whole number that is missing."""

from cs336kit.teach.exercises.core import Case, Exercise
from cs336kit.teach.exercises.lesson_01.wording import wrong


def _first_missing(fraction_bits):
    return 2 ** (fraction_bits + 1) + 1


def _formats_by_fraction():
    named = ((10, "fp16"), (7, "bf16"), (23, "fp32"), (3, "E4M3"), (52, "fp64"))
    return [Case(args=(bits,), label=f"{name} (fraction_bits={bits})") for bits, name in named]


EXERCISE = Exercise(
    id="01.2",
    reference=_first_missing,
    cases=_formats_by_fraction,
    mistakes=(
        wrong(
            lambda fraction_bits: 2**fraction_bits + 1,
            ", which it does hold: the implied leading 1 is one more bit of the whole number.",
        ),
        wrong(
            lambda fraction_bits: 2 ** (fraction_bits + 1),
            ". That is a power of two, so it is there; the next whole number is not.",
        ),
        wrong(
            lambda fraction_bits: 2 ** (fraction_bits + 1) - 1,
            ", whose bits are all ones and just fit: go on counting.",
        ),
        wrong(
            lambda fraction_bits: 2 ** (fraction_bits + 2) + 1,
            ": up there the steps are already 4, one power of two too far.",
        ),
        wrong(
            lambda fraction_bits: 2**fraction_bits,
            ". That is a power of two, so it is there, and the steps from there on are still 1.",
        ),
        wrong(
            lambda fraction_bits: 2.0 ** (fraction_bits + 1) + 1,
            ": Python's floats are fp64, which misses this number itself. Compute with whole numbers, 2 and not 2.0.",
        ),
    ),
    hints=(
        "From which power of two on is the spacing larger than 1?",
        "In [2**k, 2**(k+1)) the spacing is 2**(k - fraction_bits). Set it to 2.",
        "The spacing is 2 from 2**(fraction_bits + ___) on; that power itself is still there.",
    ),
    checked="fp16, bf16, fp32, E4M3 and fp64.",
    tolerance=0,
)
