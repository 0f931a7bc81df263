"""The FLOPs of a block."""

import math
from collections.abc import Sequence
from itertools import pairwise

from cs336kit.teach.figures.primitives import Look, Series, lines, log_axis, over
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def block_flops(lengths: Sequence[int], parts: Series) -> Drawn:
    """FLOPs of the parts of a block over the length of the sequence, both logarithmic; a ring is where the first two cross."""
    figure, ax = axes(height=4)
    labels: Look = {"xlabel": "tokens in the sequence", "ylabel": "FLOPs of one block"}
    said = lines(ax, over(lengths, parts), legend={"loc": "upper left"}, markersize=5, **labels)
    log_axis(ax, "x", lengths[::2], base=2)
    ax.set_yscale("log")
    first, second, *_ = parts.values()
    ratios = [math.log(b / a) for a, b in zip(first, second, strict=True)]
    for i, (before, after) in enumerate(pairwise(ratios)):
        if before < 0 <= after:
            share = before / (before - after)  # between two points a line is straight, as both axes are logarithmic
            x, y = (of[i] * (of[i + 1] / of[i]) ** share for of in (lengths, first))
            ax.plot([x], [y], marker="o", markersize=14, fillstyle="none", linestyle="", color=COLORS[6])
            ax.annotate(f"{x:,.0f} tokens", (x, y), (6, 14), textcoords="offset points", ha="right", fontsize=12)
            said += f"; the first two cross at {x:,.0f}"
    return figure, said
