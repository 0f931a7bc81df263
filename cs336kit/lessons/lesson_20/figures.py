"""Losses that form valleys, and the line through their bottoms."""

from collections.abc import Mapping, Sequence
from typing import Any

from cs336kit.teach.figures.primitives import FAINT, QUIET, listed, log_axis
from cs336kit.teach.figures.style import COLORS, MARKERS, Drawn, axes, described


@described
def valleys(
    slices: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    bottoms: Mapping[str, tuple[float, float]],
    *,
    parabolas: Mapping[str, tuple[Sequence[float], Sequence[float]]],
) -> Drawn:
    """Loss over the size of the model (logarithmic), a valley for each budget; stars are the bottoms.

    slices, parabolas: budget → (parameters, losses), as points and as lines; bottoms: budget → (parameters, loss).
    """
    figure, ax = axes(height=4.6)
    said = []
    for number, (name, (sizes, losses)) in enumerate(slices.items()):
        look: dict[str, Any] = {"color": COLORS[number], "linestyle": ""}
        ax.plot(sizes, losses, marker=MARKERS[number], label=name, **look)
        ax.plot(*parabolas[name], color=COLORS[number], linewidth=1.6, marker="")
        place, loss = bottoms[name]
        ax.plot([place], [loss], marker="*", markersize=17, markeredgecolor="white", **look)
        tried = listed([f"{size:,.0f}" for size in sizes], losses, most=12)
        said.append(f"{name}: {tried}, bottom {loss:.3g} at {place:,.3g}")
    log_axis(ax, "x", [5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000])
    ax.set(xlabel="parameters", ylabel="held-out loss (nats a byte)")
    ax.legend(title="FLOPs of a run", title_fontsize=12)
    return figure, f"loss over parameters: {'; '.join(said)}"


@described
def extrapolation(
    minima: Sequence[tuple[float, float]],
    line: Sequence[tuple[float, float]],
    band: Sequence[tuple[float, float, float]],
    *,
    marks: Mapping[str, tuple[float, float]],
) -> Drawn:
    """The best size over the budget, both logarithmic: minima, the line through them, and the band of its resamples.

    minima, line: (FLOPs, parameters); band: (FLOPs, low, high); marks: name → (FLOPs, parameters) of other points.
    """
    figure, ax = axes(height=4.6)
    budgets, low, high = zip(*band, strict=True)
    ax.fill_between(budgets, low, high, color="#dbe7f0", label="eight of ten resamples", linewidth=0)
    ax.plot(*zip(*line, strict=True), color=COLORS[0], marker="", label="the line")
    ax.plot(*zip(*minima, strict=True), color=COLORS[0], marker="o", linestyle="", label="bottoms of the valleys")
    for number, (name, point) in enumerate(marks.items()):
        ax.plot(*point, marker=MARKERS[number + 1], color=COLORS[6], linestyle="", markersize=9)
        ax.annotate(f"  {name}", point, fontsize=12, va="center")
    for ax_, ticks in (("x", range(10, 27, 2)), ("y", range(2, 17, 2))):
        log_axis(ax, ax_, [10.0**power for power in ticks], write=None)
    ax.axvspan(min(x for x, _ in minima), max(x for x, _ in minima), color=FAINT, alpha=0.12, linewidth=0)
    ax.set(xlabel="budget (FLOPs)", ylabel="best number of parameters")
    ax.legend(loc="upper left", labelcolor=QUIET)
    first, last = minima[0], minima[-1]
    said = (
        f"best parameters over FLOPs: bottoms from {first[1]:,.3g} at {first[0]:.3g} to {last[1]:,.3g} at {last[0]:.3g}; "
        f"the line ends at {line[-1][1]:.3g} for {line[-1][0]:.3g}, its band from {low[-1]:.3g} to {high[-1]:.3g}"
    )
    points = [f"{name} {point[1]:.3g} at {point[0]:.3g}" for name, point in marks.items()]
    return figure, "; ".join([said, *points])


@described
def costs_of_use(sizes: Sequence[float], costs: Mapping[str, Sequence[float]]) -> Drawn:
    """Time of training and use together over the size of models of one loss, both logarithmic; stars are the cheapest.

    sizes: parameters; costs: the tokens of all users → years of one accelerator for each size.
    """
    figure, ax = axes(height=4.2)
    said = []
    for number, (name, years) in enumerate(costs.items()):
        cheapest = min(range(len(sizes)), key=lambda i: years[i])
        ax.plot(sizes, years, color=COLORS[number], marker="", label=name)
        look: dict[str, Any] = {"color": COLORS[number], "markeredgecolor": "white", "linestyle": ""}
        ax.plot([sizes[cheapest]], [years[cheapest]], marker="*", markersize=17, **look)
        said.append(f"{name}, cheapest {years[cheapest]:.3g} at {sizes[cheapest]:.3g}")
    log_axis(ax, "x", [power * unit for power in (10**9, 10**10, 10**11) for unit in (1, 2, 5)], write=_billions)
    log_axis(ax, "y", [10.0**power for power in range(-1, 6)], write=None)
    ax.set(xlabel="parameters (billions)", ylabel="training and use (years)")
    ax.legend(title="tokens of use", title_fontsize=12, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=11)
    return figure, f"Years of training and use over parameters: {'; '.join(said)}"


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:g}"
