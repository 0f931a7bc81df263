"""Where a stage of `make gpu` runs, and the rows that it writes."""

import gc
from dataclasses import dataclass, field

import torch

from cs336kit import measure
from cs336kit.measure.seconds import Timing


@dataclass
class Run:
    """Where a stage runs and how large: `tiny` shrinks everything to a rehearsal of seconds; `skipped` gathers reasons.

    Random decoders are drawn from the seeds from `seed` on.
    """

    device: torch.device
    tiny: bool = False
    seed: int = 0
    skipped: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.chip = measure.this_accelerator() if self.device.type == "cuda" else None
        self.timing = {"budget_seconds": 0.05, "at_most": 3, "at_least": 2, "warmup": 1} if self.tiny else {}

    def peak(self, precision: str) -> float | None:
        """The datasheet's dense peak, or None where the table has none."""
        return self.chip.peak(precision) if self.chip and precision in self.chip.precisions else None

    def fact(self, name: str) -> float | None:
        """A fact of the chip ("bandwidth", "host_link"), or None."""
        return float(self.chip.cell(name).value) if self.chip and name in self.chip.facts else None

    def skip(self, what: str, reason: object) -> None:
        first_line = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
        self.skipped.append(f"{what}: {first_line[:200]}")

    def free(self) -> None:
        """Give memory back before the next measurement; a rehearsal measures no memory that cycles could hold."""
        if self.device.type == "cuda":
            gc.collect()
            # cuBLAS's workspaces are part of every prediction, so that each measurement has to make them anew.
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()


def row(label: str, measured, unit: str, *, predicted: float | None = None, repeats=(), **setting) -> dict:
    """One row of a record; a Timing brings its own repeats."""
    if isinstance(measured, Timing):
        measured, repeats = measured.median, measured.repeats
    return {
        "label": label,
        "setting": setting,
        "predicted": None if predicted is None else float(predicted),
        "measured": float(measured),
        "unit": unit,
        "repeats": [float(value) for value in repeats] or [float(measured)],
    }
