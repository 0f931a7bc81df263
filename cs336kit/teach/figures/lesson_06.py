"""One matrix product, and the FLOPs of a block."""

import math
from collections.abc import Sequence
from itertools import pairwise

from cs336kit.teach.figures.primitives import FAINT, QUIET, Look, Series, cell, lines, log_axis, over
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def one_product(M: int, K: int, N: int) -> Drawn:
    """x (M × K), w (K × N) and the result, with the row and the column that meet in one number of the result."""
    figure, ax = axes(width=7.5, height=3.4)
    column, w_left, out_left = N - 2, K + 1.6, K + N + 3.6
    look: Look = {"edgecolor": FAINT, "linewidth": 1}
    for left, rows, columns, chosen, color in (
        (0.0, M, K, lambda row, _: row == 1, COLORS[0]),
        (w_left, K, N, lambda _, place: place == column, COLORS[1]),
        (out_left, M, N, lambda row, place: (row, place) == (1, column), COLORS[2]),
    ):
        for row in range(rows):
            for place in range(columns):
                face = color + "90" if chosen(row, place) else "#f7f7f7"
                cell(ax, left + place, row + (K - rows) / 2, "", facecolor=face, **look)
    middle = (K - 1) / 2
    for x, sign in ((w_left - 1.3, "@"), (out_left - 1.3, "=")):
        ax.text(x, middle, sign, ha="center", va="center", fontsize=18)
    for x, text in (((K - 1) / 2, f"x: {M} × {K}"), (w_left + (N - 1) / 2, f"w: {K} × {N}"),
                    (out_left + (N - 1) / 2, f"result: {M} × {N}")):  # fmt: skip
        ax.text(x, -0.9, text, ha="center", va="bottom")
    said = f"one number of the result: {K} multiplications, {K} additions"
    ax.text(out_left + N - 0.5, K - 0.1, said, ha="right", va="top", fontsize=12, color=QUIET)
    ax.set(xlim=(-0.8, out_left + N - 0.2), ylim=(K + 0.7, -1.7), aspect="equal")
    ax.axis("off")
    return figure, (
        f"a row of x ({M} × {K}) and a column of w ({K} × {N}), both of length {K}, meet in one number of the "
        f"result ({M} × {N}), with {K} multiplications and {K} additions"
    )


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
