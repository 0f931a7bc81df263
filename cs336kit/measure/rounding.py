"""Round whole arrays to a format: a fast, independent implementation of `NumberFormat.round`."""

from typing import Any

import numpy

from cs336kit.predict import NumberFormat


def rounded(
    values: Any, number_format: NumberFormat, *, mode: str = "nearest_even", overflow: str = "saturate", seed: int | None = None
) -> numpy.ndarray:  # fmt: skip
    """Round an array to the values of a `predict.NumberFormat`; returns a float64 array.

    Every value is divided by the spacing around it, rounded to an integer, and multiplied back; float64 does this without
    error for formats of at most 32 bits.
    mode: nearest_even, toward_zero or stochastic (needs a seed). overflow: nan, inf, or saturate, the default here, unlike
    in `NumberFormat.round`; toward_zero always saturates finite values.
    Raises ValueError for other modes, and for a NaN or infinity that the format lacks. Left out: formats without zero or
    sign.
    """
    if number_format.bits > 32 or not number_format.signed or not number_format.subnormals:
        raise ValueError(f"{number_format.name} is not supported here: use its own round() for single numbers.")
    if mode == "stochastic" and seed is None:
        raise ValueError("mode='stochastic' draws random numbers: give it seed=0.")
    if overflow not in ("saturate", "nan", "inf"):
        raise ValueError(f"overflow={overflow!r} is unknown; known are saturate, nan, inf.")
    if overflow == "inf" and not number_format.infinities:
        raise ValueError(f"{number_format.name} has no infinity: use overflow='saturate' or overflow='nan'.")
    if overflow == "nan" and number_format.nan == "none":
        raise ValueError(f"{number_format.name} has no NaN: use overflow='saturate'.")
    x = numpy.asarray(values, dtype=numpy.float64)
    if number_format.nan == "none" and numpy.isnan(x).any():
        raise ValueError(f"{number_format.name} has no NaN, but the array contains one: remove it.")
    _, exponent = numpy.frexp(x)
    places = number_format.fraction_bits - numpy.maximum(exponent - 1, number_format.min_exponent)
    with numpy.errstate(over="ignore", invalid="ignore"):
        units = numpy.ldexp(x, places)
        if mode == "nearest_even":
            units = numpy.rint(units)
        elif mode == "toward_zero":
            units = numpy.trunc(units)
        elif mode == "stochastic":
            units = numpy.floor(units + numpy.random.default_rng(seed).random(x.shape))
        else:
            raise ValueError(f"mode={mode!r} is unknown; known are nearest_even, toward_zero, stochastic.")
        result = numpy.ldexp(units, -places)
    limit: Any = {"saturate": number_format.max, "nan": numpy.nan, "inf": numpy.inf}[overflow]
    too_large = numpy.abs(result) > number_format.max
    if mode == "toward_zero":
        limit = numpy.where(numpy.isfinite(x), number_format.max, limit)
    return numpy.where(too_large, numpy.copysign(limit, result), result)
