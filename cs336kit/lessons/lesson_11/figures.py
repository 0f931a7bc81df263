"""Paths on a ravine drawn to scale, and a learning rate that rises and falls."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import FAINT, course
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def trajectories(paths: Mapping[str, Sequence[tuple[float, float]]], *, curvatures: tuple[float, float]) -> Drawn:
    """Paths of optimizers, one panel each, on the contours of ½(a·x² + b·y²) with curvatures (a, b); both axes to scale."""
    rows = -(-len(paths) // 2)
    figure, plots = axes(rows, 2, height=0.4 + 1.75 * rows, squeeze=False, sharex=True, sharey=True)
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
        ax.set_aspect("equal")
    far = max(abs(x) for path in paths.values() for x, _ in path) * 1.1
    high = max(abs(y) for path in paths.values() for _, y in path) * 1.25
    plots[0][0].set(xlim=(-far, far * 0.5), ylim=(-high, high))
    for ax in list(plots.flat)[len(paths) :]:
        ax.axis("off")
    figure.supxlabel("flat direction x", fontsize=13)
    figure.supylabel("steep direction y", fontsize=13)
    ends = [
        f"{name} from ({p[0][0]:.3g}, {p[0][1]:.3g}) to ({p[-1][0]:.3g}, {p[-1][1]:.3g})" for name, p in paths.items()
    ]
    return figure, f"paths on a ravine with its lowest point at (0, 0): {'; '.join(ends)}"


@described
def schedule(rates: Sequence[float]) -> Drawn:
    """A learning rate over the number of the step, from step 0 on."""
    figure, ax = axes(height=2.8)
    ax.plot(range(len(rates)), rates, marker="")
    ax.set(xlabel="step", ylabel="learning rate", ylim=(0, 1.08 * max(rates)))
    return figure, course("learning rate over step:", list(range(len(rates))), rates)
