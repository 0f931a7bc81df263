"""Quantized weights: the bytes of a matrix with its scales."""

import re
from dataclasses import dataclass

from cs336kit.predict.checks import known, non_negative_int, positive_int


@dataclass(frozen=True)
class Packing:
    """Codes of `bits`, a scale of `scale_bits` (and a zero point of `zero_bits`) for every `group` of weights.

    `group` 0: a scale of `scale_bits` for each row of the matrix, or, if that is 0, scales that are too few to count. With
    `scales` above 0, the scales are quantized, too, with one fp32 for this many of them. `table`: bytes of each matrix besides.
    """

    bits: int
    group: int
    scale_bits: int
    zero_bits: int = 0
    scales: int = 0
    table: int = 0
    source: str = ""

    @property
    def bits_per_weight(self) -> float:
        """Bits of a weight, including its share of the scales of its group."""
        return self.bits + self._scale_bits / self.group if self.group else float(self.bits)

    @property
    def _scale_bits(self) -> float:
        return self.scale_bits + self.zero_bits + (32 / self.scales if self.scales else 0)


_OCP = "OCP Microscaling Formats v1.0, section 5: one E8M0 scale for 32 elements of "
_MODELOPT = "NVIDIA/Model-Optimizer@0030d2b, modelopt/torch/export/convert_hf_config.py: "
#: How frozen or served weights are quantized, by name. `packing_called` also knows integers and codebooks of other sizes.
PACKINGS = {
    "nf4": Packing(
        4, 64, 8, scales=256,
        source="Dettmers et al. 2023, arXiv:2305.14314, section 3: one absmax per 64 weights, itself 8-bit, one fp32 per 256",
    ),
    "nf4-fp32": Packing(4, 64, 32, source="bitsandbytes without bnb_4bit_use_double_quant: one absmax in fp32 per 64 weights"),
    "int4": Packing(4, 128, 16, zero_bits=4, source="as AWQ and GPTQ store it: fp16 scale, 4-bit zero point per 128 weights"),
    "int4-g32": Packing(4, 32, 16, source="as compressed-tensors stores it for Kimi K2 Thinking: bf16 scale per 32 weights"),
    "nvfp4": Packing(4, 16, 8, table=4, source=f"{_MODELOPT}E2M1, one E4M3 scale for 16 weights, one in fp32 for the matrix"),
    "mxfp4": Packing(4, 32, 8, source=f"{_OCP}E2M1"),
    "mxfp6": Packing(6, 32, 8, source=f"{_OCP}E3M2 or E2M3"),
    "mxfp8": Packing(8, 32, 8, source=f"{_OCP}E4M3 or E5M2"),
    "int8": Packing(8, 0, 0, source="Dettmers et al. 2022, arXiv:2208.07339: one scale for each row"),
    "fp8": Packing(8, 0, 0, source=f"{_MODELOPT}FP8, one scale for each matrix"),
    "fp8-channel": Packing(8, 0, 32, source="transformers v5.23.0, integrations/fbgemm_fp8.py: one scale in fp32 for each row"),
    "fp8-block": Packing(
        8, 128 * 128, 32, source="DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2: one scale in fp32 for 128 × 128 weights"
    ),
    "bitnet": Packing(2, 0, 0, source="transformers v5.23.0, integrations/bitnet.py: four of -1, 0 and 1 in a byte"),
}  # fmt: skip
#: Suffix of a packing's name: only the matrices of experts are quantized.
EXPERTS = "-experts"
#: int4-g64: a scale of 16 bits for 64 integers of 4 bits, in int4-g64-zero a zero point of 4 bits beside it (GPTQ, AWQ), in
#: int4-g64-zero16 one of 16 bits (Int4WeightOnlyConfig of torchao 0.13); int4-channel: a scale for each row. So fp8-g128, too.
_GROUPS = re.compile(r"(?:int([2-8])|fp8)-(?:g([1-9]\d{0,4})(-zero(?:16)?)?|channel)")
#: aqlm-2x8-g8: two codes of 8 bits for 8 weights, each from a codebook of 2⁸ vectors of 8 fp16 that the matrix has, and a
#: scale in fp16 for each row. Source: Egiazarian et al. 2024, arXiv:2401.06118, section 3; AqlmConfig of transformers v5.23.0.
_CODEBOOKS = re.compile(r"aqlm-([1-9])x([1-9]|1[0-6])-g([1-9]\d{0,2})")


def packing_called(name: object) -> Packing | None:
    """The packing of this name, one of PACKINGS or by its sizes ("int3-g64-zero", "aqlm-2x8-g8"); None if there is none."""
    if not isinstance(name, str) or name in PACKINGS:
        return PACKINGS.get(name) if isinstance(name, str) else None
    if (match := _GROUPS.fullmatch(name)) and (match[1] or not match[3]):
        bits, group = int(match[1] or 8), int(match[2] or 0)
        zeros = {None: 0, "-zero": bits, "-zero16": 16}[match[3]]
        return Packing(bits, group, 16, zero_bits=zeros, source="the name says the bits and the group")
    if match := _CODEBOOKS.fullmatch(name):
        books, bits, group = map(int, match.groups())
        if books * bits % group == 0:
            table = books * group * 2 << bits
            return Packing(books * bits // group, 0, 16, table=table, source="the name says the codes and the group")
    return None


def packed_bytes(elements: int, packing: str, *, rows: int = 0) -> int:
    """Bytes of a quantized matrix of `elements` weights with its scales; each kind of number is rounded up separately.

    `packing`: a name of PACKINGS, such as "int4", or one that says its sizes, such as "int3-g64". `rows` of the matrix count
    where each has a scale ("fp8-channel"). Left out: the scales of int8 and fp8, and the library's own objects.
    """
    elements, rows = positive_int("elements", elements), non_negative_int("rows", rows)
    kind = packing_called(packing) or known("packing", packing, PACKINGS)
    size = -(-elements * kind.bits // 8) + kind.table
    scales = -(-elements // kind.group) if kind.group else rows
    size += -(-scales * (kind.scale_bits + kind.zero_bits) // 8)
    return size + (4 * -(-scales // kind.scales) if kind.scales else 0)
