"""How memory changes in the course of a step."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import QUIET, Look, lines
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described

_MIB = 2**20


@described
def step_course(
    live_bytes: Sequence[int], borders: Sequence[tuple[int, int]], marks: Sequence[tuple[int, str]]
) -> Drawn:
    """Live bytes (MiB) after each operation of a step, what was predicted for some of them, and what is alive at a few.

    borders: (predicted bytes, number of the operation); marks: (number of the operation, what is alive then), which stand
    as numbers on the curve and as words below it.
    """
    figure, ax = axes(height=4 + 0.25 * len(marks))
    places, sizes = _visible(live_bytes)
    look = {"facecolor": "#c3dbec", "edgecolor": COLORS[0], "linewidth": 0.8}
    ax.fill_between(places, sizes, step="post", label="counted", **look)
    points = [index for _, index in borders], [size / _MIB for size, _ in borders]
    hollow: Look = {"marker": "o", "markersize": 7, "fillstyle": "none", "color": COLORS[4]}
    label: Look = {"xlabel": "operations of the step", "ylabel": "alive (MiB)"}
    said = lines(ax, {}, {"predicted, between blocks": points}, mark=hollow, **label)
    circle: Look = {"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": QUIET}
    height, keys, words = max(live_bytes) / _MIB, [], []
    for number, (index, alive) in enumerate(marks, start=1):
        size = live_bytes[index] / _MIB
        ax.annotate(
            str(number), (index, size), (0, 20), textcoords="offset points", ha="center", va="center", fontsize=11,
            bbox=circle, arrowprops={"arrowstyle": "-", "color": QUIET},
        )  # fmt: skip
        keys.append(f"{number}   {size:.1f} MiB: {' '.join(alive.split())}")
        words.append(f"({number}) {size:.1f} MiB, {' '.join(alive.split())}")
    ax.set(xlim=(0, 1.03 * len(live_bytes)), ylim=(0, 1.3 * height))
    ax.grid(visible=False)
    figure.supxlabel("\n".join(keys), x=0.01, ha="left", fontsize=11, linespacing=1.5)
    ax.legend(loc="upper left", ncols=2, bbox_to_anchor=(0, 1.16))
    return figure, f"{said}; counted peak {height:,.4g} MiB; alive at the numbers: {'; '.join(words)}"


def _visible(live_bytes: Sequence[int]) -> tuple[list[int], list[float]]:
    """The points at which the curve moves by more than 0.4 % of its height, its top, and its ends; sizes in MiB."""
    top = max(live_bytes)
    places = [0]
    for index, size in enumerate(live_bytes):
        if abs(size - live_bytes[places[-1]]) > 0.004 * top or size == top:
            places.append(index)
    places.append(len(live_bytes) - 1)
    return places, [live_bytes[index] / _MIB for index in places]


@described
def storing(rows: Sequence[tuple[str, Sequence[float], float, float]]) -> Drawn:
    """Ways to store a stack of blocks for the backward pass, a row each: what is stored, bytes at the peak, extra work.

    rows: (name, the stored share of what each block keeps, from 0 to 1, bytes at the peak, extra forward passes).
    """
    from matplotlib.patches import Rectangle

    figure, ax = axes(height=0.55 * len(rows) + 0.6)
    blocks = max(len(shares) for _, shares, *_ in rows)
    peak, work = blocks + 2.6, blocks + 7.2
    for x, head, side in ((0, "stored of each block", "left"), (peak, "MiB", "right"), (work, "passes more", "right")):
        ax.text(x, 1, head, ha=side, fontsize=11, color=QUIET)
    for n, (name, shares, size, again) in enumerate(rows):
        ax.text(-0.4, 0.35 - n, name, ha="right", va="center", fontsize=11)
        for place, share in enumerate(shares):
            look: Look = {"edgecolor": QUIET, "linewidth": 0.8}
            ax.add_patch(Rectangle((place, -n), 0.8, 0.7, facecolor="white", **look))
            ax.add_patch(Rectangle((place, -n), 0.8, 0.7 * share, facecolor=COLORS[0], linewidth=0))
        for x, number in ((peak, f"{size / _MIB:.1f}"), (work, f"{again:.2f}")):
            ax.text(x, 0.35 - n, number, ha="right", va="center", fontsize=11)
    ax.set(xlim=(-5.2, work + 0.2), ylim=(0.9 - len(rows), 1.5))
    ax.axis("off")
    said = "; ".join(
        f"{name}: {sum(share > 0 for share in shares)} of {len(shares)} blocks store {max(shares):.0%} at most, "
        f"{size / _MIB:.1f} MiB, {again:.2f} forward passes more"
        for name, shares, size, again in rows
    )
    return figure, f"What is stored, the peak, and the extra work: {said}"
