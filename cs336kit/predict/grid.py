"""Rows of text as an aligned table, as text and in HTML: all tables of the kit look like this."""

from collections.abc import Sequence

# The text keeps the color of the page; this gray is visible on white and on black.
_CELL = "padding:0.25em 0.9em;border-bottom:1px solid #888888;"
_HEAD = "border-bottom:2px solid #888888;"


def as_text(lines: Sequence[Sequence[str]], align: str, *, gap: int = 3) -> str:
    """Columns as wide as their longest cell; `align` has one of ``<`` and ``>`` for each, `gap` spaces between."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(align))]
    return "\n".join(
        (" " * gap).join(f"{cell:{a}{w}}" for cell, a, w in zip(line, align, widths, strict=True)).rstrip()
        for line in lines
    )


def as_html(
    headers: Sequence[str], rows: Sequence[Sequence[str]], align: str, *, total: bool = False, caption: str = ""
) -> str:
    """The same as an HTML table whose first cells are row headers, and which scrolls by itself if it is too wide.

    With `total`, the last row is emphasized. Without headers, there is no table head.
    """
    from html import escape  # only where HTML is shown: importing predict stays fast

    sides = ["left" if a == "<" else "right" for a in align]

    def row(cells: Sequence[str], tags: Sequence[str], style: str) -> str:
        parts = zip(cells, tags, sides, strict=True)
        body = "".join(
            f'<{tag} style="text-align:{side};{_CELL}{style}">{escape(cell)}</{tag.split()[0]}>'
            for cell, tag, side in parts
        )
        return f"<tr>{body}</tr>"

    columns = ['th scope="col"'] * len(align)
    cells_of_row = ['th scope="row"', *["td"] * (len(align) - 1)]
    head = f"<thead>{row(headers, columns, _HEAD)}</thead>\n" if headers else ""
    weights = ["font-weight:normal;"] * len(rows)
    if total and rows:
        weights[-1] = "font-weight:bold;"
    body = "\n".join(row(cells, cells_of_row, weight) for cells, weight in zip(rows, weights, strict=True))
    title = f'<caption style="text-align:left;padding:0.25em 0.9em;">{escape(caption)}</caption>\n' if caption else ""
    table = '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;">'
    return f'<div style="overflow-x:auto;">{table}\n{title}{head}<tbody>\n{body}\n</tbody></table></div>'
