"""Find the sentences of a lesson to reread when the output of a cell has changed."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from cs336course.cells import Cell
from cs336course.prose import Prose

#: The most sentences in a report: nobody reads more.
MOST = 4
#: Where a sentence, a list item, a row or a paragraph ends.
_END = re.compile(r"(?<=[.?!])[*_)]*\s+(?=[A-Z0-9*`$])|\n\s*\n|\n(?=\s*(?:[-|#]|\d+\. ))|$")


def sentences(cells: Sequence[Cell], changed: Cell, outputs: Sequence[dict[str, Any]]) -> list[str]:
    """The sentences of the prose that new outputs of a cell may have made untrue: at most MOST, in order.

    These are the sentences with a number that was tied to something (`prose.Prose`) and no longer is. If there are none,
    they are the sentence before the cell and the one after it.
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
    """The sentence in one line, without list or quotation marks."""
    return " ".join(sentence.split()).lstrip("->| ")


def _split(text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a text, each with the place where it begins."""
    start = 0
    for end in _END.finditer(text):
        if text[start : end.start()].strip():
            yield start, text[start : end.end()]
        start = end.end()
