"""How memory changes in the course of a step."""

from collections.abc import Mapping, Sequence

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
def stored_blocks(ways: Mapping[str, tuple[Sequence[float], str]]) -> Drawn:
    """A chain of blocks for each way of storing: how much of what a block makes is kept after the forward pass.

    ways: name → the share kept of each block, from 0 to 1, and what that costs, in words.
    """
    from matplotlib.patches import Rectangle

    figure, ax = axes(height=0.9 + 0.75 * len(ways))
    said, blocks = [], max(len(shares) for shares, _ in ways.values())
    for row, (name, (shares, costs)) in enumerate(ways.items()):
        y = -1.6 * row
        ax.text(-0.4, y + 0.5, name, ha="right", va="center", fontsize=12)
        for block, share in enumerate(shares):
            ax.add_patch(Rectangle((block, y), 0.9, 1, facecolor="white", edgecolor="#777777", linewidth=1))
            ax.add_patch(Rectangle((block, y), 0.9, share, facecolor=COLORS[0], edgecolor="#777777", linewidth=1))
        ax.text(blocks + 0.3, y + 0.5, costs, ha="left", va="center", fontsize=12)
        said.append(f"{name}: {sum(share > 0 for share in shares)} of {len(shares)} blocks keep something; {costs}")
    ax.set(xlim=(-6.5, blocks + 12), ylim=(-1.6 * len(ways) + 1.2, 1.3))
    ax.axis("off")
    return figure, "; ".join(said)
