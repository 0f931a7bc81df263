"""A strip of storage, and the tensors that read it."""

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

from cs336kit.teach.figures.primitives import Series, cell, lines
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def strided(storage: Sequence, views: Sequence[tuple]) -> Drawn:
    """Each view as a grid, beside the one strip of storage that all of them read.

    storage: the values in order; views: (name, shape, strides, offset) with one or two axes, in elements. A color is
    a row of the view, and stands in figures below the strip too; an arrow is the step along an axis from the view's
    first element; gray is not touched.
    """
    left = max(shape[-1] for _, shape, _, _ in views) + 2.6  # where the strips begin
    heights = [max(shape[0] if len(shape) == 2 else 1, 3.0) + 1.4 for _, shape, _, _ in views]
    columns, height = left + len(storage), sum(heights)
    inch = min(0.5, 8 / columns)
    figure, ax = axes(width=inch * columns, height=inch * height)
    top = 0.0
    for (name, shape, strides, offset), below in zip(views, heights, strict=True):
        rows, steps = (shape, strides) if len(shape) == 2 else ((1, *shape), (0, *strides))  # a vector is one row
        read = {(i, j): offset + i * steps[0] + j * steps[1] for i, j in product(*map(range, rows))}
        for (i, j), position in read.items():
            cell(ax, j, top - i, storage[position], i)
        ax.text(-0.5, top + 0.75, f"{name}   shape {tuple(shape)}", ha="left", va="center", fontsize=12)
        _strip(ax, left, top, storage, shape, strides, offset, read)
        top -= below
    ax.set(xlim=(-0.6, columns - 0.4), ylim=(-height + 1.3, 1.2), aspect="equal")
    ax.axis("off")
    said = ", ".join(f"{name} with shape {tuple(h)}, strides {tuple(s)} and offset {o}" for name, h, s, o in views)
    return figure, f"one strip of {len(storage)} elements is read by {said}"


def _strip(
    ax: Any,
    left: float,
    top: float,
    storage: Sequence,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    read: dict,
) -> None:
    y = top - 1.2
    ax.text(left - 0.5, top + 0.75, f"strides {tuple(strides)}, offset {offset}", ha="left", va="center", fontsize=12)
    small = {"va": "center", "fontsize": 10.5, "color": "#444444"}
    for line, title in enumerate(["position", "row"][: len(shape)]):
        ax.text(left - 0.7, y - 0.8 - 0.5 * line, title, ha="right", **small)
    for position, value in enumerate(storage):
        owners = [i for (i, _), where in read.items() if where == position]
        cell(ax, left + position, y, value, owners[0] if owners else None)
        ax.text(left + position, y - 0.8, str(position), ha="center", **small)
        if owners and len(shape) == 2:
            row = f"{owners[0]}–{owners[-1]}" if owners[-1] > owners[0] else str(owners[0])
            ax.text(left + position, y - 1.3, row, ha="center", **small)
    moves = [(axis, step) for axis, (size, step) in enumerate(zip(shape, strides, strict=True)) if size > 1 and step]
    for level, (axis, step) in enumerate(sorted(moves, key=lambda move: (move[1], -move[0]))):
        # If the arrow of the other axis comes down where the label would be, the label is on the other side.
        crossed = any(0 < other - step <= 2.5 for _, other in moves)
        _arrow(ax, left + offset, y + 0.5, step, 0.35 + 0.5 * level, f"axis {axis}: +{step}", before=crossed)


def _arrow(ax: Any, x: float, y: float, step: int, height: float, label: str, before: bool) -> None:
    """An arrow from one cell up, across, and down to the cell that is `step` farther on."""
    ax.plot([x, x, x + step], [y, y + height, y + height], color="#222222", linewidth=1.4, linestyle="-", marker="")
    ax.annotate("", (x + step, y), (x + step, y + height), arrowprops={"arrowstyle": "->", "lw": 1.4, "shrinkA": 0})
    place, side = (x - 0.2, "right") if before else (x + step + 0.2, "left")
    ax.text(place, y + height, label, ha=side, va="center", fontsize=10.5)


@described
def walks(orders: Series) -> Drawn:
    """The positions in the storage where tensors find their elements, in order: a straight line means a single stride."""
    figure, ax = axes(height=3.9)
    drawn = {name: (range(len(positions)), positions) for name, positions in orders.items()}
    said = lines(ax, drawn, xlabel="elements, in order", ylabel="position in the storage", legend={"loc": "upper left"})
    steps = [[b - a for a, b in pairwise(order)] for order in orders.values()]
    kinds = [
        f"{name} {'is a straight line' if len(set(step)) <= 1 else 'is not straight, with steps ' + ', '.join(map(str, step))}"
        for name, step in zip(orders, steps, strict=True)
    ]
    return figure, f"{said}. {'; '.join(kinds)}"
