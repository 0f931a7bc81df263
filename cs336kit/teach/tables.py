"""Plain tables that read well as text, in a notebook and on a projector."""

import html
from dataclasses import dataclass

from cs336kit.teach.numbers import as_python, text

_CELL = "padding:0.25em 0.9em;border-bottom:1px solid #d0d0d0;"


@dataclass(frozen=True, repr=False)
class Table:
    """Rows under headers, as aligned text and as HTML.

    headers: column titles; rows: tuples of cells as long as the headers; align: one of ``<`` ``>`` per column.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    align: str

    def __repr__(self) -> str:
        lines = [self.headers, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.headers))]
        return "\n".join(
            "   ".join(f"{cell:{a}{w}}" for cell, a, w in zip(line, self.align, widths, strict=True)).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        def row(cells, tag, style):
            sides = ("left" if a == "<" else "right" for a in self.align)
            body = "".join(
                f'<{tag} style="text-align:{side};{_CELL}{style}">{html.escape(cell)}</{tag}>'
                for cell, side in zip(cells, sides, strict=True)
            )
            return f"<tr>{body}</tr>"

        head = row(self.headers, "th", "border-bottom:2px solid #555;")
        body = "\n".join(row(cells, "td", "") for cells in self.rows)
        return (
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;">\n'
            f"<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table>"
        )


def table(headers, rows, align: str | None = None) -> Table:
    """Make a table of any values; numbers stand to the right, everything else to the left.

    align: a string of ``<`` and ``>``, one per column, to decide otherwise. Raises ValueError when a row does not have
    one cell for each header.
    """
    headers = tuple(str(header) for header in headers)
    rows = [tuple(row) for row in rows]
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"the row {row!r} has {len(row)} cells and the table {len(headers)} columns: {headers}")
    if align is None:
        align = "".join(">" if rows and all(_is_number(row[i]) for row in rows) else "<" for i in range(len(headers)))
    if len(align) != len(headers) or set(align) - {"<", ">"}:
        raise ValueError(f"align={align!r} must be one of < or > for each of the {len(headers)} columns")
    return Table(headers, tuple(tuple(text(cell) for cell in row) for row in rows), align)


def _is_number(value) -> bool:
    value = as_python(value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)
