"""Block formats: a group of small elements that share one scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cs336kit.predict.checks import one_of, positive_int, positive_number, shown
from cs336kit.predict.number_format import NumberFormat


@dataclass(frozen=True)
class QuantizedBlock:
    """One block in memory: a scale and the codes of its elements."""

    #: The factor of every element: the decoded scale, times the tensor's own scale if there is one.
    factor: float
    #: The code of the scale.
    scale_code: int
    #: The code of each element.
    codes: tuple[int, ...]
    #: The numbers that the block represents.
    values: tuple[float, ...]


@dataclass(frozen=True)
class BlockFormat:
    """Elements in a small format with a scale per block, and for NVFP4 one more per tensor.

    - scale_rule "power_of_two" (the MX formats): the scale is 2 to the exponent of the block's largest magnitude, minus
      the exponent of the element format's largest value; what is still too large saturates.
    - scale_rule "largest" (NVFP4): the scale maps the block's largest magnitude to the element format's largest value,
      rounded to the scale format, after a tensor scale (fp32, not rounded here) has done the same for the scales.

    Source: OCP Microscaling Formats 1.0, sections 5 and 6; NVIDIA's NVFP4 as in Transformer Engine.
    """

    name: str
    #: The format of one element.
    element: NumberFormat
    #: The format of the scale.
    scale: NumberFormat
    #: Elements that share a scale.
    block_size: int
    #: "power_of_two" or "largest".
    scale_rule: str = "power_of_two"

    def __post_init__(self) -> None:
        for part in ("element", "scale"):
            if not isinstance(getattr(self, part), NumberFormat):
                raise ValueError(
                    f"{self.name}: {part} must be a NumberFormat, got {shown(getattr(self, part))}: FORMATS has some."
                )
        object.__setattr__(self, "block_size", positive_int("block_size", self.block_size))
        one_of("scale_rule", self.scale_rule, ("power_of_two", "largest"))

    @property
    def bytes(self) -> float:
        """Bytes per element, with its share of the scale: 4.25 bits for mxfp4."""
        return (self.element.bits + self.scale.bits / self.block_size) / 8

    @property
    def max(self) -> float:
        """The largest finite value: the largest element under the largest scale (and a tensor scale of 1)."""
        return self.element.max * self.scale.max

    def quantize(self, values: Sequence[float], *, tensor_scale: float | None = None) -> tuple[QuantizedBlock, ...]:
        """The blocks that represent a row of finite floats; `dequantize` returns their values.

        tensor_scale: the factor in front of all blocks; when not given, 1 for power_of_two, and for "largest" the one
        that uses the whole range of the scales.
        """
        values = self._floats(values)
        if not all(map(math.isfinite, values)):
            raise ValueError(f"{self.name} takes finite numbers: a shared scale cannot hold an infinity or a NaN.")
        scale = self.tensor_scale(values) if tensor_scale is None else tensor_scale
        scale = float(positive_number("tensor_scale", scale))
        starts = range(0, len(values), self.block_size)
        return tuple(self._block(values[start : start + self.block_size], scale) for start in starts)

    def dequantize(self, blocks: Sequence[QuantizedBlock]) -> list[float]:
        """The values of the blocks, one after the other."""
        return [x for block in blocks for x in block.values]

    def tensor_scale(self, values: Sequence[float]) -> float:
        """The factor that maps the largest magnitude of a tensor to the format's largest value (1 for MX)."""
        largest = max(map(abs, self._floats(values)), default=0.0)
        if self.scale_rule == "power_of_two" or largest == 0:
            return 1.0
        return max(largest / self.max, math.ulp(0.0))  # a factor of 0 would lose every value

    def _floats(self, values: Sequence[float]) -> list[float]:
        try:
            return [float(x) for x in values]
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{self.name} takes a row of numbers, got {shown(values)}.") from None

    def _block(self, values: Sequence[float], tensor_scale: float) -> QuantizedBlock:
        largest = max(map(abs, values)) / tensor_scale
        if largest == 0:
            wanted = 1.0
        elif self.scale_rule == "power_of_two":
            exponent = math.frexp(largest)[1] - 1 - self.element.max_exponent
            wanted = math.ldexp(1.0, max(self.scale.min_exponent, min(self.scale.max_exponent, exponent)))
        else:
            wanted = largest / self.element.max
        scale_code = self.scale.encode(wanted, overflow="saturate")
        factor = self.scale.decode(scale_code) * tensor_scale
        codes = tuple(self.element.encode(x / factor if factor else 0.0, overflow="saturate") for x in values)
        return QuantizedBlock(factor, scale_code, codes, tuple(self.element.decode(code) * factor for code in codes))
