"""Quantized weights: the bytes of a matrix with its scales."""

from dataclasses import dataclass

from cs336kit.predict.checks import known, positive_int


@dataclass(frozen=True)
class Packing:
    """Codes of `bits`, a scale of `scale_bits` (and a zero point of `zero_bits`) for every `group` of weights.

    `group` 0: one scale for each row of the matrix, too few to count here. With `scales` above 0, the scales are quantized, too,
    with one fp32 for this many of them.
    """

    bits: int
    group: int
    scale_bits: int
    zero_bits: int = 0
    scales: int = 0
    source: str = ""

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight, including its share of the scales."""
        return self.bits + self._scale_bits / self.group if self.group else float(self.bits)

    @property
    def _scale_bits(self) -> float:
        return self.scale_bits + self.zero_bits + (32 / self.scales if self.scales else 0)


#: How frozen or served weights are quantized, by name.
PACKINGS = {
    "nf4": Packing(
        4, 64, 8, scales=256,
        source="Dettmers et al. 2023, arXiv:2305.14314, section 3: one absmax per 64 weights, itself 8-bit, one fp32 per 256",
    ),
    "int4": Packing(4, 128, 16, zero_bits=4, source="as AWQ and GPTQ store it: fp16 scale, 4-bit zero point per 128 weights"),
    "int4-g32": Packing(4, 32, 16, source="as compressed-tensors stores it for Kimi K2 Thinking: bf16 scale per 32 weights"),
    "mxfp4": Packing(4, 32, 8, source="OCP Microscaling Formats v1.0, section 5: E2M1 elements, one E8M0 scale for 32"),
    "int8": Packing(8, 0, 0, source="Dettmers et al. 2022, arXiv:2208.07339: one scale for each row"),
    "fp8": Packing(8, 0, 0, source="one scale for each matrix or row"),
}  # fmt: skip
#: Suffix of a packing's name: only the matrices of experts are quantized.
EXPERTS = "-experts"


def packed_bytes(elements: int, packing: str) -> int:
    """Bytes of a quantized matrix of `elements` weights with its scales; each kind of number is rounded up separately.

    `packing`: a name of PACKINGS, such as "int4". Left out: one scale for each row (int8, fp8), and the library's
    own objects.
    """
    elements, kind = positive_int("elements", elements), known("packing", packing, PACKINGS)
    size = -(-elements * kind.bits // 8)
    if kind.group:
        groups = -(-elements // kind.group)
        size += -(-groups * (kind.scale_bits + kind.zero_bits) // 8)
        size += 4 * -(-groups // kind.scales) if kind.scales else 0
    return size
