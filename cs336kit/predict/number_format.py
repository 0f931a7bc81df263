"""One floating-point format, described by its bit counts and a few flags, from which every property follows.

A code of the format is `sign . exponent field . fraction field`. Write E for the exponent field, f for the fraction
field read as an integer, and m for the number of fraction bits. Then

    value = ± (1 + f/2^m) · 2^(E - bias)    a normal number
    value = ± (0 + f/2^m) · 2^(1 - bias)    E = 0, a subnormal number (and zero)

and the flags say which codes at the top are not numbers.
"""

import math
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from cs336kit.predict import rounding
from cs336kit.predict._common.checks import boolean, non_negative_int, positive_int, shown

#: Where a format has its NaN. ieee: the whole top exponent field (with the infinities); all_ones: for each sign, the code
#: whose bits are all one; negative_zero: the code of -0; none: nowhere.
NAN_RULES = ("ieee", "all_ones", "negative_zero", "none")


@dataclass(frozen=True)
class NumberFormat:
    """A binary floating-point format of at most 64 bits.

    Values are Python floats (fp64), which hold every value of every such format exactly.
    Left out: decimal formats, x86's 80-bit format with its explicit leading bit, NaN payloads.
    Source: IEEE 754-2019, section 3.4; OCP 8-bit Floating Point Specification 1.0, section 5.
    """

    name: str
    #: Bits of the exponent field.
    exponent_bits: int
    #: Bits of the fraction field, without the implied leading one.
    fraction_bits: int
    #: What is subtracted from the exponent field; half of its range when not given.
    bias: int = None  # type: ignore[assignment] # an int from __post_init__ on
    #: True when the top exponent field with a zero fraction means infinity.
    infinities: bool = True
    #: One of NAN_RULES.
    nan: str = "ieee"
    #: False for a format that has no sign bit.
    signed: bool = True
    #: False when exponent field 0 is like any other: then there is no zero.
    subnormals: bool = True
    #: Bits of one number in memory, if that is more than its own bits (tf32 is stored in a 32-bit word).
    storage_bits: int = None  # type: ignore[assignment] # likewise

    def __post_init__(self) -> None:
        for rule in ("infinities", "signed", "subnormals"):
            boolean(rule, getattr(self, rule))
        object.__setattr__(self, "exponent_bits", positive_int("exponent_bits", self.exponent_bits))
        object.__setattr__(self, "fraction_bits", non_negative_int("fraction_bits", self.fraction_bits))
        if self.exponent_bits > 11 or self.fraction_bits > 52:
            raise ValueError(
                f"{self.name}: {self.exponent_bits} exponent and {self.fraction_bits} fraction bits do not fit into fp64: "
                "use 1 to 11 exponent bits and 0 to 52 fraction bits."
            )
        if self.nan not in NAN_RULES:
            raise ValueError(f"{self.name}: nan={shown(self.nan)} is unknown; known are {', '.join(NAN_RULES)}.")
        if self.infinities and (self.nan != "ieee" or self.fraction_bits == 0):
            raise ValueError(
                f"{self.name}: infinities need nan='ieee', which shares their exponent, and a fraction bit."
            )
        if not self.infinities and self.nan == "ieee":
            raise ValueError(f"{self.name}: nan='ieee' reserves the top exponent, so give infinities=True too.")
        if self.nan == "negative_zero" and not (self.signed and self.subnormals):
            raise ValueError(
                f"{self.name}: nan='negative_zero' takes the code of −0, so give signed=True and subnormals=True."
            )
        bias = 2 ** (self.exponent_bits - 1) - 1 if self.bias is None else self.bias
        if isinstance(bias, bool) or not isinstance(bias, Integral):
            raise ValueError(f"{self.name}: bias must be a whole number, got {shown(bias)}.")
        object.__setattr__(self, "bias", int(bias))
        stored = self.bits if self.storage_bits is None else positive_int("storage_bits", self.storage_bits)
        object.__setattr__(self, "storage_bits", stored)
        if stored < self.bits:
            raise ValueError(f"{self.name}: {self.bits} bits do not fit into storage_bits={self.storage_bits}.")
        if self.max_exponent > 1023 or self.min_exponent - self.fraction_bits < -1074:
            raise ValueError(f"{self.name}: with bias {self.bias} its values leave the range of fp64.")

    # Bits and codes

    @property
    def bits(self) -> int:
        """Bits that carry information: sign, exponent and fraction."""
        return self.signed + self.exponent_bits + self.fraction_bits

    @property
    def bytes(self) -> float:
        """Bytes that one number takes in memory; 0.5 for a 4-bit format."""
        return self.storage_bits // 8 if self.storage_bits % 8 == 0 else self.storage_bits / 8

    @property
    def codes(self) -> int:
        """How many bit patterns there are."""
        return 1 << self.bits

    @property
    def largest(self) -> int:
        """The code of the largest finite value, as an integer."""
        magnitudes: int = 2 ** (self.exponent_bits + self.fraction_bits)
        if self.infinities:
            return magnitudes - (1 << self.fraction_bits) - 1
        return magnitudes - 2 if self.nan == "all_ones" else magnitudes - 1

    @property
    def largest_code(self) -> str:
        """The code of the largest finite value, as fields: '0.11110.1111111111' in fp16."""
        return self.fields(self.largest)

    @property
    def nan_codes(self) -> int:
        """How many codes mean NaN."""
        per_sign: int = {"ieee": 2**self.fraction_bits - 1, "all_ones": 1, "negative_zero": 0, "none": 0}[self.nan]
        return per_sign * (1 + self.signed) + (self.nan == "negative_zero")

    @property
    def infinite_codes(self) -> int:
        """How many codes mean an infinity."""
        return (1 + self.signed) * self.infinities

    @property
    def finite_codes(self) -> int:
        """How many codes mean a finite number; +0 and -0 are two codes."""
        return self.codes - self.nan_codes - self.infinite_codes

    @property
    def finite_values(self) -> int:
        """How many different finite numbers there are; +0 and -0 are one number."""
        two_zeros = self.signed and self.subnormals and self.nan != "negative_zero"
        return self.finite_codes - two_zeros

    # Range and precision

    @property
    def min_exponent(self) -> int:
        """The power of two of the smallest normal number."""
        return (1 if self.subnormals else 0) - self.bias

    @property
    def max_exponent(self) -> int:
        """The power of two of the largest finite number."""
        return (self.largest >> self.fraction_bits) - self.bias

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.decode(self.largest)

    @property
    def min_normal(self) -> float:
        """The smallest positive value with a full fraction."""
        return math.ldexp(1.0, self.min_exponent)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive value."""
        return math.ldexp(1.0, self.min_exponent - (self.fraction_bits if self.subnormals else 0))

    @property
    def eps(self) -> float:
        """The spacing of the values from 1 to 2."""
        return math.ldexp(1.0, -self.fraction_bits)

    def spacing(self, x: float) -> float:
        """The distance between neighboring values in the interval [2^k, 2^(k+1)) that holds |x|."""
        if isinstance(x, bool) or not isinstance(x, Real) or not abs(x) <= self.max:
            raise ValueError(f"{self.name} has no values around {shown(x)}: give a finite number up to {self.max}.")
        exponent = max(math.frexp(x)[1] - 1, self.min_exponent) if x else self.min_exponent
        return math.ldexp(1.0, exponent - self.fraction_bits)

    # Codes and values

    def fields(self, code: int) -> str:
        """The code as text, sign, exponent and fraction separated by points: '0.1111.110'."""
        digits = f"{self._checked(code):0{self.bits}b}"
        cut = self.signed + self.exponent_bits
        return ".".join(part for part in (digits[: self.signed], digits[self.signed : cut], digits[cut:]) if part)

    def decode(self, code: int | str) -> float:
        """The value of a code, given as an integer or as text ('0.1111.110')."""
        if isinstance(code, str):
            digits = code.replace(".", "").replace(" ", "")
            code = int(digits, 2) if digits and not set(digits) - {"0", "1"} else digits
        code = self._checked(code)
        magnitude = code & (2 ** (self.exponent_bits + self.fraction_bits) - 1)
        negative = code != magnitude
        sign = -1.0 if negative else 1.0
        if self.nan == "negative_zero" and negative and magnitude == 0:
            return math.nan
        if magnitude > self.largest:
            return sign * math.inf if self.infinities and magnitude == self.largest + 1 else math.nan
        field, fraction = magnitude >> self.fraction_bits, magnitude & (2**self.fraction_bits - 1)
        if self.subnormals and field == 0:
            return sign * math.ldexp(fraction, self.min_exponent - self.fraction_bits)
        return sign * math.ldexp(2**self.fraction_bits + fraction, field - self.bias - self.fraction_bits)

    def encode(self, x: float, *, mode: str = "nearest_even", overflow: str | None = None, random: Any = None) -> int:
        """The code of the value that x rounds to; see `predict.rounding.encode`."""
        return rounding.encode(self, x, mode=mode, overflow=overflow, random=random)

    def round(self, x: float, *, mode: str = "nearest_even", overflow: str | None = None, random: Any = None) -> float:
        """The value that x rounds to; see `predict.rounding.encode`."""
        return self.decode(self.encode(x, mode=mode, overflow=overflow, random=random))

    def values(self) -> list[float]:
        """All finite values in order, for formats of at most 16 bits."""
        if self.bits > 16:
            raise ValueError(f"{self.name} has {self.codes:,} codes: only formats of at most 16 bits are listed.")
        return sorted({x for x in map(self.decode, range(self.codes)) if math.isfinite(x)})

    def with_rules(self, **rules: Any) -> "NumberFormat":
        """The same bits with other rules: infinities, nan, subnormals, signed, bias.

        infinities=True also sets IEEE's NaN, and infinities=False leaves one NaN per sign, unless nan is given.
        """
        allowed = ("infinities", "nan", "subnormals", "signed", "bias")
        if unknown := sorted(set(rules) - set(allowed)):
            raise ValueError(f"{self.name} has no rule {unknown[0]!r}; the rules are {', '.join(allowed)}.")
        changed = ", ".join(f"{key}={value}" for key, value in rules.items())
        if "nan" not in rules and "infinities" in rules:
            kept = self.nan if self.nan != "ieee" else "all_ones"
            rules["nan"] = "ieee" if rules["infinities"] else kept
        return replace(self, name=f"{self.name} ({changed})", **rules)

    def _checked(self, code: object) -> int:
        if isinstance(code, bool) or not isinstance(code, Integral) or not 0 <= int(code) < self.codes:
            raise ValueError(f"{shown(code)} is not a code of {self.name}: give an integer from 0 to {self.codes - 1}.")
        return int(code)
