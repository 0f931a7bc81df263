"""Rows of text as an aligned table, plain and in HTML: the one look of every table of the kit."""

from collections.abc import Sequence

_CELL = "padding:0.25em 0.9em;border-bottom:1px solid #d0d0d0;"


def as_text(lines: Sequence[Sequence[str]], align: str, *, gap: int = 3) -> str:
    """Columns as wide as their longest cell; `align` has one of ``<`` and ``>`` for each, `gap` spaces between."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(align))]
    return "\n".join(
        (" " * gap).join(f"{cell:{a}{w}}" for cell, a, w in zip(line, align, widths, strict=True)).rstrip()
        for line in lines
    )


def as_html(headers: Sequence[str], rows: Sequence[Sequence[str]], align: str, *, total: bool = False) -> str:
    """The same as an HTML table; with `total` the last row stands out. Without headers there is no head."""
    from html import escape  # only where HTML is shown: importing predict stays fast

    def row(cells: Sequence[str], tag: str, style: str = "") -> str:
        sides = ("left" if a == "<" else "right" for a in align)
        body = "".join(
            f'<{tag} style="text-align:{side};{_CELL}{style}">{escape(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{body}</tr>"

    head = f"<thead>{row(headers, 'th', 'border-bottom:2px solid #555;')}</thead>\n" if headers else ""
    body = "\n".join(row(cells, "th" if total and i == len(rows) else "td") for i, cells in enumerate(rows, 1))
    table = '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;">'
    return f"{table}\n{head}<tbody>\n{body}\n</tbody></table>"
