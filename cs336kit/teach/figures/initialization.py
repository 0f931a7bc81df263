"""Figures about initialization: the size of the signal layer by layer, and the tails of a truncated normal."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

_MARKERS = ("o", "s", "^", "D")


def signal_through_layers(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]], *, alt: str
) -> Figure:
    """Second moments by layer (log) above, and measured ÷ predicted with its standard error below, one column a panel.

    panels: title → name → (predicted, measured mean, predicted standard error), each from layer 0 on.
    """
    figure, plots = axes(2, len(panels), width=10, height=6.8, squeeze=False, sharex=True, sharey="row")
    marks, far = [], 0.0
    for column, (title, series) in enumerate(panels.items()):
        top, bottom = plots[0][column], plots[1][column]
        for number, (name, (predicted, measured, error)) in enumerate(series.items()):
            # Each series shows other layers, so that series with equal values do not hide one another.
            shown = range(2 + 2 * number, len(predicted), 6)
            look = {"color": COLORS[number], "marker": _MARKERS[number]}
            (line,) = top.plot(range(len(predicted)), predicted, color=COLORS[number], marker="")
            (points,) = top.plot(shown, [measured[layer] for layer in shown], linestyle="", **look)
            marks += [] if column else [(line, f"{name}: predicted"), (points, "measured")]
            ratios = [measured[layer] / predicted[layer] for layer in shown]
            errors = [error[layer] / predicted[layer] for layer in shown]
            far = max([far, *(abs(ratio - 1) + bar for ratio, bar in zip(ratios, errors, strict=True))])
            bottom.errorbar(
                shown,
                ratios,
                yerr=errors,
                linestyle="", capsize=4, **look,
            )  # fmt: skip
        top.set_yscale("log")
        top.set_title(title)
        bottom.axhline(1, color="#222222", linewidth=1, marker="", linestyle="-")
        bottom.set(xlabel="layer")
    # A limit in tenths, so that the last digit of a measurement does not move the axis.
    limit = math.ceil(far * 10) / 10 or 0.1
    plots[1][0].set_ylim(1 - limit, 1 + limit)
    plots[0][0].set_ylabel("mean of squares")
    plots[1][0].set_ylabel("measured ÷ predicted\n(bars: ±1 standard error)")
    figure.legend(*zip(*marks, strict=True), loc="outside upper center", ncols=len(marks) // 2)
    return show(figure, alt=alt)


def growth(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, xlabel: str, ylabel: str, alt: str
) -> Figure:
    """Predicted lines and measured points over a count of steps from 0; series: name → (predicted, measured)."""
    figure, ax = axes(height=4)
    for number, (name, (predicted, measured)) in enumerate(series.items()):
        steps = range(len(predicted))
        every = max(1, len(steps) // 12)
        ax.plot(steps, predicted, color=COLORS[number], marker="", label=f"{name}, predicted")
        ax.plot(
            steps[::every],
            measured[::every],
            color=COLORS[number],
            linestyle="",
            marker=_MARKERS[number],
            label="measured",
        )
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left")
    return show(figure, alt=alt)


def tails(edges: Sequence[float], counts: Mapping[str, Sequence[int]], *, alt: str) -> Figure:
    """How many weights (log) lie in each interval of |w|/std, one group of bars per way to draw them.

    edges: bounds of the intervals in standard deviations, one more than each list of counts; an empty bar carries a 0.
    """
    figure, ax = axes(width=9, height=4)
    width = 0.8 / len(counts)
    places = range(len(edges) - 1)
    for number, (name, values) in enumerate(counts.items()):
        left = [place + (number - (len(counts) - 1) / 2) * width for place in places]
        ax.bar(left, values, width, color=COLORS[number], hatch=HATCHES[number], edgecolor="white", label=name)
        for place, value in zip(left, values, strict=True):
            if value == 0:
                ax.annotate("0", (place, 100), (0, 3), textcoords="offset points", ha="center", color=COLORS[number])
    ax.set_yscale("log")
    ax.set_ylim(100, 2 * max(max(values) for values in counts.values()))
    ax.grid(axis="x", visible=False)
    ax.set_xticks(list(places), [f"{a:g}–{b:g}" for a, b in zip(edges[:-1], edges[1:], strict=True)])
    ax.set(xlabel="distance from 0 in standard deviations", ylabel="weights")
    ax.legend(loc="upper right")
    return show(figure, alt=alt)
