"""Tensors with the names of their axes."""

import re
from collections.abc import Mapping
from typing import Any

from cs336kit.teach.figures.primitives import cell
from cs336kit.teach.figures.style import Drawn, axes, described

#: Between two tensors, and above a block that is one of several, in cells.
BESIDE, ABOVE = 2.4, 1.0


@described
def named_axes(panels: Mapping[str, tuple]) -> Drawn:
    """Tensors side by side, each with the name of every axis where it runs: columns, rows, and blocks of rows.

    panels: title → (names, tensor) or (names, tensor, colors). names: of up to three axes as in a pattern, "a s (h d)";
    colors: the number of a color for each element, -1 for gray; or the index of the only part that is not gray. Raises
    ValueError where names and axes differ in number.
    """
    drawn = [
        (title, axis_names(names, tensor), tensor, *(_colors(tensor, how) for how in colors))
        for title, (names, tensor, *colors) in panels.items()
    ]
    shapes = [(1,) * (3 - tensor.ndim) + tuple(tensor.shape) for _, _, tensor, *_ in drawn]
    widest = sum(columns + BESIDE for *_, columns in shapes)
    tallest = max(blocks * (rows + ABOVE) for blocks, rows, _ in shapes)
    inch = min(0.5, 8 / widest)
    figure, ax = axes(width=inch * widest, height=inch * (tallest + 2.2))
    left = 0.0
    for (title, names, tensor, *colors), (blocks, rows, columns) in zip(drawn, shapes, strict=True):
        top = (tallest - blocks * (rows + ABOVE)) / 2
        ax.text(left + (columns - 1) / 2, top - 0.9, title, ha="center", va="center", fontsize=12)
        values = tensor.reshape(blocks, rows, columns).tolist()
        shades = colors[0].reshape(blocks, rows, columns).tolist() if colors else None
        small: dict[str, Any] = {"va": "center", "fontsize": 10.5, "color": "#444444"}
        for number, block in enumerate(values):
            top += ABOVE
            if tensor.ndim == 3:
                ax.text(left - 0.5, top - 0.85, f"{names[0]} = {number}", ha="left", **small)
            for i, row in enumerate(block):
                for j, element in enumerate(row):
                    shade = shades[number][i][j] if shades else 0
                    cell(ax, left + j, top + i, written(element, values), None if shade < 0 else int(shade))
            if tensor.ndim > 1 and number == 0:
                ax.text(left - 0.65, top + (rows - 1) / 2, f"{names[-2]} ↓", ha="right", **small)
            top += rows
        if names:
            ax.text(left + (columns - 1) / 2, top + 0.05, f"{names[-1]} →", ha="center", **small)
        left += columns + BESIDE
    ax.set(xlim=(-1.7, widest - 1.7), ylim=(tallest + 0.6, -1.6), aspect="equal")
    ax.axis("off")
    said = "; ".join(
        f"{title}, axes {' '.join(names) or 'none'}: {tensor.tolist()}" for title, names, tensor, *_ in drawn
    )
    return figure, f"tensors with the names of their axes. {said}"


def _colors(tensor: Any, how: Any) -> Any:
    """The number of a color for each element."""
    if not isinstance(how, tuple):
        return how
    colors = tensor.new_full(tensor.shape, -1)
    colors[how] = 0
    return colors


def axis_names(names: str, tensor: Any) -> list[str]:
    """The name of each axis, with a bracket as one."""
    found = re.findall(r"\([^)]*\)|\S+", names)
    if len(found) != tensor.ndim or tensor.ndim > 3:
        raise ValueError(f"{names!r} names {len(found)} axes, and the tensor has {tensor.ndim}; at most 3 can be drawn")
    return found


def written(element: float, values: list) -> str:
    """An element as it stands in its cell: counts of two digits with a zero in front, where all are such."""
    flat = [each for block in values for row in block for each in row]
    wide = all(isinstance(each, int) and 0 <= each < 100 for each in flat) and max(flat) > 9
    return f"{element:02d}" if wide else f"{element:g}"
