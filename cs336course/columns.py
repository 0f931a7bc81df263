"""Show two texts side by side at a terminal: the lines that differ, and a line of context."""

from difflib import SequenceMatcher
from itertools import zip_longest

#: The width of one column; both, and what is between them, fit into 100.
WIDTH = 48
#: How much of a long line is shown before the place where it differs.
_LEAD = 20


def side_by_side(stored: str, new: str, most: int = 40) -> str:
    """Both texts in two columns, ``|`` between lines that differ; equal lines far from a difference are left out.

    A line that is longer than its column is cut to the part that differs. most: rows to show; the others are counted.
    """
    old, now = stored.splitlines(), new.splitlines()
    rows: list[str] = []
    for group in SequenceMatcher(None, old, now, autojunk=False).get_grouped_opcodes(n=1):
        if rows:
            rows.append(_row("...", "...", " "))
        for what, a, b, c, d in group:
            for left, right in zip_longest(old[a:b], now[c:d], fillvalue=""):
                rows.append(_row(left, right, " " if what == "equal" else "|"))
    left_out = [f"... and {len(rows) - most} more lines"] if len(rows) > most else []
    return "\n".join([_row("stored", "new", " "), *rows[:most], *left_out])


def _row(left: str, right: str, mark: str) -> str:
    left, right = left.expandtabs(), right.expandtabs()
    start = 0
    if max(len(left), len(right)) > WIDTH:
        same = next((place for place, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
        start = max(0, same - _LEAD)
    return f"{_cut(left, start):<{WIDTH}} {mark} {_cut(right, start)}".rstrip()


def _cut(line: str, start: int) -> str:
    """The part of a line that fits into a column, with ... where something is left out."""
    shown = "..." + line[start + 3 :] if start else line
    return shown if len(shown) <= WIDTH else shown[: WIDTH - 3] + "..."
