"""How the two napkin answers move when their inputs do."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import FAINT, QUIET, Look, Series, listed, log_axis, over
from cs336kit.teach.figures.primitives import lines as draw_lines
from cs336kit.teach.figures.style import axes, described


@described
def days_against_accelerators(accelerators: Sequence[int], days: Series, *, mark: tuple[int, float]):
    """Training days (log) over the number of accelerators (log), one line for each MFU, and the run of the text."""
    figure, ax = axes(width=8.5, height=4.4)
    legend = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "title": "MFU"}
    labels: Look = {"xlabel": "accelerators", "ylabel": "training time (days)", "legend": legend}
    said = draw_lines(ax, over(accelerators, days), **labels)
    _levels(ax, {"a quarter": 365.25 / 4, "a year": 365.25}, accelerators[0], "left", 1.04)
    run = f"{mark[0]:,} accelerators: {mark[1]:.1f} days"
    ax.annotate(run, mark, (10, 95), textcoords="offset points", arrowprops={"arrowstyle": "->"}, fontsize=12)
    _log_axes(ax, accelerators, (10, 20, 50, 100, 200, 500, 1000, 2000), "{:,}".format)
    return figure, f"{said}. Marked: {run}"


@described
def largest_models(accelerators: Sequence[int], parameters: Series, *, lines: Mapping[str, float]):
    """The largest model (parameters, log) over the number of accelerators (log), one line for each way to store it.

    lines: names and sizes of models to compare with.
    """
    figure, ax = axes(width=8.5, height=4.4)
    labels: Look = {"xlabel": "accelerators", "ylabel": "parameters (B = 10⁹)", "legend": {"loc": "upper left"}}
    said = draw_lines(ax, over(accelerators, parameters), **labels)
    _levels(ax, lines, accelerators[-1], "right", 1.06)
    sizes = [10**k for k in range(8, 14)]
    _log_axes(ax, accelerators, sizes, lambda t: f"{t // 10**9:,} B" if t >= 10**9 else f"{t // 10**6:,} M")
    return figure, f"{said}. Beside them {listed(list(lines), list(lines.values()))}"


def _levels(ax, levels: Mapping[str, float], x: float, side: str, above: float):
    for name, height in levels.items():
        ax.axhline(height, color=FAINT, linewidth=1, linestyle=":")
        ax.text(x, height * above, name, ha=side, va="bottom", color=QUIET)


def _log_axes(ax, accelerators: Sequence[int], ticks: Sequence[int], write):
    log_axis(ax, "x", accelerators if len(accelerators) <= 8 else accelerators[::2])
    log_axis(ax, "y", ticks, write=write)
