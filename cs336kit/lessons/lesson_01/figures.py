"""Number formats: how the spacing grows, and which numbers the small ones have."""

import math
from collections.abc import Sequence

from cs336kit.teach.figures.primitives import Look, Series, lines, log_axis, number_line, over
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def spacings(magnitudes: Sequence[float], formats: Series) -> Drawn:
    """The distance between neighboring values against magnitude, both axes logarithmic.

    formats: name → spacing at each magnitude (NaN where the format has no values).
    """
    figure, ax = axes(height=4.2)
    labels: Look = {"xlabel": "magnitude of the number", "ylabel": "distance to the next number"}
    look: Look = {"drawstyle": "steps-post", "marker": "", "legend": {"loc": "upper left"}}
    said = lines(ax, over(magnitudes, formats), **labels, **look)
    # Every fourth and every eighth power of two; the automatic ticks fall on 2^-21, 2^-16, …
    for axis, every in (("x", 4), ("y", 8)):
        low, high = map(math.log2, getattr(ax.dataLim, f"interval{axis}"))
        exponents = range(every * math.ceil(low / every), math.floor(high) + 1, every)
        log_axis(ax, axis, [2.0**k for k in exponents], base=2, write=None)
    return figure, said


@described
def small_formats(formats: Series, *, limit: float) -> Drawn:
    """A line for each format with a mark at each of its values from -limit to limit. formats: name → all finite values."""
    figure, ax = axes(height=1.0 + 0.75 * len(formats))
    said = number_line(ax, formats, limit)
    ax.set(xlabel=f"value (those beyond ±{limit:g} are not drawn)")
    return figure, f"a number line for each format; {said}"
