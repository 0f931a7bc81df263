"""Number formats: where the values lie, and what sums lose."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import Look, Series, lines, number_line, over
from cs336kit.teach.figures.style import axes, described


@described
def number_lines(formats: Series, *, limit: float):
    """One line per format with a tick at each of its values from -limit to limit. formats: name → all finite values."""
    figure, ax = axes(height=0.8 + 0.62 * len(formats))
    said = number_line(ax, formats, limit)
    ax.set(xlabel=f"value (those beyond ±{limit:g} are not drawn)")
    return figure, f"a number line for each format; {said}"


@described
def running_sums(terms: Sequence[int], sums: Series):
    """What a running total shows after so many terms, one line per way of adding, both axes logarithmic."""
    figure, ax = axes(height=4.2)
    labels: Look = {"xlabel": "terms added", "ylabel": "running total", "legend": {"loc": "upper left"}}
    said = lines(ax, over(terms, sums), **labels)
    ax.set(xscale="log", yscale="log")
    return figure, said
