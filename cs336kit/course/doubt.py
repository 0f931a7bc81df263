"""Which sentences of a lesson to read again when a cell shows something else than it did."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from cs336kit.course.cells import Cell
from cs336kit.course.prose import Prose

#: More than that nobody reads in a report.
MOST = 4
#: Where a sentence, a list item, a row or a paragraph ends.
_END = re.compile(r"(?<=[.?!])[*_)]*\s+(?=[A-Z0-9*`$])|\n\s*\n|\n(?=\s*(?:[-|#]|\d+\. ))|$")


def sentences(cells: Sequence[Cell], changed: Cell, outputs: Sequence[dict[str, Any]]) -> list[str]:
    """What the prose says that these new outputs of a cell may have made untrue: MOST sentences at most, in their order.

    Those with a number that was tied to something (`prose.Prose`) and no longer is; where there is none, the sentence
    before the cell and the one after it.
    """
    place = next(i for i, cell in enumerate(cells) if cell is changed)
    before = Prose(cells)
    after = Prose([*cells[:place], {**changed, "outputs": list(outputs)}, *cells[place + 1 :]])
    held = {(i, number) for i, number in before.untied()}
    lost = [(i, number.start) for i, number in after.untied() if (i, number) not in held]
    told = [next(text for start, text in _split(after.texts[i]) if start <= at < start + len(text)) for i, at in lost]
    return list(dict.fromkeys(map(_plain, told)))[:MOST] or [*_beside(after.texts, place)]


def _beside(texts: Sequence[str], place: int) -> Iterator[str]:
    for nearest, which in ((reversed(texts[:place]), -1), (iter(texts[place + 1 :]), 0)):
        said = ([text for _, text in _split(text) if not text.startswith("#")] for text in nearest)
        yield from (_plain(text[which]) for text in [next(filter(None, said), None)] if text)


def _plain(sentence: str) -> str:
    """In one line, without the mark of a list or a quotation."""
    return " ".join(sentence.split()).lstrip("->| ")


def _split(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a text, each with the place where it begins."""
    start = 0
    for end in _END.finditer(text):
        if text[start : end.start()].strip():
            yield start, text[start : end.end()]
        start = end.end()
