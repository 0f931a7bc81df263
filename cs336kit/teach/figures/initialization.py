"""Figures about initialization: the size of the signal layer by layer, and the tails of a truncated normal."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

_MARKERS = ("o", "s", "^", "D")


def signal_through_layers(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]], *, alt: str
) -> Figure:
    """Second moments by layer (log) above, and measured ÷ predicted with its standard error below, one column a panel.

    panels: title → name → (predicted, measured mean, predicted standard error), each from layer 0 on.
    """
    figure, plots = axes(2, len(panels), width=10, height=6.4, squeeze=False, sharex=True, height_ratios=(3, 2))
    for column, (title, series) in enumerate(panels.items()):
        top, bottom = plots[0][column], plots[1][column]
        for number, (name, (predicted, measured, error)) in enumerate(series.items()):
            layers = range(len(predicted))
            color = COLORS[number]
            top.plot(layers, predicted, color=color, marker="", label=f"{name}, predicted")
            top.plot(layers[::5], measured[::5], color=color, linestyle="", marker=_MARKERS[number], label="measured")
            bottom.errorbar(
                [layer + 0.6 * number for layer in layers[5::5]],
                [m / p for m, p in zip(measured[5::5], predicted[5::5], strict=True)],
                yerr=[e / p for e, p in zip(error[5::5], predicted[5::5], strict=True)],
                color=color, linestyle="", marker=_MARKERS[number], capsize=4,
            )  # fmt: skip
        top.set_yscale("log")
        top.set_title(title)
        bottom.axhline(1, color="#222222", linewidth=1, marker="", linestyle="-")
        bottom.set(xlabel="layer", ylim=(0, 2))
    plots[0][0].set_ylabel("mean of squares")
    plots[1][0].set_ylabel("measured ÷ predicted\n(bars: ±1 standard error)")
    plots[0][0].legend(loc="lower left", ncols=1, fontsize=11)
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

    edges: bounds of the intervals in standard deviations, one more than each list of counts; an empty bar is a 0.
    """
    figure, ax = axes(width=9, height=4)
    width = 0.8 / len(counts)
    places = range(len(edges) - 1)
    for number, (name, values) in enumerate(counts.items()):
        left = [place + (number - (len(counts) - 1) / 2) * width for place in places]
        ax.bar(left, values, width, color=COLORS[number], hatch=HATCHES[number], edgecolor="white", label=name)
    ax.set_yscale("log")
    ax.set_ylim(bottom=100)
    ax.set_xticks(list(places), [f"{a:g}–{b:g}" for a, b in zip(edges[:-1], edges[1:], strict=True)])
    ax.set(xlabel="distance from 0 in standard deviations", ylabel="weights")
    ax.legend(loc="upper right")
    return show(figure, alt=alt)
