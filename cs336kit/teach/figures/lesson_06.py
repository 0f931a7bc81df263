"""The FLOPs of a block."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import Look, Series, lines, log_axis, over
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def block_flops(lengths: Sequence[int], parts: Series) -> Drawn:
    """FLOPs of the parts of a block over the length of the sequence, both logarithmic."""
    figure, ax = axes(height=4)
    labels: Look = {"xlabel": "tokens in the sequence", "ylabel": "FLOPs of one block"}
    said = lines(ax, over(lengths, parts), legend={"loc": "upper left"}, markersize=5, **labels)
    log_axis(ax, "x", lengths[::2], base=2)
    ax.set_yscale("log")
    return figure, said
