"""Model FLOPs utilization: the FLOP/s achieved, divided by a peak from a datasheet or a measurement."""

import contextlib
from dataclasses import dataclass

import torch

from cs336kit.measure.device import device, device_name
from cs336kit.measure.seconds import Timing
from cs336kit.predict import Accelerator, Breakdown, accelerator
from cs336kit.predict.checks import positive_number
from cs336kit.predict.hardware import PRECISIONS

#: dtype → the precision of its peak. fp32 products run in tf32 if torch is allowed to.
PRECISION_OF = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.int8: "int8",
}


@dataclass(frozen=True)
class Utilization:
    """`flops_per_second` achieved, and its fractions of the `dense`, `sparse` and `best_measured` peak (None: unknown).

    As a float, it is the MFU: the fraction of the dense peak.
    """

    flops_per_second: float
    precision: str
    peaks: dict[str, float]

    def _fraction(self, peak: str) -> float | None:
        return self.flops_per_second / self.peaks[peak] if peak in self.peaks else None

    @property
    def dense(self) -> float | None:
        return self._fraction("dense")

    @property
    def sparse(self) -> float | None:
        return self._fraction("sparse")

    @property
    def best_measured(self) -> float | None:
        return self._fraction("best measured")

    def __float__(self) -> float:
        return self.dense  # type: ignore[return-value] # where no peak is known, None is a TypeError

    def __repr__(self) -> str:
        against = ", ".join(
            f"{self.flops_per_second / value:.3f} of the {name} peak {value / 1e12:.4g}"
            for name, value in self.peaks.items()
        )
        text = f"{self.flops_per_second / 1e12:.4g} TFLOP/s in {self.precision}: {against} TFLOP/s"
        impossible = self.flops_per_second > max(self.peaks.values())
        return text + (" (above every peak: check FLOPs, seconds and dtype)" if impossible else "")


def mfu(
    flops: float,
    seconds: float | Timing,
    *,
    dtype: torch.dtype | str,
    peak_flops_per_second: float | None = None,
    accelerator_name: str | Accelerator | None = None,
    best_measured: float | None = None,
) -> Utilization:
    """MFU = FLOPs ÷ seconds ÷ peak FLOP/s, for the dense peak and, where known, the sparse and the best measured one.

    `flops` are those that the model needs (`measure.flops(...).total`, without recomputation), `seconds` a number or
    `measure.seconds(...)`. `dtype` is a torch dtype or a precision such as "tf32". The peak is that of the accelerator in
    this machine, of the one named, or `peak_flops_per_second`; `best_measured` is the highest FLOP/s of a matmul sweep.
    Errors: LookupError, with what to pass, if the peak of the device is unknown; ValueError for numbers that are not positive.
    Source: Chowdhery et al. 2022, "PaLM", appendix B.
    """
    seconds = seconds.median if isinstance(seconds, Timing) else seconds
    if isinstance(flops, Breakdown):
        raise ValueError("flops must be a number, got a Breakdown: write measure.flops(…).total.")
    rate = positive_number("flops", flops) / positive_number("seconds", seconds)
    precision = _precision(dtype)
    peaks: dict[str, float] = {}
    if peak_flops_per_second is not None:
        peaks["dense"] = positive_number("peak_flops_per_second", peak_flops_per_second)
    else:
        chip = _chip(accelerator_name)
        try:
            peaks["dense"] = chip.peak(precision)
        except LookupError as error:
            raise LookupError(f"{error} To use another number, pass peak_flops_per_second=….") from None
        with contextlib.suppress(LookupError):  # without a sourced sparse peak, this fraction is None
            peaks["sparse"] = chip.peak(precision, sparse=True)
    if best_measured is not None:
        peaks["best measured"] = positive_number("best_measured", best_measured)
    return Utilization(rate, precision, peaks)


def this_accelerator() -> Accelerator | None:
    """The entry of `predict.accelerator` for the GPU in this machine; None without a GPU or if it is not in the table."""
    try:
        return accelerator(device_name(device()))
    except ValueError:
        return None


def _chip(name: str | Accelerator | None) -> Accelerator:
    asked = device_name(device()) if name is None else name
    try:
        return accelerator(asked)
    except ValueError as error:
        raise LookupError(
            f"no peak is known for {asked!r}: pass peak_flops_per_second=… (from the datasheet, dense, or from "
            f"measure.best_matmul(...)), or accelerator_name=…. {error}"
        ) from None


def _precision(dtype: torch.dtype | str) -> str:
    if isinstance(dtype, torch.dtype):
        if dtype not in PRECISION_OF:
            known = ", ".join(str(known) for known in PRECISION_OF)
            raise ValueError(f"{dtype} has no peak of its own; dtypes with one are {known}.")
        if dtype is torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32":
            return "tf32"
        return PRECISION_OF[dtype]
    if dtype not in PRECISIONS:
        raise ValueError(f"{dtype!r} is not a precision with a peak: choose one of {', '.join(PRECISIONS)}.")
    return dtype
