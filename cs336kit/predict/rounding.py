"""Rounding a real number to a code of a format, with integers only, so that nothing is rounded twice."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cs336kit.predict._common.checks import shown

if TYPE_CHECKING:
    from cs336kit.predict.number_format import NumberFormat

#: nearest_even: ties go to the even significand; nearest_away: ties go away from zero; toward_zero cuts off;
#: up and down go towards +∞ and -∞; stochastic goes up with the probability that keeps the mean.
MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic")
#: What becomes of a value that is too large after rounding.
OVERFLOWS = ("inf", "nan", "saturate")


def encode(
    number_format: "NumberFormat",
    x: float,
    *,
    mode: str = "nearest_even",
    overflow: str | None = None,
    random: Any = None,
) -> int:
    """The code (int) of the value that the float x rounds to in a format.

    - mode: one of MODES; stochastic needs random=random.Random(seed).
    - overflow: one of OVERFLOWS; when not given, infinity if the format has one, else NaN if it has one, else saturate.
      The modes that cut towards zero give the largest finite value instead, as IEEE 754 does. An infinite x overflows.

    A format without zero (E8M0) represents 0 as NaN and anything below its smallest value as that value; a format without a
    sign represents negative numbers as NaN.
    Raises ValueError for an unknown mode, and if the answer is a NaN or an infinity that the format lacks.
    Source: IEEE 754-2019, sections 4.3 and 7.4; OCP 8-bit Floating Point Specification 1.0, section 5.2.
    """
    if mode not in MODES:
        raise ValueError(f"mode={shown(mode)} is unknown; known are {', '.join(MODES)}.")
    if mode == "stochastic" and not hasattr(random, "randrange"):
        raise ValueError("mode='stochastic' draws random numbers: give it random=random.Random(seed).")
    if overflow not in (None, *OVERFLOWS):
        raise ValueError(f"overflow={shown(overflow)} is unknown; known are {', '.join(OVERFLOWS)}.")

    try:
        x = float(x)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{number_format.name} rounds numbers that a float can hold, got {shown(x)}.") from None
    negative = math.copysign(1.0, x) < 0
    if math.isnan(x) or (negative and not number_format.signed) or (x == 0 and not number_format.subnormals):
        return _nan(number_format, x)
    if math.isinf(x):
        magnitude = number_format.largest + 1
    else:
        magnitude = _magnitude(number_format, abs(x), _towards(mode, negative), random)
        if magnitude > number_format.largest and _towards(mode, negative) == "toward_zero":
            magnitude = number_format.largest
    if magnitude > number_format.largest:
        magnitude = _overflowed(number_format, x, overflow)
    if magnitude == 0 and number_format.nan == "negative_zero":
        return 0
    return magnitude + (negative << (number_format.bits - 1))


def _towards(mode: str, negative: bool) -> str:
    """The mode for the magnitude: depending on the sign, up and down mean away from zero or towards it."""
    if mode in ("up", "down"):
        return "away" if (mode == "down") == negative else "toward_zero"
    return mode


def _magnitude(number_format: "NumberFormat", x: float, mode: str, random: Any) -> int:
    """The code of x ≥ 0 as if the exponent had no upper end."""
    if x == 0:
        return 0
    fraction_bits = number_format.fraction_bits
    half_to_one, exponent = math.frexp(x)
    significand, unit = int(half_to_one * 2**53), exponent - 53  # x = significand · 2^unit, exactly
    binade = max(exponent - 1, number_format.min_exponent)
    cut = binade - fraction_bits - unit  # how many low bits of the significand are below the last fraction bit
    if cut <= 0:
        units = significand << -cut
    else:
        units, rest = significand >> cut, significand & ((1 << cut) - 1)
        half = 1 << (cut - 1)
        increments: dict[str, Callable[[], bool]] = {
            "nearest_even": lambda: rest > half or (rest == half and units % 2 == 1),
            "nearest_away": lambda: rest >= half,
            "toward_zero": lambda: False,
            "away": lambda: rest > 0,
            "stochastic": lambda: random.randrange(1 << cut) < rest,
        }
        units += increments[mode]()
    # units counts steps of 2^(binade - fraction_bits). The codes of one binade follow those of the one below it,
    # so adding the steps to the start of the binade gives the code, carries included.
    steps_below = (binade - number_format.min_exponent) << fraction_bits
    no_subnormals = 0 if number_format.subnormals else 1 << fraction_bits
    return max(steps_below + units - no_subnormals, 0)


def _overflowed(number_format: "NumberFormat", x: float, overflow: str | None) -> int:
    """The magnitude code for a value that is too large."""
    if overflow is None:
        overflow = "inf" if number_format.infinities else "nan" if number_format.nan != "none" else "saturate"
    if overflow == "saturate":
        return number_format.largest
    if overflow == "nan":
        return _nan(number_format, x)
    if not number_format.infinities:
        raise ValueError(f"{number_format.name} has no infinity for {x}: use overflow='saturate' or overflow='nan'.")
    return number_format.largest + 1


def _nan(number_format: "NumberFormat", x: float) -> int:
    """The code that stands for NaN."""
    if number_format.nan == "none":
        raise ValueError(f"{number_format.name} has no NaN, and {x} has no other code there.")
    if number_format.nan == "negative_zero":
        return 1 << (number_format.bits - 1)
    quiet = 1 << (number_format.fraction_bits - 1) if number_format.infinities else 0
    return number_format.largest + 1 + quiet
