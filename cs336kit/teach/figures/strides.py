"""A strip of storage, and the tensors that read it."""

from collections.abc import Sequence
from itertools import product

from cs336kit.teach.figures.style import COLORS, Figure, axes, show


def strided(storage: Sequence, views: Sequence[tuple], *, alt: str) -> Figure:
    """Each view as a grid, beside the one strip of storage that all of them read.

    storage: the values in order; views: (name, shape, strides, offset) with one or two axes, in elements. A colour is
    a row of the view, and stands in figures below the strip too; an arrow is the step along an axis from the view's
    first element; grey is not touched.
    """
    left = max(shape[-1] for _, shape, _, _ in views) + 2.6  # where the strips begin
    heights = [max(shape[0] if len(shape) == 2 else 1, 3.0) + 1.4 for _, shape, _, _ in views]
    columns, lines = left + len(storage), sum(heights)
    inch = min(0.55, 8.8 / columns)
    figure, ax = axes(width=inch * columns, height=inch * lines)
    top = 0.0
    for (name, shape, strides, offset), height in zip(views, heights, strict=True):
        _view(ax, top, storage, name, shape, strides, offset)
        _strip(ax, left, top, storage, shape, strides, offset)
        top -= height
    ax.set_xlim(-0.6, columns - 0.4)
    ax.set_ylim(-lines + 1.3, 1.2)
    ax.set_aspect("equal")
    ax.axis("off")
    return show(figure, alt=alt)


def _rows(shape: tuple, strides: tuple) -> tuple[tuple, tuple]:
    """Shape and strides of the grid to draw: a vector is a grid of one row."""
    return (tuple(shape), tuple(strides)) if len(shape) == 2 else ((1, *shape), (0, *strides))


def _view(ax, top: float, storage: Sequence, name: str, shape: tuple, strides: tuple, offset: int):
    rows, steps = _rows(shape, strides)
    for i, j in product(*map(range, rows)):
        _cell(ax, j, top - i, storage[offset + i * steps[0] + j * steps[1]], COLORS[i % 6])
    ax.text(-0.5, top + 0.75, f"{name}   shape {tuple(shape)}", ha="left", va="center", fontsize=12)


def _strip(ax, left: float, top: float, storage: Sequence, shape: tuple, strides: tuple, offset: int):
    rows, steps = _rows(shape, strides)
    readers: dict[int, list[int]] = {}
    for i, j in product(*map(range, rows)):
        readers.setdefault(offset + i * steps[0] + j * steps[1], []).append(i)
    y = top - 1.2
    ax.text(left - 0.5, top + 0.75, f"strides {tuple(strides)}, offset {offset}", ha="left", va="center", fontsize=12)
    small = {"va": "center", "fontsize": 10.5, "color": "#444444"}
    for line, title in enumerate(["position", "row"][: len(shape)]):
        ax.text(left - 0.7, y - 0.8 - 0.5 * line, title, ha="right", **small)
    for position, value in enumerate(storage):
        owners = readers.get(position)
        _cell(ax, left + position, y, value, COLORS[owners[0] % 6] if owners else None)
        ax.text(left + position, y - 0.8, str(position), ha="center", **small)
        if owners and len(shape) == 2:
            first, last = owners[0], owners[-1]
            row = f"{first}–{last}" if last > first else str(first)
            ax.text(left + position, y - 1.3, row, ha="center", **small)
    moves = [(axis, step) for axis, (size, step) in enumerate(zip(shape, strides, strict=True)) if size > 1 and step]
    for level, (axis, step) in enumerate(sorted(moves, key=lambda move: (move[1], -move[0]))):
        _arrow(ax, left + offset, y + 0.5, step, 0.35 + 0.5 * level, f"axis {axis}: +{step}")


def _arrow(ax, x: float, y: float, step: int, height: float, label: str):
    """From one cell up, across, and down into the cell that is `step` further."""
    ax.plot([x, x, x + step], [y, y + height, y + height], color="#222222", linewidth=1.4, linestyle="-", marker="")
    ax.annotate("", (x + step, y), (x + step, y + height), arrowprops={"arrowstyle": "->", "lw": 1.4, "shrinkA": 0})
    ax.text(x + step + 0.2, y + height, label, ha="left", va="center", fontsize=10.5)


def _cell(ax, x: float, y: float, value: object, color: str | None):
    from matplotlib.patches import Rectangle

    face = color + "40" if color else "#f4f4f4"
    edge, order = (color, 2) if color else ("#bbbbbb", 1)  # the grey edge of a neighbour stays below
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor=edge, linewidth=1.2, zorder=order))
    ax.text(x, y, str(value), ha="center", va="center", fontsize=12, color="#111111" if color else "#999999")


def masks(panels: Sequence[tuple[str, Sequence[Sequence[bool]]]], *, alt: str) -> Figure:
    """Attention masks side by side: a row is a query, a column a key; filled with a dot where it may look.

    panels: (title, rows of booleans).
    """
    figure, plots = axes(1, len(panels), width=3.1 * len(panels), height=3.6, squeeze=False)
    for ax, (title, rows) in zip(plots[0], panels, strict=True):
        for i, row in enumerate(rows):
            for j, allowed in enumerate(row):
                _cell(ax, j, -i, "●" if allowed else "", COLORS[0] if allowed else None)
        ax.set_xlim(-0.6, len(rows[0]) - 0.4)
        ax.set_ylim(-len(rows) + 0.4, 0.6)
        ax.set_aspect("equal")
        ax.grid(False)
        ax.spines[:].set_visible(False)
        ax.set_xticks(range(len(rows[0])))
        ax.set_yticks([-i for i in range(len(rows))], [str(i) for i in range(len(rows))])
        ax.set_xlabel("key position")
        ax.set_ylabel("query position")
        ax.set_title(title, fontsize=12)
    return show(figure, alt=alt)
