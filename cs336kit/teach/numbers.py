"""How the course writes a number and its unit, in one place, so that all tables and figures agree."""

import math
import numbers
from decimal import Decimal
from typing import Any

#: Units by family. Two families of the same kind (decimal and binary bytes) are never mixed in one table.
UNITS = {
    "decimal bytes": ("kB", "MB", "GB", "TB", "GB/s", "TB/s"),
    "binary bytes": ("KiB", "MiB", "GiB", "TiB", "GiB/s"),
    "plain bytes": ("bytes", "bytes/element", "bytes/parameter", "bits"),
    "compute": ("FLOPs", "GFLOPs", "TFLOPs", "FLOP/s", "GFLOP/s", "TFLOP/s", "FLOPs/byte", "FLOPs/token"),
    "time": ("days", "h", "s", "ms", "µs", "ns"),
    "counts": ("parameters", "elements", "tokens", "values", "codes", "steps", "ratio", "%", ""),
}
KNOWN_UNITS = tuple(unit for family in UNITS.values() for unit in family)

_SI = (("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12), ("P", 10**15), ("E", 10**18))


def check_unit(unit: str) -> str:
    """Return `unit`, or raise a ValueError that lists the units the course knows."""
    if unit not in KNOWN_UNITS:
        known = ", ".join(u for u in KNOWN_UNITS if u)
        raise ValueError(f"unknown unit {unit!r}; the course writes {known}, or '' for a number without a unit")
    return unit


def as_python(value: Any) -> Any:
    """A plain Python value for one of torch's or numpy's scalars; anything else unchanged."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    return value


def text(value: Any) -> str:
    """Write one value: an int in full with thousands separators, a float to six significant digits."""
    value = as_python(value)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}" if abs(int(value)) < 10**18 else _large(int(value))
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return f"{int(value):,}"
        return f"{value:.6g}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(str(as_python(item)) for item in value) + ("," if len(value) == 1 else "") + ")"
    return str(value)


def _large(value: int) -> str:
    """Six significant digits, also of what no float can hold."""
    digits, _, exponent = f"{Decimal(value):.5e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{exponent}"


def gib(count: float) -> str:
    """Bytes in GiB (2**30 bytes), for example ``2.25 GiB``."""
    return f"{_finite(count) / 2**30:.4g} GiB"


def si(value: float, unit: str) -> str:
    """A number with an SI prefix, for example ``312 TFLOP/s``; four significant digits.

    ``FLOPs``, ``FLOP/s``, ``bytes/s`` and the like take the prefix; beyond exa the number is written with an exponent.
    """
    # As it will be written: 999,999 is 1 M, not 1000 k.
    magnitude = abs(float(f"{_finite(value):.4g}"))
    prefix, scale = [(p, s) for p, s in _SI if magnitude >= s or s == 1][-1]
    if magnitude >= 1e21:
        return f"{value:.4g} {unit}"
    return f"{value / scale:.4g} {prefix}{unit}"


def _finite(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ValueError(f"this needs a finite number, not {value!r}")
    return value
