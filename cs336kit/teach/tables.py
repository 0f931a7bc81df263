"""Plain tables that are readable as text, in a notebook and on a projector."""

from dataclasses import dataclass

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


def table(headers, rows, align: str | None = None, *, caption: str = "") -> Table:
    """Make a table of any values; numbers are aligned to the right, everything else to the left.

    align: a string of ``<`` and ``>``, one per column, to choose otherwise. caption: a line above the table. Raises
    ValueError when a row does not have one cell for each header.
    """
    headers = tuple(str(header) for header in headers)
    rows = [tuple(row) for row in rows]
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"the row {row!r} has {len(row)} cells, but the table {len(headers)} columns: {headers}")
    if align is None:
        align = "".join(">" if rows and all(_is_number(row[i]) for row in rows) else "<" for i in range(len(headers)))
    if len(align) != len(headers) or set(align) - {"<", ">"}:
        raise ValueError(f"align={align!r} must be one of < or > for each of the {len(headers)} columns")
    return Table(headers, tuple(tuple(text(cell) for cell in row) for row in rows), align, caption)


def _is_number(value) -> bool:
    value = as_python(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
