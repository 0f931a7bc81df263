"""One floating-point format, described by its bit counts and a few flags, from which every property follows.

A code of the format is `sign . exponent field . fraction field`. Write E for the exponent field, f for the fraction
field read as an integer, and m for the number of fraction bits. Then

    value = ± (1 + f/2^m) · 2^(E - bias)    a normal number
    value = ± (0 + f/2^m) · 2^(1 - bias)    E = 0, a subnormal number (and zero)

with bias = 2^(exponent bits - 1) - 1, and the flags say which codes at the top are not numbers.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real

from cs336kit.predict.checks import checked, non_negative_int, one_of, shown

#: Where a format has its NaN. ieee: the top exponent field, where a zero fraction means infinity; all_ones: for each sign, the
#: code whose bits are all one; none: nowhere. Only ieee has infinities.
NAN_RULES = ("ieee", "all_ones", "none")
#: What becomes of a value that is too large after rounding.
OVERFLOWS = ("inf", "nan", "saturate")


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
    #: One of NAN_RULES.
    nan: str = "ieee"
    #: False for a format that has no sign bit.
    signed: bool = True
    #: False when exponent field 0 is like any other: then there is no zero.
    subnormals: bool = True
    #: Bits of one number in memory, if that is more than its own bits (tf32 is stored in a 32-bit word).
    storage_bits: int = None  # type: ignore[assignment] # an int from __post_init__ on

    def __post_init__(self) -> None:
        for name, value in checked(self, fraction_bits=non_negative_int).items():
            object.__setattr__(self, name, value)
        if self.exponent_bits > 11 or self.fraction_bits > 52:
            raise ValueError(
                f"{self.name}: {self.exponent_bits} exponent and {self.fraction_bits} fraction bits do not fit into fp64: "
                "use 1 to 11 exponent bits and 0 to 52 fraction bits."
            )
        one_of("rule for nan", self.nan, NAN_RULES)
        if self.infinities and self.fraction_bits == 0:
            raise ValueError(
                f"{self.name}: nan='ieee' tells infinity and NaN apart by the fraction, so give it a fraction bit."
            )
        stored = self.bits if self.storage_bits is None else self.storage_bits
        object.__setattr__(self, "storage_bits", stored)
        if stored < self.bits:
            raise ValueError(f"{self.name}: {self.bits} bits do not fit into storage_bits={self.storage_bits}.")
        if self.max_exponent > 1023 or self.min_exponent - self.fraction_bits < -1074:
            raise ValueError(f"{self.name}: its values leave the range of fp64.")

    # Bits and codes

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field: half of its range."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinities(self) -> bool:
        """Whether the top exponent field with a zero fraction means infinity."""
        return self.nan == "ieee"

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
        magnitudes = 1 << (self.exponent_bits + self.fraction_bits)
        if self.infinities:
            return magnitudes - (1 << self.fraction_bits) - 1
        return magnitudes - 2 if self.nan == "all_ones" else magnitudes - 1

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
        if magnitude > self.largest:
            return sign * math.inf if self.infinities and magnitude == self.largest + 1 else math.nan
        field, fraction = magnitude >> self.fraction_bits, magnitude & (2**self.fraction_bits - 1)
        if self.subnormals and field == 0:
            return sign * math.ldexp(fraction, self.min_exponent - self.fraction_bits)
        return sign * math.ldexp(2**self.fraction_bits + fraction, field - self.bias - self.fraction_bits)

    def encode(self, x: float, *, overflow: str | None = None) -> int:
        """The code of the value nearest to x; of two that are equally near, the one with an even significand.

        overflow: what a value becomes that is too large after rounding, one of OVERFLOWS; when not given, infinity if the
        format has one, else NaN if it has one, else saturate. An infinite x overflows.
        A format without zero (E8M0) represents 0 as NaN and anything below its smallest value as that value; a format without
        a sign represents negative numbers as NaN. Raises ValueError if the answer is a NaN or an infinity that the format lacks.
        Source: IEEE 754-2019, sections 4.3 and 7.4; OCP 8-bit Floating Point Specification 1.0, section 5.2.
        """
        if overflow is not None:
            one_of("overflow", overflow, OVERFLOWS)
        try:
            x = float(x)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.name} rounds numbers that a float can hold, got {shown(x)}.") from None
        negative = math.copysign(1.0, x) < 0
        if math.isnan(x) or (negative and not self.signed) or (x == 0 and not self.subnormals):
            return self._nan(x)
        magnitude = self.largest + 1 if math.isinf(x) else self._nearest(abs(x))
        if magnitude > self.largest:
            magnitude = self._overflowed(x, overflow)
        return magnitude + (negative << (self.bits - 1))

    def round(self, x: float, *, overflow: str | None = None) -> float:
        """The value nearest to x; see `encode`."""
        return self.decode(self.encode(x, overflow=overflow))

    def _nearest(self, x: float) -> int:
        """The code for x ≥ 0 as if the exponent had no upper end."""
        if x == 0:
            return 0
        binade = max(math.frexp(x)[1] - 1, self.min_exponent)
        # Steps of 2^(binade - fraction_bits). The float is scaled exactly, so it is rounded once, ties to the even number.
        steps = round(math.ldexp(x, self.fraction_bits - binade))
        # The codes of one binade follow those of the one below it, so adding the steps to the start of the binade gives the
        # code, carries included.
        steps_below = (binade - self.min_exponent) << self.fraction_bits
        no_subnormals = 0 if self.subnormals else 1 << self.fraction_bits
        return max(steps_below + steps - no_subnormals, 0)

    def _overflowed(self, x: float, overflow: str | None) -> int:
        """The magnitude code for a value that is too large."""
        if overflow is None:
            overflow = {"ieee": "inf", "all_ones": "nan", "none": "saturate"}[self.nan]
        if overflow == "saturate":
            return self.largest
        if overflow == "nan":
            return self._nan(x)
        if not self.infinities:
            raise ValueError(f"{self.name} has no infinity for {x}: use overflow='saturate' or overflow='nan'.")
        return self.largest + 1

    def _nan(self, x: float) -> int:
        """The code that stands for NaN."""
        if self.nan == "none":
            raise ValueError(f"{self.name} has no NaN, and {x} has no other code there.")
        quiet = 1 << (self.fraction_bits - 1) if self.infinities else 0
        return self.largest + 1 + quiet

    def values(self) -> list[float]:
        """All finite values in order, for formats of at most 16 bits."""
        if self.bits > 16:
            raise ValueError(f"{self.name} has {self.codes:,} codes: only formats of at most 16 bits are listed.")
        return sorted({x for x in map(self.decode, range(self.codes)) if math.isfinite(x)})

    def _checked(self, code: object) -> int:
        if isinstance(code, bool) or not isinstance(code, Integral) or not 0 <= int(code) < self.codes:
            raise ValueError(f"{shown(code)} is not a code of {self.name}: give an integer from 0 to {self.codes - 1}.")
        return int(code)
