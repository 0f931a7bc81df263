"""The slides of a lesson: its cells in pieces that fit, each slide with its title and the speaker's notes."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from cs336course import cells as kind
from cs336course import pace
from cs336course import roles as slide
from cs336course.cells import Cell
from cs336course.outputs import opened, text_of

_TABLE = re.compile(r"(.*<tbody>)(.*)(</tbody>.*)", re.S)
#: A link to a lesson, which on slides leads to its slides.
_LESSON = re.compile(r"\((\d\d_\w+)\.ipynb(#[^)]*)?\)")
#: How a cell begins that is a slide's heading, and one that asks.
HEADINGS, QUESTION = ("# ", "## ", "### "), "**Your prediction.**"
#: What names itself in bold has that as its title.
_NAMED = re.compile(r"\*\*(Your prediction|Pause|The card|Discuss|Read on)\.?\*\*(?: · |\s+)")


def parts(cell: Cell) -> Iterator[Cell]:
    """A cell in pieces that may be on slides of their own.

    Below a title or a heading, prose is for the speaker. Outputs that do not fit below their code are separated from it.
    """
    text, outputs = kind.unfolded(kind.source(cell)), [*map(_opened, slide.shown(cell))]
    if not kind.is_code(cell):
        pieces = text.split("\n\n") if text.startswith(("# ", "## ")) else [text]
        if pieces[0].startswith(("# ", "## ")) and "\n" in pieces[0]:
            pieces[:1] = pieces[0].split("\n", 1)
        for piece in pieces:
            if not pace.HEADER.match(piece):
                yield {**cell, "source": _LESSON.sub(r"(\1.html)", piece)}
        return
    if slide.tall(cell) <= slide.ROOM or not outputs:
        yield {**cell, "outputs": outputs}
        return
    yield {**cell, "outputs": []}
    together = sum(map(slide.output_lines, outputs)) <= slide.ROOM
    bare = {**cell["metadata"], "transient": {"remove_source": True}}
    for some in [outputs] if together else [[part] for output in outputs for part in _rows_apart(output)]:
        yield {**cell, "metadata": bare, "outputs": some}


def _opened(output: Cell) -> Cell:
    """The output with its HTML unfolded: what it tells is on a slide after the question."""
    html = output.get("data", {}).get("text/html")
    return output if html is None else {**output, "data": {**output["data"], "text/html": opened(text_of(html))}}


def _rows_apart(output: Cell) -> Iterator[Cell]:
    """A table that is too long for a slide, in parts with the same header; any other output as it is."""
    found = _TABLE.fullmatch("".join(output.get("data", {}).get("text/html", "")))
    # A table below a figure stays there.
    if not found or "<img " in found[1]:
        yield output
        return
    rows = re.findall(r"<tr.*?</tr>", found[2], flags=re.S)
    size = math.ceil(len(rows) / math.ceil(slide.output_lines(output) / slide.ROOM))
    for i in range(0, len(rows), size):
        html = found[1] + "\n".join(rows[i : i + size]) + found[3]
        yield {**output, "data": {**output["data"], "text/html": html}}


@dataclass(frozen=True)
class Slide:
    """What is on a slide: its cells, each with its role, its title, and the paragraphs of the speaker's notes.

    headed: whether the title is a heading of the first cell; continued: whether the slide before has the same title.
    """

    cells: list[tuple[Cell, str]]
    title: str
    notes: list[str]
    headed: bool = False
    continued: bool = False

    @property
    def first(self) -> Cell:
        """The cell that begins the slide."""
        return self.cells[0][0]

    @property
    def exercise(self) -> re.Match[str] | None:
        """The heading of the exercise on the slide: id, stars, minutes, title."""
        return pace.EXERCISE.match(_prose(self.first))


def _prose(cell: Cell) -> str:
    """The text of a cell of prose; "" for code, whose comments look like headings."""
    return "" if kind.is_code(cell) else kind.source(cell)


def slides(lesson: Sequence[Cell]) -> list[Slide]:
    """The slides of a lesson, with what the speaker is told on each.

    The last paragraph before a slide introduces it and is in its notes; what stands before that is about the slide before.
    If there is only one paragraph, it is about the slide before, unless that has other notes. A heading that is for readers
    only (### but no exercise) ends what is about the slide before.
    """
    cells = [part for cell in lesson for part in parts(cell)]
    answers = {cell["id"] for cell in lesson if kind.told(cell)}
    found: list[Slide] = []
    # Since what was last seen: paragraphs, and whether they tell an answer; and whether they are about what comes.
    said: list[tuple[str, bool]] = []
    ahead = False
    for cell, role in zip(cells, slide.roles(cells), strict=True):
        text = kind.source(cell)
        if role in ("slide", "subslide"):
            introduction = [paragraph for paragraph, _ in said]
            if found and not ahead:
                behind, introduction = _shared(said, found[-1], cell)
                found[-1].notes.extend(behind)
            found.append(_begun(cell, role, found))
            found[-1].notes.extend([*_told(found[-1], lesson), *introduction])
            said, ahead = [], False
        elif role == "notes" and text.startswith("### ") and found:
            # A heading for readers ends what is said about the slide before.
            found[-1].notes.extend([paragraph for paragraph, _ in said])
            said, ahead = [(paragraph, False) for paragraph in text.split("\n\n")[1:]], True
        elif role == "notes":
            paragraphs = [text] if "```" in text else text.split("\n\n")  # code in a text may have blank lines
            said += [(paragraph, cell["id"] in answers) for paragraph in paragraphs]
        elif role != "skip" and found:
            found[-1].cells.append((cell, role))
            found[-1].notes.extend([paragraph for paragraph, _ in said])
            said = []
    if found:
        found[-1].notes.extend([paragraph for paragraph, _ in said])
        discuss = [text for text in map(kind.source, lesson) if text.startswith("**Discuss**")]
        found[0].notes.extend([text.split("\n\n")[0] for text in discuss])
    for before, here in pairwise(found):
        # Of a cell on several slides the speaker may talk on each of them.
        if not here.notes and any(cell["id"] == here.first["id"] for cell, _ in before.cells):
            here.notes.extend(before.notes)
    return found


def _begun(cell: Cell, role: str, before: Sequence[Slide]) -> Slide:
    """The slide that a cell begins, with its title: a heading, what the author wrote, or what the cell asks for."""
    text, wrote = _prose(cell), kind.for_slide(cell).get("title", "")
    if text.startswith(HEADINGS):
        return Slide([(cell, role)], text.splitlines()[0].lstrip("# "), [], headed=True)
    if found := not wrote and _NAMED.match(text):
        rest = {**cell, "source": text[found.end() :]}
        return Slide([(rest, role)], found[1], [])
    # What does not fit on a slide continues on the next.
    same = bool(before) and cell["id"] == before[-1].first["id"]
    title = wrote or (before[-1].title if same else "")
    return Slide([(cell, role)], title, [], continued=same and title == before[-1].title != "")


def _shared(said: Sequence[tuple[str, bool]], before: Slide, cell: Cell) -> tuple[list[str], list[str]]:
    """Paragraphs between two slides, the second of which this cell begins: those for the first, and for the second."""
    paragraphs, text = [paragraph for paragraph, _ in said], _prose(cell)
    if not said or text.startswith(HEADINGS):
        return paragraphs, []
    if before.exercise:
        return [], paragraphs
    # A trap or a list says itself what it is about.
    needs = kind.is_code(cell) or text.startswith(QUESTION)
    announced = paragraphs[-1].endswith(":") or (needs and (len(said) > 1 or bool(before.notes)))
    cut = len(said) - (announced and not said[-1][1])
    return paragraphs[:cut], paragraphs[cut:]


def _told(begun: Slide, lesson: Sequence[Cell]) -> Iterator[str]:
    """What the speaker is told before the lesson's own prose: the time, what goes wrong, and what the author added."""
    text = _prose(begun.first)
    if text.startswith(("# ", "## ")) or begun.title in ("Pause", "Discuss", "Read on"):
        yield _minutes(lesson, "" if text.startswith("# ") else text if begun.headed else f"**{begun.title}**")
    if begun.exercise:
        yield from _mistakes(begun.exercise[1], begun.exercise[3])
    yield from [wrote] if (wrote := kind.for_slide(begun.first).get("notes")) else []


def _mistakes(id: str, minutes: str) -> Iterator[str]:
    """The time for an exercise, and what the kit's check of it says about the usual mistakes."""
    from cs336kit.teach import exercises

    try:
        mistakes = exercises.load(id).mistakes.values()
    except ValueError:  # an exercise of your own, which the kit does not check
        yield f"**{minutes} minutes.**"
        return
    yield f"**{minutes} minutes.** The usual mistakes, in the words of the check:"
    yield "\n".join(f"- {sentence}" for sentence in mistakes)


def untitled(lesson: Sequence[Cell]) -> Iterator[str]:
    """What the slides of a lesson lack, a sentence each: a title, or notes; and titles and questions that are on no slide."""
    there = slides(lesson)
    for number, here in enumerate(there, 1):
        lacks = [what for what, has in {"title": here.title, "notes": here.notes}.items() if not has]
        if lacks:
            yield f"{kind.where(here.first)} begins slide {number}, which has no {' and no '.join(lacks)}"
    begin = {here.first["id"] for here in there}
    for cell in lesson:
        if cell["id"] not in begin and kind.for_slide(cell):
            yield f"{kind.where(cell)} has a title or notes for a slide but begins none"
        if f"\n\n{QUESTION}" in _prose(cell):
            yield f"{kind.where(cell)} asks for a prediction further down, which slides do not show: begin a cell with it"


def _minutes(lesson: Sequence[Cell], heading: str = "") -> str:
    """How far the speaker should be at this heading, in a sentence; without a heading: at the beginning."""
    before = [] if not heading else list(takewhile(lambda cell: not kind.source(cell).startswith(heading), lesson))
    (now, tried, _), (whole, trying, _) = pace.minutes(before), pace.minutes(lesson)
    return f"**Minute {now} of {whole}**, and {tried} of {trying} minutes of exercises."
