"""Paths on a ravine, bias correction, and the bytes of an optimizer's state."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import FAINT, Look, bars, lines
from cs336kit.teach.figures.style import COLORS, axes, described


@described
def trajectories(paths: Mapping[str, Sequence[tuple[float, float]]], *, curvatures: tuple[float, float]):
    """Paths of optimizers, one panel each, on the contours of ½(a·x² + b·y²) with curvatures (a, b)."""
    rows = -(-len(paths) // 3)
    figure, plots = axes(rows, min(3, len(paths)), width=9, height=2.7 * rows, squeeze=False, sharex=True, sharey=True)
    a, b = curvatures
    turns = [2 * math.pi * k / 60 for k in range(61)]
    for number, (ax, (name, path)) in enumerate(zip(plots.flat, paths.items(), strict=False)):
        for level in (0.5, 4, 16, 40, 80, 140):
            wide, high = math.sqrt(2 * level / a), math.sqrt(2 * level / b)
            ellipse = [wide * math.cos(t) for t in turns], [high * math.sin(t) for t in turns]
            ax.plot(*ellipse, color=FAINT, linewidth=0.6, linestyle="-", marker="")
        look = {"color": COLORS[number % len(COLORS)], "linestyle": "-", "linewidth": 1.3, "markersize": 3.5}
        ax.plot(*zip(*path, strict=True), **look)
        ax.plot([0], [0], color="#222222", marker="+", markersize=12, linestyle="")
        ax.set_title(name)
        ax.grid(False)
    far = max(abs(x) for path in paths.values() for x, _ in path) * 1.1
    high = max(abs(y) for path in paths.values() for _, y in path) * 1.15
    plots[0][0].set(xlim=(-far, far * 0.6), ylim=(-high, high))
    for ax in plots[-1]:
        ax.set_xlabel("flat direction x")
    plots[0][0].annotate("start", paths[next(iter(paths))][0], (8, -4), textcoords="offset points", fontsize=11)
    for ax in plots[:, 0]:
        ax.set_ylabel("steep direction y")
    for ax in list(plots.flat)[len(paths) :]:
        ax.axis("off")
    ends = [
        f"{name} from ({p[0][0]:.3g}, {p[0][1]:.3g}) to ({p[-1][0]:.3g}, {p[-1][1]:.3g})" for name, p in paths.items()
    ]
    return figure, f"paths on a ravine with its lowest point at (0, 0): {'; '.join(ends)}"


@described
def step_sizes(steps: Sequence[int], series: Mapping[str, tuple[Sequence[float], Sequence[float]]]):
    """Length of each step in units of the learning rate over the step number (logarithmic).

    series: name → (predicted at every step from 1 on, measured at each of `steps`).
    """
    figure, ax = axes(height=4)
    # Few enough points for a small file, dense enough on a logarithmic axis for a smooth line.
    dense = sorted({*steps, *(t for t in (round(1.08**k) for k in range(200)) if t <= max(steps))})
    smooth = {name: (dense, [predicted[t - 1] for t in dense]) for name, (predicted, _) in series.items()}
    points = {name: (steps, measured) for name, (_, measured) in series.items()}
    labels: Look = {"xlabel": "step t", "ylabel": "|update| ÷ learning rate", "legend": {"loc": "upper right"}}
    said = lines(ax, smooth, points, pair=("{}: predicted", "measured"), **labels)
    ax.set_xscale("log")
    ax.set_ylim(bottom=0)
    return figure, f"predicted, then measured, {said}"


@described
def state_bars(bytes_per_parameter: Mapping[str, Mapping[str, float]]):
    """Bytes of state per parameter, one group of bars per optimizer; name → dtype → bytes."""
    figure, ax = axes(width=8.5, height=1 + 0.55 * len(bytes_per_parameter))
    entries = bytes_per_parameter.values()
    kinds = {kind: [entry[kind] for entry in entries] for kind in next(iter(entries))}
    label: Look = {"label": "bytes of state per parameter", "legend": {"loc": "upper right", "title": "parameters in"}}
    text: Look = {"written": lambda value: f"{value:.2f}" if value else "0", "text": {"padding": 4, "fontsize": 11}}
    return figure, bars(ax, list(bytes_per_parameter), kinds, flat=True, **label, **text)
