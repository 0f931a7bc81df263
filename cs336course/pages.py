"""The generated parts of a lesson's page: its times, the links to its neighbors, the map of all lessons, its slide roles.

`make refresh` writes all of them, and the tests check that they are up to date.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from cs336course import cells as kind
from cs336course import links, plans, words
from cs336course.cells import Cell
from cs336course.pace import HEADER, core, halves, minutes
from cs336course.roles import FURTHER, roles

#: Some lessons in order, each with its cells.
Lessons = Sequence[tuple[Path, Sequence[Cell]]]

#: The parts of the course: first lesson and title. A part ends where the next begins.
PARTS = {
    0: "Numbers and tensors",
    6: "Work and time",
    10: "Training",
    14: "Memory and precision",
    17: "Whole models, on many machines, for many users",
}
#: Words of titles that are not written as in the middle of a file's name.
_SPELLED = {"flops": "FLOPs", "Einops": "einops"}
_MAP = "## Map of the course"


def title(path: Path) -> str:
    """``09 Gradient FLOPs`` for notebooks/09_gradient_flops.ipynb."""
    words = path.stem[3:].replace("_", " ").capitalize()
    for plain, spelled in _SPELLED.items():
        words = words.replace(plain, spelled)
    return f"{path.name[:2]} {words}"


def heading(path: Path) -> str:
    """``09 · Gradient FLOPs``: what stands at the top of a lesson, and in every list of them."""
    return title(path).replace(" ", " · ", 1)


def link(path: Path, text: str = "{}") -> str:
    """A Markdown link to a lesson from one beside it."""
    return f"[{text.format(title(path))}]({path.name})"


def header(cells: Sequence[Cell], path: Path, every: Sequence[Path]) -> str:
    """The line below a lesson's question: its minutes, the lessons before and after, and links that open it elsewhere."""
    place = list(every).index(path)
    only = sum("gpu" in kind.tags(cell) for cell in cells)
    gpu = "no GPU" if not only else f"no GPU needed, {'one cell runs' if only == 1 else 'a few cells run'} only on one"
    parts = [times(cells), gpu]
    parts += [f"follows {link(every[place - 1])}"] if place else []
    parts += [f"next {link(every[place + 1])}"] if place + 1 < len(every) else []
    here = links.home(path.parent.parent)
    return " · ".join([*parts, *(here.opens(path) if here else [])])


def times(cells: Sequence[Cell]) -> str:
    """The minutes of a lesson in words: its reading, where its Pause is, its exercises, and what is under Further."""
    found, parts = minutes(cells), halves(cells)
    paused = f" with a pause after {parts[0].reading}" if len(parts) > 1 else ""
    more = f" and {found.further} for *Further*" if found.further else ""
    return f"{found.reading} minutes{paused}, {found.exercises} more for exercises{more}"


def footer(path: Path, every: Sequence[Path]) -> str:
    """The last line of a lesson, above its folded part: links to the lessons before and after, and to the map."""
    place = list(every).index(path)
    parts = [link(every[place - 1], "← {}")] if place else []
    parts += [f"[Map of the course]({every[0].name}#Map-of-the-course)"] if place else []
    parts += [link(every[place + 1], "{} →")] if place + 1 < len(every) else []
    return " · ".join(parts)


def question(cells: Sequence[Cell]) -> str:
    """The question that a lesson asks: the bold line below its title."""
    found = re.search(r"^\*\*(.+\?)\*\*$", kind.source(cells[0]), flags=re.M) if cells else None
    return found[1] if found else ""


def promise(cells: Sequence[Cell]) -> str:
    """What a lesson is about, in a line: its question, or else the first line below its title."""
    lines = [line for line in kind.source(cells[0]).splitlines()[1:] if line.strip()] if cells else []
    return question(cells) or next(iter(lines), "").strip()


def by_part(lessons: Lessons) -> Iterator[tuple[str, Lessons]]:
    """The parts of the course that have some of these lessons, each with them."""
    for first, here in groupby(lessons, lambda lesson: max(n for n in PARTS if n <= int(lesson[0].name[:2]))):
        yield PARTS[first], [*here]


def course_map(lessons: Lessons, folder: str = "") -> str:
    """All lessons by part, with their questions and minutes, as Markdown; folder: what precedes a link."""
    lines = []
    for name, rows in by_part(lessons):
        lines += [f"**{name}**", "", "| lesson | its question | minutes | more for exercises |", "|---|---|---|---|"]
        for path, cells in rows:
            found = minutes(cells)
            lines.append(
                f"| [{heading(path)}]({folder}{path.name}) | {promise(cells)} | {found.reading} | {found.exercises or '–'} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip()


def paths(lessons: Lessons, folder: str = "") -> str:
    """How long the whole course takes, and the paths through it for less time, as Markdown; "" where a lesson is missing."""
    there = {path.name[:2]: cells for path, cells in lessons}
    if not {number for way in plans.PATHS for number in way.lessons + way.cards} <= {*there}:
        return ""
    every = [minutes(cells) for cells in there.values()]
    whole = [sum(column) for column in zip(*every, strict=True)]
    lines = [
        f"All {len(every)} lessons take {_hours(whole[0])} hours to read and predict, {_hours(whole[1])} for their exercises, "
        f"and {_hours(whole[2])} for what is under *Further*. With less time, take one of these paths:",
        "",
    ]
    names = {path.name[:2]: path.name for path, _ in lessons}

    def listed(numbers: Sequence[str]) -> str:
        return ", ".join(f"[{number}]({folder}{names[number]})" for number in numbers)

    for way in plans.PATHS:
        found = plans.minutes(way, there)
        some = f"for exercises {', '.join(way.exercises)}" if way.exercises else "for all their exercises"
        cards = f", and the cards of {listed(way.cards)}" if way.cards else ""
        hours = f"{_hours(found.reading)} hours, and {_hours(found.exercises)} {some}"
        lines.append(f"- **{way.name}**, if {way.reader}: {listed(way.lessons)}{cards}. {hours}.")
    return "\n".join(lines)


def paths_in_short(lessons: Lessons, folder: str = "") -> str:
    """The same in two sentences, which name the paths and say where they are listed."""
    there = {path.name[:2]: cells for path, cells in lessons}
    if not {number for way in plans.PATHS for number in way.lessons + way.cards} <= {*there}:
        return ""
    every = [minutes(cells) for cells in there.values()]
    reading, exercises, further = (_hours(sum(column)) for column in zip(*every, strict=True))
    ways = [f"*{way.name}* ({_hours(plans.minutes(way, there).reading)} hours)" for way in plans.PATHS]
    return (
        f"All {len(every)} lessons take {reading} hours to read and predict, {exercises} for their exercises, and {further} for "
        f"what is under *Further*. Shorter paths, {', '.join(ways[:-1])} and {ways[-1]}, are listed at the end of "
        f"[lesson {lessons[0][0].name[:2]}]({folder}{lessons[0][0].name})."
    )


def _hours(minutes: int) -> str:
    return f"{minutes / 60:.1f}".removesuffix(".0")


def generated(lessons: Lessons, path: Path) -> tuple[str, list[str]]:
    """The first cell of a lesson with its line of times, and its generated cells in order.

    They are code that installs the kit, where the repository is known; the footer; and in the first lesson, the map.
    """
    every = [other for other, _ in lessons]
    cells = dict(lessons)[path]
    first, line = kind.source(cells[0]), header(cells, path, every)
    if asked := question(cells):
        lead, rest = first.split(f"**{asked}**", 1)
        rest = HEADER.sub("", rest).strip()
        first = f"{lead}**{asked}**\n\n{line}" + (f"\n\n{rest}" if rest else "")
    maps = (
        [f"{_MAP}\n\n" + "\n\n".join(filter(None, [course_map(lessons), paths(lessons)]))] if path == every[0] else []
    )
    maps += [words.folded({other.name[:2]: other.name for other in every})] if maps else []
    here = links.home(path.parent.parent)
    return first, [*([here.install()] if here else []), *filter(None, [footer(path, every)]), *maps]


def write(notebook: Any, path: Path, lessons: Lessons) -> None:
    """Write the generated parts of a page into a notebook (nbformat's node), with its slides and folds."""
    from nbformat.v4 import new_code_cell, new_markdown_cell

    before = sum(kind.is_code(cell) for cell in notebook.cells)
    notebook.cells = [cell for cell in notebook.cells if "page" not in kind.tags(cell)]
    here = [(other, notebook.cells if other == path else cells) for other, cells in lessons]
    notebook.cells[0].source, texts = generated(here, path)
    # Below Further the links would be folded away with it, and a reader at the end would not see where to go on.
    installs = [text.startswith("try:") for text in texts]
    ends = [
        len(notebook.cells) if text.startswith((_MAP, words.HEADING)) else len([*core(notebook.cells)])
        for text in texts
    ]
    for code, end, text in reversed([*zip(installs, ends, texts, strict=True)]):
        new = {"source": text, "metadata": {"tags": ["page"]}}
        notebook.cells.insert(1 if code else end, new_code_cell(**new) if code else new_markdown_cell(**new))
    _count(notebook.cells, sum(kind.is_code(cell) for cell in notebook.cells) - before)
    kind.identify(notebook.cells)
    for cell, data in zip(notebook.cells, metadata(notebook.cells), strict=True):
        cell.metadata = data


def _count(cells: Sequence[Any], more: int) -> None:
    """Count the cell that installs the kit as run, which shows nothing, and move the counts of those below by `more` cells."""
    for cell in filter(kind.is_code, cells):
        if "page" in kind.tags(cell):
            cell.execution_count = 1
        elif cell.execution_count:
            cell.execution_count += more
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = cell.execution_count


def metadata(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The metadata of every cell: its slide role, its tags, and what JupyterLab folds away."""
    found: list[dict[str, Any]] = []
    for cell, role in zip(cells, roles(cells), strict=True):
        tags = kind.tags(cell)
        data: dict[str, Any] = {"slideshow": {"slide_type": role} | kind.for_slide(cell)}
        data |= {"tags": tags} if tags else {}
        if "solution" in tags:
            data["jupyter"] = {"outputs_hidden": True, "source_hidden": True}
        # The code of an answer often says how it is found; its output folds itself. An aside is what a lesson needs and is
        # not about.
        if {"answer", "aside"} & {*tags}:
            data["jupyter"] = {"source_hidden": True}
        if "jupyter" in data:
            data["cellView"] = "form"  # what Colab calls hidden code
        # Installing the kit is for Colab, and nothing where there is a clone.
        if "page" in tags and kind.is_code(cell):
            data["jupyter"] = {"source_hidden": True}
        if kind.source(cell).startswith(FURTHER):
            data["jp-MarkdownHeadingCollapsed"] = True
        # Written when the cell was run; everything else here follows from the text.
        if kind.measured(cell) and kind.RUN in cell["metadata"]:
            data[kind.RUN] = cell["metadata"][kind.RUN]
        found.append(data)
    return found
