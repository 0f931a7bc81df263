"""Numbers as the machine's memory holds them: bits, codes, values."""

import re
from dataclasses import dataclass
from typing import Any

import numpy
import torch

# Exponent and fraction bits of the dtypes whose names do not give them, as those of small ones do (float8_e4m3fn).
_FIELDS = {"float64": (11, 52), "float32": (8, 23), "float16": (5, 10), "bfloat16": (8, 7)}


@dataclass(frozen=True)
class Bits:
    """The bits of one number, read from memory and split into fields."""

    #: Name of the dtype, without "torch.".
    dtype: str
    #: The sign bit; empty in an unsigned format.
    sign: str
    #: The exponent field.
    exponent: str
    #: The fraction field.
    fraction: str

    @property
    def code(self) -> int:
        """All bits as one integer."""
        return int(self.sign + self.exponent + self.fraction, 2)

    def __str__(self) -> str:
        return ".".join(field for field in (self.sign, self.exponent, self.fraction) if field)

    def __repr__(self) -> str:
        return f"{self}  ({self.dtype})"


def bits(value: Any, dtype: Any = None) -> Any:
    """Sign, exponent and fraction of a number in memory: `Bits` for one number, a list of `Bits` for a longer tensor.

    value: a tensor, or a float that is first stored as dtype.
    dtype: a torch dtype, or one of ml_dtypes or numpy (`ml_dtypes.float4_e2m1fn`); by default the tensor's own, or
    torch's default for a float. ml_dtypes stores a 4-bit or 6-bit number in the low bits of a byte.
    """
    if dtype is not None and not isinstance(dtype, torch.dtype):
        if isinstance(value, torch.Tensor):
            value = value.detach().double().cpu()
        array = numpy.asarray(value, dtype=numpy.float64).astype(dtype)
        name, raw, width = array.dtype.name, array.ravel().view(numpy.uint8), array.dtype.itemsize
    else:
        tensor = torch.as_tensor(value, dtype=dtype) if not isinstance(value, torch.Tensor) else value.detach()
        tensor = tensor.to(dtype or tensor.dtype).cpu().contiguous()
        name, width = str(tensor.dtype).removeprefix("torch."), tensor.element_size()
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
    exponent_bits, fraction_bits, signed = _layout(name)
    numbers = [int.from_bytes(row.tobytes(), "little") for row in raw.reshape(len(raw) // width, width)]
    cut = signed + exponent_bits
    found = []
    for number in numbers:
        digits = f"{number:0{cut + fraction_bits}b}"[-(cut + fraction_bits) :]
        found.append(Bits(name, digits[:signed], digits[signed:cut], digits[cut:]))
    return found[0] if numpy.ndim(value) == 0 else found


def all_values(dtype: Any) -> numpy.ndarray:
    """The value of every code of a dtype of at most 16 bits, in the order of the codes, as a float64 array.

    dtype: a torch dtype, or one of ml_dtypes. The library decodes the codes, not `predict`.
    """
    kind = dtype if isinstance(dtype, torch.dtype) else numpy.dtype(dtype)
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else kind.name
    exponent_bits, fraction_bits, signed = _layout(name)
    width = signed + exponent_bits + fraction_bits
    if width > 16:
        raise ValueError(f"{name} has 2^{width} codes: only dtypes of at most 16 bits are listed.")
    codes = numpy.arange(2**width).astype(f"uint{8 * kind.itemsize}")
    if isinstance(dtype, torch.dtype):
        return torch.from_numpy(codes.view(numpy.uint8)).view(dtype).double().numpy()
    return codes.view(kind).astype(numpy.float64)


def _layout(name: str) -> tuple[int, int, int]:
    """(exponent bits, fraction bits, sign bits) of a dtype's name."""
    if name in _FIELDS:
        return *_FIELDS[name], 1
    if found := re.fullmatch(r"float\d+_e(\d+)m(\d+)(?:b\d+)?(fn|fnuz|fnu)?", name):
        return int(found[1]), int(found[2]), 0 if found[3] == "fnu" else 1
    raise ValueError(
        f"{name} is not a floating-point dtype whose fields are known: use {', '.join(_FIELDS)}, a torch.float8 dtype "
        "or a type of ml_dtypes."
    )
