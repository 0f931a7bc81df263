"""The lessons to hand out, without solutions and without stored answers: ``make student``, ``cs336kit lessons student``.

Removed are the folded solutions, every output with its alt text, the counts, attachments, and all metadata except tags,
slides and folds. No output is kept, not even a figure, because students run the cells anyway and many figures answer the
question above them. Tasks, hints, checks, the lines for a guess, and the cells and the prose that answer a prediction stay:
they are the argument of the lesson, not the solution of an exercise, and say nothing about a reader's own answer.

The check compares with the right answers, which are in the installed package, where anybody who looks for them can read them.
"""

import html
import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cs336course import cells as kind
from cs336course import links
from cs336course.cells import Cell
from cs336course.copies import digest
from cs336course.lessons import DAMAGED, METADATA, NOTEBOOKS, find, read
from cs336course.reader import many
from cs336kit.files import write_whole

FOLDER = Path("build/student")
#: The end of a stub: the exercise and the name of the answer.
CHECK = re.compile(r'teach\.exercises\.check\("(\d\d\.\d)", (\w+)\)')
#: What a cell's metadata may contain; that for nbgrader is written by `assignment`.
KEPT = ("tags", "slideshow", "jupyter", "cellView", "jp-MarkdownHeadingCollapsed", "nbgrader")
#: The name in the notebook's metadata of a digest of what was written, which shows whether somebody has worked in it.
MADE = "cs336kit"
#: Shorter lines of a solution could be anybody's, such as `for w in weights:`. The whole solution is looked for anyway.
LINE = 15
_TO_DO = "# {id}, to do: put your answer in place of the ... and run this cell, which checks it.\n# For help: {help}\n"
_IMAGE = re.compile(r"!\[[^\]]*\]\((?!\w+:|#)([^)\s]+)\)")


class Solution(NamedTuple):
    """What must not be found: the solution's own lines, with the id of its exercise."""

    id: str
    lines: list[str]


def without_answers(cells: Sequence[Cell], beside: Collection[str]) -> list[Cell]:
    """The cells of a lesson for students; a link to a lesson whose file is not among those `beside` it becomes plain text."""
    found = []
    for cell in cells:
        if "solution" in kind.tags(cell):
            continue
        text = kind.source(cell)
        if stub := CHECK.search(text):
            text = _TO_DO.format(id=stub[1], help=f'teach.exercises.hint("{stub[1]}")') + text
        if cell["cell_type"] == "markdown":
            # They lead to the lesson with its solutions.
            text = links.without(text, links.COLAB, links.BINDER, links.UNSPOILED)
            text = re.sub(
                r"\[([^\]]*)\]\((\d\d_\w+\.ipynb)(#[^)]*)?\)", lambda m: m[0] if m[2] in beside else m[1], text
            )
        data = {key: value for key, value in cell["metadata"].items() if key in KEPT}
        # A slide's title says what it shows, which may be an answer.
        if "slideshow" in data:
            data["slideshow"] = {key: value for key, value in data["slideshow"].items() if key not in kind.WRITTEN}
        bare: Cell = {"cell_type": cell["cell_type"], "metadata": data, "source": text}
        found.append(bare | ({"execution_count": None, "outputs": []} if cell["cell_type"] == "code" else {}))
    kind.identify(found)
    return found


def leaks(cells: Sequence[Cell], lesson: Sequence[Cell]) -> list[str]:
    """Where the `cells` for students give an answer of the `lesson` away, a sentence each; empty when all is well."""
    solutions = [_solution(lesson, place) for place, cell in enumerate(lesson) if "solution" in kind.tags(cell)]
    found = [
        f"all of the solution of {one.id} is shown above its exercise or said in its task: also ask for something else, "
        "such as a number"
        for one in solutions
        if not one.lines
    ]
    for cell in cells:
        if cell.get("outputs") or cell.get("execution_count"):
            found.append(f"{kind.where(cell)} stores the outputs of a run")
        if cell.get("attachments") or "](attachment:" in kind.source(cell):
            found.append(f"{kind.where(cell)} has an attachment, which cannot be checked: put it into a file")
        if other := {*cell["metadata"]} - {*KEPT}:
            found.append(f"{kind.where(cell)} has the metadata {', '.join(sorted(other))}, which no student needs")
        told = "\n".join(_squeezed(text) for text in _texts(cell))
        for one in solutions:
            if line := next((line for line in one.lines if line in told), None):
                found.append(f"{kind.where(cell)} shows a part of the solution of {one.id}: {line[:60]}")
    return found


def _solution(lesson: Sequence[Cell], place: int) -> Solution:
    """The solution in the cell at that place, without what the lesson itself runs above it or says in the task."""
    text = kind.source(lesson[place])
    region = re.search(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, flags=re.S)
    # In a decision, only the value counts, whatever its name.
    body = re.sub(r"^solution = ", "", region[1] if region else text, flags=re.M)
    known = [cell for cell in lesson[:place] if not {"exercise", "solution"} & {*kind.tags(cell)}]
    run = {_squeezed(line) for cell in known if kind.is_code(cell) for line in kind.source(cell).splitlines()}
    task = _squeezed(next((kind.source(cell) for cell in reversed(known) if cell["cell_type"] == "markdown"), ""))
    lines = [line for line in map(_squeezed, body.splitlines()) if line not in run and line not in task]
    whole = [_squeezed(body)] if any(lines) else []
    id = re.search(r'check_solution\("([^"]+)"', text)
    return Solution(id[1] if id else f"cell {place}", [line for line in lines if len(line) >= LINE] + whole)


def _squeezed(text: str) -> str:
    """The text without what changes when a line is quoted, indented or put into HTML or JSON."""
    return re.sub(r"[\s\"'\\]", "", html.unescape(text))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a cell, including its keys; lines that are stored separately are joined."""
    value = kind.joined(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def notebook(cells: Sequence[Cell]) -> bytes:
    """A notebook as bytes, with a digest of its cells."""
    data = {"cells": cells, "metadata": METADATA | {MADE: digest(cells)}, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def refuse_work(path: Path) -> None:
    """Raise ValueError when a file is not as :func:`notebook` wrote it, because then somebody has worked in it."""
    if not path.exists():
        return
    try:
        stored = json.loads(path.read_bytes())
        untouched = stored["metadata"][MADE] == digest(stored["cells"])
    except DAMAGED:
        untouched = False
    if not untouched:
        raise ValueError(
            f"{path} has somebody's work: it is not as this command wrote it. Move it away, or name another folder with --into."
        )


def copy_images(cells: Iterable[Cell], folder: Path, into: Path) -> None:
    """Copy the files of images that these cells show; raises OSError, which names the file that is missing."""
    for name in {name for cell in cells for name in _IMAGE.findall(kind.source(cell))}:
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, into / name)


def checked(path: Path, beside: Collection[str]) -> list[Cell]:
    """The cells of the lesson at `path` for students; raises ValueError, with lesson and cell, when they show an answer."""
    lesson = read(path)
    cells = without_answers(lesson, beside)
    if found := leaks(cells, lesson):
        raise ValueError(f"{path.name} is not handed out: {found[0]}.")
    return cells


def write(names: list[str], folder: Path = NOTEBOOKS, into: Path = FOLDER) -> Iterator[str]:
    """Write the lessons with these numbers (all for none) for students; yields a line for each, and a sentence at the end.

    Raises ValueError before anything is written: for an unknown lesson, for one that shows an answer, and if a file that would
    be replaced has somebody's work in it. Raises OSError if the folder cannot be written.
    """
    chosen = find(names, folder)
    there = {path.name for path in chosen} | {path.name for path in into.glob("*.ipynb")}
    made = [(path, checked(path, there)) for path in chosen]
    for path, _ in made:
        refuse_work(into / path.name)
    into.mkdir(parents=True, exist_ok=True)
    count = 0
    for path, cells in made:
        write_whole(into / path.name, notebook(cells))
        copy_images(cells, folder, into)
        here = sum("exercise" in kind.tags(cell) for cell in cells)
        count += here
        yield f"{path.name}: {many(here, 'exercise')}"
    what = f"{many(len(made), 'lesson')} with {many(count, 'exercise')}"
    yield f"Written to {into}/: {what}, without solutions and without stored outputs."
