"""Rooflines of devices."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import QUIET, Look, lines
from cs336kit.teach.figures.style import COLORS, axes, described


@described
def roofline(
    points: Sequence[tuple[str, float, float]],
    *,
    peak_flops_per_second: float,
    bandwidth_bytes_per_second: float,
    ceilings: Sequence[tuple[str, float]] = (),
):
    """The roof over arithmetic intensity, and the points (name, FLOPs per byte, FLOP/s) under it, in log–log.

    ceilings: further horizontal roofs (name, FLOP/s), such as a slower precision.
    """
    figure, ax = axes(width=9, height=4.6)
    ridge = peak_flops_per_second / bandwidth_bytes_per_second
    low = min([ridge / 30, *(intensity / 2 for _, intensity, _ in points)])
    high = max([ridge * 30, *(intensity * 2 for _, intensity, _ in points)])
    roof = [low * bandwidth_bytes_per_second, peak_flops_per_second, peak_flops_per_second]
    ax.plot([low, ridge, high], roof, color=COLORS[6], marker="", linestyle="-", linewidth=3)
    for name, rate in ceilings:
        ax.plot([rate / bandwidth_bytes_per_second, high], [rate, rate], color="#777777", marker="", linestyle="--")
        ax.annotate(name, (high, rate), ha="right", va="bottom", fontsize=11, color=QUIET)
    ax.axvline(ridge, color="#777777", linewidth=1, linestyle=":", marker="")
    corner = {"xytext": (4, 6), "textcoords": "offset points", "fontsize": 11, "color": QUIET}
    ax.annotate(f"ridge {ridge:.4g}", (ridge, peak_flops_per_second), **corner)
    labels: Look = {"xlabel": "arithmetic intensity, FLOPs per byte", "ylabel": "FLOP/s"}
    legend = {"loc": "lower right", "fontsize": 10} if points else None
    said = lines(ax, {}, {name: ([x], [rate]) for name, x, rate in points}, legend=legend, **labels)
    ax.set(xscale="log", yscale="log")
    ax.margins(y=0.15)
    return (
        figure,
        f"a roof that is flat at {peak_flops_per_second:.4g} FLOP/s from {ridge:.4g} FLOPs per byte on. {said}",
    )
