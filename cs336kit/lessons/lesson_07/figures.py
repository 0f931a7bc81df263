"""Rooflines of devices, and where a block spends its FLOPs and its time."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import QUIET, Look, lines, shares
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def roofline(
    points: Sequence[tuple[str, float, float]], *, peak_flops_per_second: float, bandwidth_bytes_per_second: float
) -> Drawn:
    """The roof over arithmetic intensity, and the points (name, FLOPs per byte, FLOP/s) under it, in log–log."""
    figure, ax = axes(height=4.4)
    ridge = peak_flops_per_second / bandwidth_bytes_per_second
    low = min([ridge / 30, *(intensity / 2 for _, intensity, _ in points)])
    high = max([ridge * 30, *(intensity * 2 for _, intensity, _ in points)])
    roof = [low * bandwidth_bytes_per_second, peak_flops_per_second, peak_flops_per_second]
    ax.plot([low, ridge, high], roof, color=COLORS[6], marker="", linestyle="-", linewidth=3)
    ax.axvline(ridge, color="#777777", linewidth=1, linestyle=":", marker="")
    corner = {"xytext": (4, 6), "textcoords": "offset points", "fontsize": 11, "color": QUIET}
    ax.annotate(f"ridge: {ridge:.3g} FLOPs per byte", (ridge, peak_flops_per_second), **corner)
    labels: Look = {"xlabel": "arithmetic intensity, FLOPs per byte", "ylabel": "FLOP/s"}
    legend = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3, "fontsize": 11} if points else None
    said = lines(ax, {}, {name: ([x], [rate]) for name, x, rate in points}, legend=legend, **labels)
    ax.set(xscale="log", yscale="log")
    ax.margins(y=0.15)
    for start, end, number, name in ((low, ridge, 3, "memory limits"), (ridge, high, 1, "the peak limits")):
        ax.axvspan(start, end, color=COLORS[number], alpha=0.1, linewidth=0)
        place = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        ax.text(math.sqrt(start * end), 0.03, name, color=QUIET, **place)
    return (
        figure,
        f"a roof that is flat at {peak_flops_per_second:.4g} FLOP/s from {ridge:.4g} FLOPs per byte on, where the peak limits; "
        f"below, memory does. {said}",
    )


@described
def block_shares(amounts: Mapping[str, Mapping[str, float]]) -> Drawn:
    """One bar for each kind of amount (FLOPs, seconds), made of the shares of its parts, in percent."""
    figure, ax = axes(height=1.5 + 0.7 * len(amounts))
    legend = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2}
    return figure, shares(ax, amounts, label="percent", size=0.6, legend=legend)
