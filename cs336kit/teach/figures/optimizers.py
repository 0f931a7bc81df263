"""Figures about optimizers: paths on a ravine, bias correction, and the bytes of the state."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

_MARKERS = ("o", "s", "^", "D")


def trajectories(
    paths: Mapping[str, Sequence[tuple[float, float]]], *, curvatures: tuple[float, float], alt: str
) -> Figure:
    """Paths of optimizers, one panel each, on the contours of ½(a·x² + b·y²) with curvatures (a, b)."""
    rows = -(-len(paths) // 3)
    figure, plots = axes(rows, min(3, len(paths)), width=9, height=2.7 * rows, squeeze=False, sharex=True, sharey=True)
    a, b = curvatures
    turns = [2 * math.pi * k / 60 for k in range(61)]
    for number, (ax, (name, path)) in enumerate(zip(plots.flat, paths.items(), strict=False)):
        for level in (0.5, 4, 16, 40, 80, 140):
            wide, high = math.sqrt(2 * level / a), math.sqrt(2 * level / b)
            ellipse = [wide * math.cos(t) for t in turns], [high * math.sin(t) for t in turns]
            ax.plot(*ellipse, color="#cccccc", linewidth=1, linestyle="-", marker="")
        xs, ys = zip(*path, strict=True)
        ax.plot(xs, ys, color=COLORS[number % len(COLORS)], linestyle="-", linewidth=1.3, markersize=3.5)
        ax.plot([0], [0], color="#222222", marker="+", markersize=12, linestyle="")
        ax.set_title(name)
        ax.grid(False)
    far = max(abs(x) for path in paths.values() for x, _ in path) * 1.1
    high = max(abs(y) for path in paths.values() for _, y in path) * 1.15
    plots[0][0].set(xlim=(-far, far * 0.6), ylim=(-high, high))
    for ax in plots[-1]:
        ax.set_xlabel("flat direction x")
    plots[0][0].annotate("start", paths[next(iter(paths))][0], (8, -4), textcoords="offset points", fontsize=11)
    for row in plots:
        row[0].set_ylabel("steep direction y")
    for ax in list(plots.flat)[len(paths) :]:
        ax.axis("off")
    return show(figure, alt=alt)


def step_sizes(
    steps: Sequence[int], series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, alt: str
) -> Figure:
    """Length of each step in units of the learning rate over the step number (logarithmic).

    series: name → (predicted at every step from 1 on, measured at each of `steps`).
    """
    figure, ax = axes(height=4)
    for number, (name, (predicted, measured)) in enumerate(series.items()):
        # Few enough points for a small file, dense enough on a logarithmic axis for a smooth line.
        dense = sorted({*steps, *(t for t in (round(1.08**k) for k in range(200)) if t <= max(steps))})
        smooth = [predicted[t - 1] for t in dense]
        ax.plot(dense, smooth, color=COLORS[number], marker="", label=f"{name}: predicted")
        ax.plot(steps, measured, color=COLORS[number], linestyle="", marker=_MARKERS[number], label="measured")
    ax.set(xscale="log", xlabel="step t", ylabel="|update| ÷ learning rate")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper right")
    return show(figure, alt=alt)


def state_bars(bytes_per_parameter: Mapping[str, Mapping[str, float]], *, alt: str) -> Figure:
    """Bytes of state per parameter, one group of bars per optimizer; name → dtype → bytes."""
    figure, ax = axes(width=8.5, height=1 + 0.55 * len(bytes_per_parameter))
    kinds = list(next(iter(bytes_per_parameter.values())))
    height = 0.8 / len(kinds)
    for number, kind in enumerate(kinds):
        values = [entry[kind] for entry in bytes_per_parameter.values()]
        rows = [row + (number - (len(kinds) - 1) / 2) * height for row in range(len(values))]
        bars = ax.barh(rows, values, height, color=COLORS[number], hatch=HATCHES[number], edgecolor="white", label=kind)
        ax.bar_label(bars, [f"{value:.2f}" if value else "0" for value in values], padding=4, fontsize=11)
    ax.set_yticks(range(len(bytes_per_parameter)), bytes_per_parameter)
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("bytes of state per parameter")
    ax.legend(loc="upper right", title="parameters in")
    return show(figure, alt=alt)
