"""Choose shape, strides and offset, and see which positions of the storage the tensor reads."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cs336kit import predict
from cs336kit.predict.checks import non_negative_int, positive_int
from cs336kit.teach.explorers.explorer import Explorer
from cs336kit.teach.figures.primitives import FAINT, QUIET
from cs336kit.teach.figures.style import COLORS, tint

_CELL = "border:1px solid {edge};background:{face};min-width:1.9em;padding:0.2em;text-align:center;color:{ink};"


def strides(
    shape: Sequence[int] = (3, 4), *, strides: Sequence[int] | None = None, offset: int = 0, elements: int = 12
) -> "StrideExplorer":
    """Explore how a tensor of one or two axes reads a storage that holds 0, 1, 2, … `elements` − 1.

    strides: those of a contiguous tensor unless given. With a kernel the numbers can be moved by hand. Errors: ValueError
    for impossible numbers or more than two axes.
    """
    return StrideExplorer(shape, strides, offset, elements)


class StrideExplorer(Explorer):
    """One reading of a storage: `positions` by index, whether it fits, and its picture as HTML and text."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int] | None, offset: int, elements: int):
        self.elements = positive_int("elements", elements)
        self.strides = predict.contiguous_strides(shape) if strides is None else tuple(strides)
        self.lowest, self.highest = predict.extent(shape, strides=self.strides, offset=offset)
        self.shape, self.offset = tuple(shape), non_negative_int("offset", offset)
        if len(self.shape) not in (1, 2):
            raise ValueError(f"the explorer draws one or two axes, not the shape {self.shape}.")
        numbers = {f"size{axis}": size for axis, size in enumerate(self.shape)}
        numbers |= {f"stride{axis}": step for axis, step in enumerate(self.strides)}
        self.choices = {**numbers, "offset": self.offset}

    @property
    def fits(self) -> bool:
        """Whether the storage is long enough."""
        return self.highest < self.elements

    @property
    def positions(self) -> list[list[int]]:
        """Position in the storage of every element, row by row (a vector is one row)."""
        rows, columns = self.shape if len(self.shape) == 2 else (1, *self.shape)
        down, right = self.strides if len(self.strides) == 2 else (0, *self.strides)
        return [[self.offset + i * down + j * right for j in range(columns)] for i in range(rows)]

    @property
    def verdict(self) -> str:
        """A sentence: how much is read, and what kind of view this is."""
        if not self.fits:
            return f"Position {self.highest} is needed and the storage ends at {self.elements - 1}: torch refuses."
        contiguous = all(
            size == 1 or step == plain
            for size, step, plain in zip(self.shape, self.strides, predict.contiguous_strides(self.shape), strict=True)
        )
        kind = "contiguous" if contiguous else "not contiguous"
        if predict.overlaps(self.shape, strides=self.strides):
            kind += ", and some elements are the same memory"
        touched = len({position for row in self.positions for position in row})
        return f"{math.prod(self.shape)} elements read {touched} of {self.elements} positions; {kind}."

    def _lines(self) -> list[str]:
        strip = [str(position) for position in range(self.elements)]
        owners = self._owners()
        used = ["^" * len(label) if position in owners else " " * len(label) for position, label in enumerate(strip)]
        width = len(str(self.highest))
        grid = [" ".join(f"{p:>{width}}" if p < self.elements else "?" * width for p in row) for row in self.positions]
        head = f"shape {self.shape}, strides {self.strides}, offset {self.offset}"
        lines = [head, "storage  " + " ".join(strip), "read     " + " ".join(used)]
        lines += [("tensor   " if i == 0 else "         ") + row for i, row in enumerate(grid)] + [self.verdict]
        return [line.rstrip() for line in lines]

    def _owners(self) -> dict[int, int]:
        """Position → the first row that reads it."""
        owners: dict[int, int] = {}
        for i, row in enumerate(self.positions):
            for position in row:
                owners.setdefault(position, i)
        return owners

    def _repr_html_(self) -> str:
        owners = self._owners()
        strip = "".join(_cell(str(p), owners.get(p)) for p in range(self.elements))
        rows = (
            "".join(_cell(str(p) if p < self.elements else "?", i if p < self.elements else None) for p in row)
            for i, row in enumerate(self.positions)
        )
        grid = "".join(f"<tr>{row}</tr>" for row in rows)
        # The cells keep their own background in every theme, and a long storage scrolls by itself.
        table = '<table aria-label="{}" style="border-collapse:collapse;margin:0.3em 0;">'
        return (
            f"<div><b>shape</b> {self.shape} · <b>strides</b> {self.strides} · <b>offset</b> {self.offset}<br>"
            f'storage <div style="overflow-x:auto;">{table.format("storage")}<tr>{strip}</tr></table></div>'
            f"tensor {table.format('tensor')}{grid}</table>{self.verdict}</div>"
        )

    def offers(self) -> Mapping[str, tuple[str, Sequence | Mapping]]:
        sizes = {f"size{axis}": (f"size {axis}", range(1, 9)) for axis in range(len(self.shape))}
        steps = {f"stride{axis}": (f"stride {axis}", range(self.elements + 1)) for axis in range(len(self.shape))}
        return {**sizes, **steps, "offset": ("offset", range(self.elements))}

    def choose(self, **choices: Any) -> None:
        chosen = {**self.choices, **choices}
        axes = range(len(self.shape))
        shape, strides = ([chosen[f"{of}{axis}"] for axis in axes] for of in ("size", "stride"))
        self.__dict__.update(StrideExplorer(shape, strides, chosen["offset"], self.elements).__dict__)


def _cell(text: str, row: int | None) -> str:
    edge = FAINT if row is None else COLORS[row % 6]
    face = "#f4f4f4" if row is None else tint(edge)
    return f'<td style="{_CELL.format(edge=edge, face=face, ink=QUIET if row is None else "#111111")}">{text}</td>'
