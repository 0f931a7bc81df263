"""Plain tables that are readable as text, in a notebook and on a projector."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cs336kit.predict._common.grid import as_html, as_text
from cs336kit.teach.numbers import as_python, text


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
    """Make a table of any values; numbers are aligned to the right, everything else to the left.

    align: a string of ``<`` and ``>``, one per column, to choose otherwise. caption: a line above the table. Raises
    ValueError when a row does not have one cell for each header.
    """
    titles = tuple(map(str, headers))
    cells = [tuple(row) for row in rows]
    for row in cells:
        if len(row) != len(titles):
            raise ValueError(f"the row {row!r} has {len(row)} cells, but the table {len(titles)} columns: {titles}")
    if align is None:
        align = "".join(">" if cells and all(_is_number(row[i]) for row in cells) else "<" for i in range(len(titles)))
    if len(align) != len(titles) or set(align) - {"<", ">"}:
        raise ValueError(f"align={align!r} must be one of < or > for each of the {len(titles)} columns")
    return Table(titles, tuple(tuple(map(text, row)) for row in cells), align, caption)


def _is_number(value: Any) -> bool:
    value = as_python(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
