"""Outputs that tell an answer, folded by HTML's ``<details>`` until somebody opens them."""

from dataclasses import dataclass
from html import escape
from typing import Any

from cs336kit.teach.figures.style import Figure
from cs336kit.teach.tables import Table


def details(html: str, summary: str, *, open: bool = False) -> str:
    """This HTML under a line that opens and closes it."""
    return f'<details{" open" * open}><summary style="cursor:pointer">{escape(summary)}</summary>\n{html}\n</details>'


@dataclass(frozen=True, repr=False)
class Folded:
    """Something to show below a prediction, folded because it tells the answer; as text it is what it is."""

    what: Figure | Table | str
    summary: str

    def __repr__(self) -> str:
        return self.what if isinstance(self.what, str) else repr(self.what)

    def _repr_html_(self) -> str:
        # The bare SVG is left out: it would stand open wherever a front end prefers it.
        if isinstance(self.what, Figure):
            return details(self.what.image, self.summary)
        if isinstance(self.what, Table):
            return details(self.what._repr_html_(), self.summary)
        lines = "<br>\n".join(map(escape, self.what.splitlines()))
        return details(f"<p>{lines}</p>", self.summary)


def folded(what: Any, summary: str = "What it shows") -> Folded:
    """Fold a figure, a table or a text that would give away the answer to a prediction above it.

    summary: the line that stays in sight and opens it. Raises ValueError for anything else.
    """
    if not isinstance(what, (Figure, Table, str)):
        raise ValueError(f"folded takes a figure, a table or a text, not {type(what).__name__}")
    return Folded(what, summary)
