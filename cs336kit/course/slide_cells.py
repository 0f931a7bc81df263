"""Prepare the cells of a lesson for slides: in pieces that fit, and with the speaker's notes."""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from cs336kit.course import cells as kind
from cs336kit.course import lessons, pages
from cs336kit.course import roles as slide
from cs336kit.course.cells import Cell
from cs336kit.course.outputs import opened, text_of

_TABLE = re.compile(r"(.*<tbody>)(.*)(</tbody>.*)", re.S)
#: A link to a lesson, which on slides leads to its slides.
_LESSON = re.compile(r"\((\d\d_\w+)\.ipynb(#[^)]*)?\)")


def notebook(path: Path) -> Any:
    """A lesson for nbconvert: cells that fit on slides, with their roles and the speaker's notes."""
    import nbformat

    lesson = nbformat.read(path, as_version=4).cells
    cells = [part for cell in lesson for part in parts(cell)]
    told = list(_told(cells, lesson, pages.title(path)))
    kind.identify(told)
    metadata = {**lessons.METADATA, "title": f"{pages.title(path)} · slides"}
    return nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": told})


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
            if not pages.HEADER.match(piece):
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


def _told(cells: Sequence[Cell], lesson: Sequence[Cell], title: str) -> Iterator[Cell]:
    """The cells on the slides, with a cell of notes after the first one of each slide: what to say, and when."""
    from nbformat.v4 import new_markdown_cell

    found, place = slide.roles(cells), title
    begun = [i for i, role in enumerate(found) if role in ("slide", "subslide")]
    for start, end in pairwise([*begun, len(found)]):
        here = [i for i in range(start, end) if found[i] != "skip"]
        text = kind.source(cells[start])
        notes = [kind.source(cells[i]) for i in here if found[i] == "notes"]
        if text.startswith("# "):
            discussed = next((kind.source(cell) for cell in lesson if kind.source(cell).startswith("**Discuss**")), "")
            notes = [_minutes(lesson), *notes, discussed]
        if text.startswith("## "):
            place = f"{title}  ·  {text.lstrip('# ')}"
            notes = [_minutes(lesson, text), *notes]
        seen = [cells[i] for i in here if found[i] != "notes"]
        for i in here:
            if found[i] == "notes":
                continue
            opening = text.startswith("# ") or (text.startswith("## ") and len(seen) == 1)
            about = {"where": place, "size": "opening" if opening else ""}
            data = {"slide_type": found[i], "data": about if i == start else {}}
            yield {**cells[i], "metadata": {**cells[i]["metadata"], "slideshow": data}}
            if i == start and notes:
                yield new_markdown_cell("\n\n".join(notes), metadata={"slideshow": {"slide_type": "notes"}})


def _minutes(lesson: Sequence[Cell], heading: str = "") -> str:
    """How far the speaker should be at this heading, in a sentence; without a heading: at the beginning."""
    before = [] if not heading else list(takewhile(lambda cell: not kind.source(cell).startswith(heading), lesson))
    (now, tried), (whole, trying) = pages.minutes(before), pages.minutes(lesson)
    return f"**Minute {now} of {whole}**, and {tried} of {trying} minutes of exercises."
