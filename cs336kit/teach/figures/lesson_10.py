"""The size of the signal layer by layer, and the tails of a truncated normal."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import Look, bars, lines
from cs336kit.teach.figures.style import COLORS, MARKERS, axes, described


@described
def signal_through_layers(panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]]):
    """Second moments by layer (log) above, and measured ÷ predicted with its standard error below, one column a panel.

    panels: title → name → (predicted, measured mean, predicted standard error), each from layer 0 on.
    """
    figure, plots = axes(2, len(panels), width=10, height=6.8, squeeze=False, sharex=True, sharey="row")
    said, far = [], 0.0
    for (top, bottom), (title, series) in zip(plots.T, panels.items(), strict=True):
        # Each series shows other layers, so that series with equal values do not hide one another.
        shown = {name: range(2 + 2 * k, len(series[name][0]), 6) for k, name in enumerate(series)}
        forecast = {name: (range(len(predicted)), predicted) for name, (predicted, _, _) in series.items()}
        means = {name: (shown[name], [mean[i] for i in shown[name]]) for name, (_, mean, _) in series.items()}
        said.append(f"{title}: {lines(top, forecast, means, pair=('{}: predicted', 'measured'))}")
        for number, (name, (predicted, mean, error)) in enumerate(series.items()):
            ratios = [mean[i] / predicted[i] for i in shown[name]]
            spread = [error[i] / predicted[i] for i in shown[name]]
            far = max([far, *(abs(ratio - 1) + bar for ratio, bar in zip(ratios, spread, strict=True))])
            look = {"color": COLORS[number], "marker": MARKERS[number], "linestyle": "", "capsize": 4}
            bottom.errorbar(shown[name], ratios, yerr=spread, **look)
        top.set(yscale="log", title=title)
        bottom.axhline(1, color="#222222", linewidth=1, marker="", linestyle="-")
        bottom.set(xlabel="layer")
    # A limit in tenths, so that the last digit of a measurement does not move the axis.
    limit = math.ceil(far * 10) / 10 or 0.1
    plots[1][0].set(ylim=(1 - limit, 1 + limit), ylabel="measured ÷ predicted\n(bars: ±1 standard error)")
    plots[0][0].set_ylabel("mean of squares")
    marks, names = plots[0][0].get_legend_handles_labels()
    figure.legend(marks, names, loc="outside upper center", ncols=len(marks) // 2)
    return figure, f"mean of squares by layer. {'. '.join(said)}"


@described
def growth(series: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, xlabel: str, ylabel: str):
    """Predicted lines and measured points over a count of steps from 0; series: name → (predicted, measured)."""
    figure, ax = axes(height=4)
    steps = {name: range(len(predicted)) for name, (predicted, _) in series.items()}
    every = {name: max(1, len(steps[name]) // 12) for name in series}
    drawn = {name: (steps[name], predicted) for name, (predicted, _) in series.items()}
    points = {name: (steps[name][:: every[name]], seen[:: every[name]]) for name, (_, seen) in series.items()}
    look: Look = {"legend": {"loc": "upper left"}, "pair": ("{}, predicted", "measured")}
    said = lines(ax, drawn, points, xlabel=xlabel, ylabel=ylabel, **look)
    ax.set_ylim(bottom=0)
    return figure, f"predicted, then measured, {said}"


@described
def tails(edges: Sequence[float], counts: Mapping[str, Sequence[int]]):
    """How many weights (log) lie in each interval of |w|/std, one group of bars per way to draw them.

    edges: bounds of the intervals in standard deviations, one more than each list of counts; an empty bar carries a 0.
    """
    figure, ax = axes(width=9, height=4)
    places = [f"{a:g}–{b:g}" for a, b in zip(edges[:-1], edges[1:], strict=True)]
    said = bars(ax, places, counts, label="weights", legend={"loc": "upper right"})
    for number, values in enumerate(counts.values()):
        for place, value in enumerate(values):
            if value == 0:
                middle = place + (number - (len(counts) - 1) / 2) * 0.8 / len(counts)
                ax.annotate("0", (middle, 100), (0, 3), textcoords="offset points", ha="center")
    ax.set(yscale="log", xlabel="distance from 0 in standard deviations")
    ax.set_ylim(100, 2 * max(max(values) for values in counts.values()))
    return figure, f"{said} (distance from 0 in standard deviations)"
