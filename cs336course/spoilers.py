"""Where a lesson gives away the answer to a prediction: above it, below it, or in the code that finds it.

Below a prediction, up to the next heading, figure or exercise, nothing unfolded may contain the number or the word that is
revealed: no prose, no output, no alt text. A number counts in digits, rounded to as many as are written, and in words. Above
it, from the heading of its section on, the same holds for what can be no accident: a word to choose, or a number of three
digits. What means the same in other words ("nearly five months") only a reader can find.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from cs336course import cells as kind
from cs336course.arithmetic import FACTORS
from cs336course.cells import Cell
from cs336course.outputs import text_of
from cs336course.prose import Number, numbers

#: What words say about a number, each with the values that it may stand for.
WORDS: dict[str, tuple[float, ...]] = {
    "zero": (0,), "one": (1,), "two": (2,), "three": (3,), "four": (4,), "five": (5,), "six": (6,), "seven": (7,), "eight": (8,),
    "nine": (9,), "ten": (10,), "eleven": (11,), "twelve": (12,), "thirteen": (13,), "fourteen": (14,), "fifteen": (15,),
    "sixteen": (16,), "seventeen": (17,), "eighteen": (18,), "nineteen": (19,), "twenty": (20,), "thirty": (30,), "forty": (40,),
    "fifty": (50,), "sixty": (60,), "seventy": (70,), "eighty": (80,), "ninety": (90,), "hundred": (100,), "thousand": (1e3,),
    "million": (1e6,), "none": (0,), "nothing": (0,), "never": (0,), "once": (1,), "all": (100,), "half": (0.5, 50),
    "halves": (0.5, 50), "twice": (2,), "double": (2,), "doubles": (2,), "doubled": (2,), "triple": (3,), "third": (1 / 3, 33),
    "thirds": (2 / 3, 67), "quarter": (0.25, 25), "quarters": (0.75, 75), "fifth": (0.2, 20), "eighth": (0.125, 12.5),
    "tenth": (0.1, 10), "tenths": (0.9, 90),
}  # fmt: skip
#: How far from the answer a number in words may be and still tell it: "about twice" says 1.9, too.
NEAR = 0.06
#: What is not said: links, code that names things, markup, and numbers that only count or name.
_NAMED = "[Ll]essons?|[Ss]ections?|[Ee]xercises?|[Rr]anks?|[Ll]ayers?"
_SILENT = re.compile(rf"\]\([^)]*\)|`[^`]*`|<[^>]*>|\b(?:{_NAMED}) [\d.]+(?:(?:, | and | to )[\d.]+)*")


class Answer(NamedTuple):
    """One part of an answer: as it is shown, and its value if it is a number."""

    shown: str
    value: float | None


def problems(cells: Sequence[Cell]) -> Iterator[str]:
    """Every place that gives an answer away, a sentence each."""
    asked = None
    for place, cell in enumerate(cells):
        if "prediction" in kind.tags(cell):
            asked = place
        if "answer" not in kind.tags(cell) or asked is None:
            continue
        answers = revealed(cell)
        for other, text in [*above(cells, asked), *below(cells, place)]:
            # A question may name what there is to choose from.
            asks = other == asked - 1
            chosen = "choices=" in kind.source(cell)
            open_ones = [answer for answer in answers if not (asks and (chosen or answer.value is None))]
            found = (told for answer in open_ones for told in tells(text, answer, strict=other < asked))
            if told := next(found, None):
                which = f"the answer to {kind.where(cells[asked - 1])}"
                yield f"{kind.where(cells[other])} tells {which}: {told!r}; say it further down, or fold it (CONTRIBUTING)"


def revealed(cell: Cell) -> list[Answer]:
    """The parts of the answer that this cell shows, from the second column of its table."""
    texts = [text_of(out.get("data", {}).get("text/plain", "")) for out in cell.get("outputs", [])]
    rows = [re.split(r" {3,}", line.strip()) for text in texts for line in text.splitlines()[1:]]
    return [Answer(row[1], _value(row[1])) for row in rows if len(row) > 1]


def _value(shown: str) -> float | None:
    try:
        return float(shown.replace(",", ""))
    except ValueError:
        return None


def above(cells: Sequence[Cell], asked: int) -> Iterator[tuple[int, str]]:
    """What is said from the heading of the section to the question, with the place of its cell."""
    begun = max((i for i in range(asked) if kind.source(cells[i]).startswith("#")), default=0)
    yield from ((i, said(cells[i])) for i in range(begun, asked))


def below(cells: Sequence[Cell], place: int) -> Iterator[tuple[int, str]]:
    """What is said below an answer, up to the next heading or exercise, and to the next figure with its alt text."""
    rest = [*takewhile(lambda i: not _heads(cells[i]), range(place + 1, len(cells)))]
    for i in rest:
        yield i, said(cells[i])
        if _draws(cells[i]):
            return


def _heads(cell: Cell) -> bool:
    return cell["cell_type"] == "markdown" and kind.source(cell).startswith("#")


def _draws(cell: Cell) -> bool:
    return any("image/svg+xml" in output.get("data", {}) for output in cell.get("outputs", []))


def said(cell: Cell) -> str:
    """All that a cell says in the open: prose or outputs, with the alt text of figures; "" for what is folded."""
    if cell["cell_type"] == "markdown":
        return "" if kind.told(cell) else kind.source(cell)
    if {"solution", "prediction", "answer"} & {*kind.tags(cell)}:
        return ""
    texts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if not text_of(data.get("text/html", "")).startswith("<details>"):
            texts.append(text_of(output.get("text", "")) + text_of(data.get("text/plain", "")))
    return "\n".join(texts)


def tells(text: str, answer: Answer, *, strict: bool = False) -> Iterator[str]:
    """What of a text gives an answer away; strict: only what can be no accident."""
    text = _SILENT.sub(" ", text)
    if answer.value is None:
        if found := re.search(rf"(?<!\w){re.escape(answer.shown)}(?!\w)", text, flags=re.I):
            yield found[0]
        return
    for number in numbers(text):
        if _is(number, answer) and not (strict and number.short):
            yield number.digits
    if not strict:
        # In the middle of a sentence "one" is rarely a number.
        for found in re.finditer(r"[a-z]+", re.sub(r"\bone\b", "", text).lower()):
            if any(_close(value, answer.value) for value in WORDS.get(found[0], ())):
                yield found[0]


def _is(number: Number, answer: Answer) -> bool:
    """Whether a number is the answer to the digits that are written; with three digits or more, also in another unit.

    One digit alone is only what it says: 4 is an answer of 4 and not one of 3.9.
    """
    value, least = abs(answer.value or 0.0), float(number.digits.replace(",", ""))
    half = 0.5 * 10.0 ** -len(number.digits.partition(".")[2]) if len(number.digits) > 1 else 0.0
    scales = [1.0, 1 / FACTORS.get(number.word, 1.0)]
    if not number.short and len(re.sub(r"e.*|[^1-9]", "", answer.shown)) > 2:
        scales += [0.01, 100.0, 1e3, 1e6, 1e9, 1e12, 1e-3, 1e-6, 1e-9, 1e-12]
    return any(abs(value * scale - least) <= half * (1 + 1e-9) for scale in scales)


def _close(one: float, other: float) -> bool:
    return abs(one - abs(other)) <= NEAR * abs(one)
