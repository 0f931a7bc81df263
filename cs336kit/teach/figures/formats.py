"""Figures about number formats: where the values lie, how far they reach, and what sums lose."""

import math
from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show


def number_lines(formats: Mapping[str, Sequence[float]], *, limit: float, alt: str) -> Figure:
    """One line per format with a tick at each of its values from -limit to limit.

    formats: name → all finite values.
    """
    figure, ax = axes(height=0.8 + 0.62 * len(formats))
    for row, (_, values) in enumerate(formats.items()):
        inside = [x for x in values if abs(x) <= limit]
        ax.hlines(row, -limit, limit, color="#bbbbbb", linewidth=1)
        ax.vlines(inside, row - 0.3, row + 0.3, color=COLORS[row % len(COLORS)], linewidth=1.3)
    ax.set_yticks(range(len(formats)), [f"{name}\n{len(values)} values" for name, values in formats.items()])
    ax.set(xlabel=f"value (those beyond ±{limit:g} are not drawn)", ylim=(len(formats) - 0.5, -0.5))
    ax.grid(False)
    return show(figure, alt=alt)


def ranges(formats: Mapping[str, tuple[int, int, int, int]], *, alt: str) -> Figure:
    """Range and precision side by side: bars from the smallest to the largest power of two, and fraction bits.

    formats: name → (exponent of the smallest subnormal, of the smallest normal, of the largest value, fraction bits).
    """
    figure, (left, right) = axes(1, 2, width=9.5, height=0.9 + 0.42 * len(formats), sharey=True, width_ratios=(3, 1))
    rows = range(len(formats))
    lowest, normal, largest, fraction = (list(column) for column in zip(*formats.values(), strict=True))
    left.barh(rows, [n - s for n, s in zip(normal, lowest, strict=True)], left=lowest, color=COLORS[4],
              hatch=HATCHES[1], edgecolor="white", label="subnormal")  # fmt: skip
    left.barh(rows, [m + 1 - n for m, n in zip(largest, normal, strict=True)], left=normal, color=COLORS[0],
              label="normal")  # fmt: skip
    for row in rows:
        left.text(largest[row] + 4, row, f"2$^{{{largest[row]}}}$", va="center", fontsize=12)
        left.text(lowest[row] - 4, row, f"2$^{{{lowest[row]}}}$", va="center", ha="right", fontsize=12)
        right.text(fraction[row] + 0.4, row, str(fraction[row]), va="center", fontsize=12)
    left.set_yticks(rows, formats)
    left.set(xlabel="range: exponent of two", xlim=(min(lowest) - 42, max(largest) + 42))
    left.invert_yaxis()
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    right.barh(rows, fraction, color=COLORS[3], hatch=HATCHES[4], edgecolor="white")
    right.set(xlabel="precision: fraction bits", xlim=(0, max(fraction) * 1.2))
    return show(figure, alt=alt)


def spacings(magnitudes: Sequence[float], formats: Mapping[str, Sequence[float]], *, alt: str) -> Figure:
    """The distance between neighbouring values against magnitude, both axes logarithmic.

    formats: name → spacing at each magnitude (NaN where the format has no values).
    """
    figure, ax = axes(height=4.2)
    for name, spacing in formats.items():
        ax.plot(magnitudes, spacing, label=name, drawstyle="steps-post", marker="")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    # Every fourth and every eighth power of two; the automatic ticks fall on 2^-21, 2^-16, …
    finite = [x for spacing in formats.values() for x in spacing if not math.isnan(x)]
    ax.set_xticks(_powers_of_two(magnitudes, every=4))
    ax.set_yticks(_powers_of_two(finite, every=8))
    ax.minorticks_off()
    ax.set(xlabel="magnitude of the number", ylabel="distance to the next number")
    ax.legend(loc="upper left")
    return show(figure, alt=alt)


def _powers_of_two(values: Sequence[float], *, every: int) -> list[float]:
    """The powers of two within the values whose exponents are multiples of `every`."""
    lowest, highest = math.log2(min(values)), math.log2(max(values))
    return [2.0**k for k in range(every * math.ceil(lowest / every), math.floor(highest) + 1, every)]


def running_sums(terms: Sequence[int], sums: Mapping[str, Sequence[float]], *, alt: str) -> Figure:
    """Running totals against the number of terms, both axes logarithmic.

    sums: name → total after each number of terms.
    """
    figure, ax = axes(height=4.2)
    for name, totals in sums.items():
        ax.plot(terms, totals, label=name)
    ax.set(xscale="log", yscale="log", xlabel="terms added", ylabel="running total")
    ax.legend(loc="upper left")
    return show(figure, alt=alt)
