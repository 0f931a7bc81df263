"""Number formats: how far they reach, how the spacing grows, and which numbers the small ones have."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import Look, Series, lines, listed, log_axis, number_line, over
from cs336kit.teach.figures.style import COLORS, HATCHES, Drawn, axes, described


@described
def ranges(formats: Mapping[str, tuple[int, int, int, int]]) -> Drawn:
    """Range and precision side by side: bars from the smallest to the largest power of two, and fraction bits.

    formats: name → (exponent of the smallest subnormal, of the smallest normal, of the largest value, fraction bits).
    """
    figure, (left, right) = axes(1, 2, height=1.0 + 0.45 * len(formats), sharey=True, width_ratios=(3, 1.2))
    figure.get_layout_engine().set(wspace=0.06)  # the numbers below both stay apart
    for row, (low, _, high, bits) in enumerate(formats.values()):
        left.text(high + 4, row, f"below 2$^{{{high + 1}}}$", va="center", fontsize=12)
        left.text(low - 4, row, f"2$^{{{low}}}$", va="center", ha="right", fontsize=12)
        right.text(bits + 0.4, row, str(bits), va="center", fontsize=12)
    rows = range(len(formats))
    lowest, normal, largest, fraction = (list(column) for column in zip(*formats.values(), strict=True))
    below = [n - s for n, s in zip(normal, lowest, strict=True)]
    above = [m + 1 - n for m, n in zip(largest, normal, strict=True)]
    look = {"hatch": HATCHES[1], "edgecolor": "white"}
    left.barh(rows, below, left=lowest, color=COLORS[4], label="subnormal", **look)
    left.barh(rows, above, left=normal, color=COLORS[0], label="normal")
    left.set_yticks(rows, formats)
    left.set(xlabel="range: exponent of two", xlim=(min(lowest) - 42, max(largest) + 80))
    left.invert_yaxis()
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    right.barh(rows, fraction, color=COLORS[3], hatch=HATCHES[4], edgecolor="white")
    right.set(xlabel="fraction bits", xlim=(0, max(fraction) * 1.2))
    reach = ", ".join(f"{name} 2^{low} to 2^{high}" for name, (low, _, high, _) in formats.items())
    return figure, f"range of each format: {reach}. Fraction bits: {listed(list(formats), fraction)}"


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
