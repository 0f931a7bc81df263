"""The number formats of the course by name."""

from types import MappingProxyType
from typing import Any

from cs336kit.predict.block_formats import BlockFormat
from cs336kit.predict.checks import known
from cs336kit.predict.number_format import NumberFormat


class _Formats(dict[str, Any]):
    """A missing key raises an error that lists the known names."""

    def __missing__(self, name: object) -> Any:
        return known("number format", name, self)

    def __repr__(self) -> str:
        return f"FORMATS({', '.join(self)})"


_E4M3 = NumberFormat("fp8_e4m3", exponent_bits=4, fraction_bits=3, nan="all_ones")
_E2M3 = NumberFormat("fp6_e2m3", exponent_bits=2, fraction_bits=3, nan="none")
_E3M2 = NumberFormat("fp6_e3m2", exponent_bits=3, fraction_bits=2, nan="none")
_E2M1 = NumberFormat("fp4_e2m1", exponent_bits=2, fraction_bits=1, nan="none")
_E8M0 = NumberFormat("e8m0", exponent_bits=8, fraction_bits=0, nan="all_ones", signed=False, subnormals=False)

_ENTRIES = (
    NumberFormat("fp64", exponent_bits=11, fraction_bits=52),
    NumberFormat("fp32", exponent_bits=8, fraction_bits=23),
    NumberFormat("tf32", exponent_bits=8, fraction_bits=10, storage_bits=32),
    NumberFormat("bf16", exponent_bits=8, fraction_bits=7),
    NumberFormat("fp16", exponent_bits=5, fraction_bits=10),
    _E4M3,
    NumberFormat("fp8_e5m2", exponent_bits=5, fraction_bits=2),
    _E2M3,
    _E3M2,
    _E2M1,
    _E8M0,
    BlockFormat("mxfp8", element=_E4M3, scale=_E8M0, block_size=32),
    BlockFormat("mxfp6", element=_E2M3, scale=_E8M0, block_size=32),
    BlockFormat("mxfp4", element=_E2M1, scale=_E8M0, block_size=32),
    BlockFormat("nvfp4", element=_E2M1, scale=_E4M3, block_size=16, scale_rule="largest"),
)

#: Name → NumberFormat or BlockFormat. Sources: IEEE 754-2019 (fp64, fp32, fp16); Google's bfloat16 and NVIDIA's tf32
#: are fp32 with a shorter fraction; OCP 8-bit Floating Point 1.0 (fp8); OCP Microscaling Formats 1.0 (fp6, fp4, e8m0,
#: mx…); NVIDIA (nvfp4).
FORMATS = MappingProxyType(_Formats((entry.name, entry) for entry in _ENTRIES))
