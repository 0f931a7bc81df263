"""Plain tables that are readable as text, in a notebook and on a projector."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cs336kit.predict.grid import as_html, as_text
from cs336kit.teach.numbers import text

#: A number as it is written, with its unit or without.
_WRITTEN = re.compile(
    r"[-−+±]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf)( ?([kMGTPE]?i?(B|bytes|bits|FLOPs?)(/s)?|days|h|min|[mµn]?s|%|×))?|nan"
)


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under headers, as aligned text and as HTML.

    headers: column titles; rows: tuples of cells as long as the headers; align: one of ``<`` ``>`` per column; caption: a
    line above the table.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str
    caption: str = ""

    def __repr__(self) -> str:
        title = [self.caption] if self.caption else []
        return "\n".join([*title, as_text([self.headers, *self.rows], self.align)])

    def _repr_html_(self) -> str:
        return as_html(self.headers, self.rows, self.align, caption=self.caption)


def table(
    headers: Iterable[object], rows: Iterable[Iterable[Any]], align: str | None = None, *, caption: str = ""
) -> Table:
    """Make a table of any values; numbers, also written ones, are aligned to the right, everything else to the left.

    align: a string of ``<`` and ``>``, one per column, to choose otherwise. caption: a line above the table. Raises
    ValueError when a row does not have one cell for each header.
    """
    titles = tuple(map(str, headers))
    cells = [tuple(row) for row in rows]
    for row in cells:
        if len(row) != len(titles):
            raise ValueError(f"the row {row!r} has {len(row)} cells, but the table {len(titles)} columns: {titles}")
    if align is None:
        align = "".join(">" if _are_numbers([row[i] for row in cells]) else "<" for i in range(len(titles)))
    if len(align) != len(titles) or set(align) - {"<", ">"}:
        raise ValueError(f"align={align!r} must be one of < or > for each of the {len(titles)} columns")
    return Table(titles, tuple(tuple(map(text, row)) for row in cells), align, caption)


def _are_numbers(column: Sequence[Any]) -> bool:
    cells = {*map(text, column)} - {"", "-", "–"}
    return bool(cells) and all(map(_WRITTEN.fullmatch, cells))
