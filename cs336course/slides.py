"""The lessons as slides that need no network: ``cs336kit lessons slides 02``; a browser opens build/slides/index.html."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cs336course import cells as kind
from cs336course import lessons, pace, pages, slide_cells
from cs336course.cells import Cell
from cs336kit.files import write_whole

BUILD = Path("build/slides")
MODULES = Path("node_modules")
#: The files that come with the slides, by npm package.
SHIPPED = {
    "reveal.js": ("dist/reset.css", "dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js", "LICENSE"),
    "mathjax": ("es5/tex-svg.js", "LICENSE"),
}
#: How code is colored on light and on dark slides: styles of high contrast.
LIGHT, DARK = "a11y-high-contrast-light", "a11y-high-contrast-dark"
_OURS = Path(__file__).with_name("deck")


def write(names: list[str], into: Path = BUILD) -> str:
    """Write the slides of these lessons (all for none) and the page that lists all existing ones; returns where, in words.

    Errors: ValueError for an unknown lesson, a missing package, or a folder with a different index.html; OSError if
    nothing can be written.
    """
    chosen = lessons.find(names)
    every = lessons.every()
    absent = [name for name in SHIPPED if not (MODULES / name / "package.json").exists()]
    if absent:
        raise ValueError(
            f"The slides come with {' and '.join(absent)}, missing from {MODULES}/: make slides installs what is missing."
        )
    if (into / "index.html").exists() and not (into / "slides.css").exists():
        raise ValueError(f"{into} has an index.html that is not of slides and would be lost: name a different folder.")
    try:
        exporter = _exporter()
    except ModuleNotFoundError as error:
        raise ValueError(f'The slides need {error.name}: pip install -c constraints.txt -e ".[site]"') from None
    into.mkdir(parents=True, exist_ok=True)
    _ship(into)
    for path in chosen:
        page, _ = exporter.from_notebook_node(notebook(path))
        write_whole(into / deck(path), page)
    there = [(path, cells) for path, cells in every if (into / deck(path)).exists()]
    write_whole(into / "index.html", _listing(there))
    what = f"{len(chosen)} lessons" if len(chosen) > 1 else pages.title(chosen[0])
    return f"The slides of {what} are written: open {into / 'index.html'} in a browser."


def notebook(path: Path) -> Any:
    """A lesson for nbconvert: cells that fit on slides, with their roles and the speaker's notes."""
    import nbformat

    lesson = nbformat.read(path, as_version=4).cells
    told = list(_written(lesson, pages.title(path)))
    kind.identify(told)
    metadata = {**lessons.METADATA, "title": f"{pages.title(path)} · slides"}
    return nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": told})


def _written(lesson: Sequence[Cell], title: str) -> Iterator[Cell]:
    """The cells on the slides, with a cell of notes after the first one of each slide."""
    from nbformat.v4 import new_markdown_cell

    place = title
    for here in slide_cells.slides(lesson):
        text = kind.source(here.first) if here.headed else ""
        opening = text.startswith("# ") or (text.startswith("## ") and len(here.cells) == 1)
        if text.startswith("## "):
            place = f"{title}  ·  {here.title}"
        about = {"where": place + "  ·  continued" * here.continued, "size": "opening" if opening else ""}
        cells = here.cells
        if here.title and not here.headed:
            heading = new_markdown_cell(f"### {here.title}")
            cells = [(heading, cells[0][1]), (here.first, "-"), *cells[1:]]
        for number, (cell, role) in enumerate(cells):
            data = {"slide_type": role, "data": {} if number else about}
            yield {**cell, "metadata": {**cell["metadata"], "slideshow": data}}
            if not number and here.notes:
                yield new_markdown_cell("\n\n".join(here.notes), metadata={"slideshow": {"slide_type": "notes"}})


def deck(path: Path) -> str:
    """The file name of a lesson's slides."""
    return f"{path.stem}.html"


def _exporter() -> Any:
    import a11y_pygments  # noqa: F401
    from nbconvert import SlidesExporter

    quiet = {"exclude_input_prompt": True, "exclude_output_prompt": True}
    return SlidesExporter(template_name=_OURS.name, extra_template_basedirs=[str(_OURS.parent)], **quiet)


def _ship(into: Path) -> None:
    """Copy what all decks share, once."""
    for name, parts in SHIPPED.items():
        (into / name).mkdir(exist_ok=True)
        for part in parts:
            shutil.copyfile(MODULES / name / part, into / name / Path(part).name)
    shutil.copyfile(_OURS / "slides.js", into / "slides.js")
    write_whole(into / "slides.css", _colors() + (_OURS / "slides.css").read_text(encoding="utf-8"))


def _colors() -> str:
    """The colors of code, as CSS."""
    from pygments.formatters import HtmlFormatter

    # The background is the page's.
    light, dark = (HtmlFormatter(style=style, nobackground=True) for style in (LIGHT, DARK))
    return f"{light.get_style_defs('.highlight')}\n{dark.get_style_defs('.dark .highlight')}\n"


def _listing(there: pages.Lessons) -> str:
    from jinja2 import Template

    def row(path: Path, cells: Sequence[Cell]) -> dict[str, Any]:
        about = {"question": pages.promise(cells), "minutes": pace.minutes(cells).reading}
        return {"deck": deck(path), "title": pages.title(path), **about}

    template = Template((_OURS / "list.html.j2").read_text(encoding="utf-8"))
    return str(template.render(parts=[(name, [row(*each) for each in here]) for name, here in pages.by_part(there)]))
