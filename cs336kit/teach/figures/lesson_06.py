"""Peaks of devices."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import Look, bars
from cs336kit.teach.figures.style import axes, described


@described
def peaks(devices: Sequence[tuple[str, dict[str, float]]], precisions: Sequence[str]):
    """Peak TFLOP/s by precision, one group of bars each, a bar per device; a precision that a device lacks has no bar.

    devices: (name, {precision: FLOP/s}).
    """
    figure, ax = axes(width=9, height=4)
    tera = {name: [values[p] / 1e12 if p in values else None for p in precisions] for name, values in devices}
    text: Look = {
        "written": lambda rate: f"{rate:.3g}" if rate < 100 else f"{rate:.0f}",
        "text": {"fontsize": 9, "padding": 1},
    }
    said = bars(ax, precisions, tera, label="dense peak, TFLOP/s", legend={"loc": "upper left"}, fill=0.92, **text)
    ax.set_yscale("log")
    ax.margins(y=0.12)
    return figure, said
