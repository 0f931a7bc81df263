"""Time matrix products over sizes and dtypes: the fastest gives the peak that this machine really reaches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cs336kit import _torch
from cs336kit.measure.device import device as _device
from cs336kit.measure.seconds import Timing, seconds
from cs336kit.predict import Cost, matmul_flops
from cs336kit.predict.checks import known, positive_int

#: Precision → the dtype of the operands, and whether fp32 products may run in tf32.
PRECISIONS = {
    "fp32": (torch.float32, False),
    "tf32": (torch.float32, True),
    "bf16": (torch.bfloat16, False),
    "fp16": (torch.float16, False),
    "fp8": (torch.float8_e4m3fn, False),
}
#: The product of the lecture: (B, D) times (D, K).
LECTURE_PRODUCT = (16384, 32768, 8192)


def precisions(device: torch.device | str | None = None) -> tuple[str, ...]:
    """The precisions in which this device multiplies: fp32 and bf16 on a CPU, more on a CUDA GPU, by its generation."""
    where = _device(device)
    if where.type != "cuda":
        return ("fp32", "bf16")
    age = torch.cuda.get_device_capability(where)
    since = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (7, 0), "fp8": (8, 9)}
    return "fp32", *(precision for precision, first in since.items() if age >= first)


@dataclass(frozen=True)
class Product:
    """One timed product (rows, inner) × (inner, columns) in a precision."""

    precision: str
    shape: tuple[int, int, int]
    timing: Timing

    @property
    def flops(self) -> int:
        return matmul_flops(*self.shape)

    @property
    def flops_per_second(self) -> float:
        return self.flops / self.timing.median

    @property
    def cost(self) -> Cost:
        """FLOPs, and bytes if both factors are read once and the product is written once (fp8 writes bf16)."""
        rows, inner, columns = self.shape
        size = PRECISIONS[self.precision][0].itemsize
        out = 2 if self.precision == "fp8" else size
        return Cost(self.flops, size * (rows * inner + inner * columns) + out * rows * columns)


def product(
    rows: int,
    inner: int,
    columns: int,
    *,
    precision: str = "fp32",
    device: torch.device | str | None = None,
    **timing: Any,
) -> Product:
    """Time one matrix product of random numbers; further arguments go to `measure.seconds`.

    fp8 uses torch's scaled product with a scale of 1 and writes bf16. Errors: ValueError for an unknown precision,
    RuntimeError if the device lacks it (tf32 needs CUDA).
    """
    sizes = {"rows": rows, "inner": inner, "columns": columns}
    rows, inner, columns = (positive_int(name, size) for name, size in sizes.items())
    dtype, allow_tf32 = known("precision", precision, PRECISIONS)
    where = _device(device)
    if allow_tf32 and where.type != "cuda":
        raise RuntimeError(
            "tf32 is a mode of NVIDIA's tensor cores: it needs a CUDA device; use 'fp32' or 'bf16' here."
        )
    make = torch.bfloat16 if precision == "fp8" else dtype
    a = torch.randn(rows, inner, device=where, dtype=make)
    b = torch.randn(inner, columns, device=where, dtype=make)
    if precision == "fp8":
        a, b, one = a.to(dtype), b.t().contiguous().t().to(dtype), torch.ones((), device=where)
        function = lambda: _torch.scaled_product(a, b, scale_a=one, scale_b=one)  # noqa: E731
    else:
        function = lambda: a @ b  # noqa: E731
    with _torch.fp32_products("tf32" if allow_tf32 else "ieee", device=where.type):
        return Product(precision, (rows, inner, columns), seconds(function, device=where, **timing))


def best_matmul(products: Sequence[Product], *, precision: str) -> float:
    """The highest FLOP/s among the products in a precision: the best measured peak. Errors: ValueError if there are none."""
    rates = [one.flops_per_second for one in products if one.precision == precision]
    if not rates:
        there = ", ".join(dict.fromkeys(one.precision for one in products)) or "none"
        raise ValueError(f"no product was measured in {precision!r}; measured: {there}.")
    return max(rates)
