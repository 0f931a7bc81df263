"""How long a lesson takes: a reader's pace, the halves before and after its Pause, and the exercises beside them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from cs336course import cells as kind
from cs336course.cells import Cell
from cs336course.roles import FURTHER, PAUSE, output_lines

#: A reader's pace: words of prose a minute, and seconds for a line of code that has to be understood, for a figure or a
#: table, for a prediction, and for one that wants a pencil (tag ``pencil``).
WORDS_PER_MINUTE, LINE, PICTURE, PREDICTION, PENCIL = 200, 15, 20, 90, 180
#: From this many lines on, printed text is read as a table is.
PRINTED = 3
EXERCISE = re.compile(r"### Exercise (\d\d\.\d) (★{1,3}) (\d+) min · (\S.*)")
DRILLS = re.compile(r"### Drills (\d+) min$", flags=re.M)
#: The line of times, as `pages.header` writes it.
HEADER = re.compile(r"^\d+ minutes\b.*\d+ more for exercises.* · .*$", flags=re.M)
#: A line of code that nobody stops at: empty, a comment, an import, or brackets that close.
_PASSED = re.compile(r"\s*(#.*|import .*|from .* import .*|[()\[\]{},]*)")


class Minutes(NamedTuple):
    """Minutes of a lesson, or of a part of it.

    reading: with predictions, without what is under Further; exercises: with drills; further: reading under Further.
    """

    reading: int
    exercises: int
    further: int = 0

    @property
    def both(self) -> int:
        """Reading and exercises, without Further."""
        return self.reading + self.exercises


def minutes(cells: Sequence[Cell]) -> Minutes:
    """The minutes of these cells, computed at a reader's pace."""
    within = len([*core(cells)])
    tasks = sum(int(found[3]) for found in exercises(cells)) + sum(
        int(found[1]) for cell in cells if (found := DRILLS.match(kind.source(cell)))
    )
    return Minutes(round(_seconds(cells[:within]) / 60), tasks, round(_seconds(cells[within:]) / 60))


def halves(cells: Sequence[Cell]) -> list[Minutes]:
    """The minutes before and after the lesson's Pause, without Further; the whole lesson if it has no Pause."""
    whole = [*core(cells)]
    at = [place for place, cell in enumerate(whole) if kind.source(cell).startswith(PAUSE)]
    if not at:
        return [minutes(whole)]
    before, every = minutes(whole[: at[0]]), minutes(whole)
    # The halves add up to the whole, which rounding each of them would not always give.
    return [before, Minutes(every.reading - before.reading, every.exercises - before.exercises)]


def _seconds(cells: Sequence[Cell]) -> float:
    """Seconds of reading, looking and predicting; a task, its stub and its solution are part of the exercise's minutes."""
    seconds, answering = 0.0, False
    for cell in cells:
        text, tags = kind.source(cell), {*kind.tags(cell)}
        begins = EXERCISE.match(text) or DRILLS.match(text)
        answering = bool(begins) or (answering and bool({"exercise", "solution", "drill"} & tags))
        if answering or {"page", "aside"} & tags:
            continue
        if cell["cell_type"] == "markdown":
            seconds += words(text) * 60 / WORDS_PER_MINUTE
        elif "prediction" in tags:
            # To open the answer and to see how far off one was belongs to it; the answer's code is folded away.
            seconds += PENCIL if "pencil" in tags else PREDICTION
        elif "answer" not in tags:
            seconds += LINE * sum(not _PASSED.fullmatch(line) for line in text.splitlines())
            seconds += PICTURE * sum(map(_looked_at, cell.get("outputs", [])))
    return seconds


def _looked_at(output: Cell) -> bool:
    """Whether an output is a figure, a table, or as much text as one."""
    shown = {*output.get("data", {})}
    return bool({"text/html", "image/svg+xml"} & shown) or output_lines(output) >= PRINTED


def exercises(cells: Iterable[Cell]) -> Iterator[re.Match[str]]:
    """The headings of the exercises in these cells: id, stars, minutes, title."""
    return filter(None, (EXERCISE.match(kind.source(cell)) for cell in cells))


def core(cells: Sequence[Cell]) -> Iterator[Cell]:
    """The cells before the heading Further."""
    for cell in cells:
        if kind.source(cell).startswith(FURTHER):
            return
        yield cell


@lru_cache(maxsize=4096)  # the notes of each slide ask for the minutes of the whole lesson
def words(text: str) -> int:
    """The number of words in a cell of prose; formulas, links, markup and the line of times do not count."""
    text = HEADER.sub("", kind.unfolded(text))
    return len(re.sub(r"\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|[|`#>*·-]", " ", text, flags=re.S).split())
