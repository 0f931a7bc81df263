"""The titles of slides as text to edit: ``cs336kit lessons titles 07`` shows them, and ``--from FILE`` stores them.

A slide without a heading has its title in the metadata of the cell that begins it, and there, too, a sentence for the speaker
where the lesson has no prose. Nobody should have to edit JSON for either.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cs336course import cells as kind
from cs336course import lessons, pages, refresh, slide_cells
from cs336course.cells import Cell

#: The most characters of a title: more do not fit on a line.
MOST = 70
_LINE = re.compile(rf"(\w+) ({'|'.join(kind.WRITTEN)}):\s*(.*)")
_HEAD = f"# A title asserts what its slide shows, in at most {MOST} characters. Lines that begin with # are not read."


def edit(names: list[str], source: Path | None = None) -> str:
    """The titles and notes of these lessons (all for none) as text; with a `source`, store what that file has instead.

    Errors: ValueError for an unknown lesson, or for a line that cannot be stored; then nothing is.
    """
    chosen = [(path, lessons.read(path)) for path in lessons.find(names)]
    if source is None:
        return "\n".join([_HEAD, *(line for path, cells in chosen for line in _lines(path, cells))])
    begin = {here.first["id"]: path for path, cells in chosen for here in slide_cells.slides(cells)}
    found: dict[Path, dict[str, dict[str, str]]] = {}
    for line in filter(str.strip, source.read_text(encoding="utf-8").splitlines()):
        if line.startswith("#"):
            continue
        read = _LINE.fullmatch(line.strip())
        if read is None:
            raise ValueError(f"{source} has a line that is not 'ID title: …' or 'ID notes: …': {line!r}")
        id, what, text = read.groups()
        if id not in begin:
            raise ValueError(f"{source} names the cell {id}, which begins no slide; cs336kit lessons titles lists them")
        if what == "title" and len(text) > MOST:
            raise ValueError(f"{source} has a title of {len(text)} characters, and {MOST} is the most: {text!r}")
        found.setdefault(begin[id], {}).setdefault(id, {})[what] = text
    changed = [path.name for path, told in found.items() if refresh.retitle(path, told)]
    return f"stored in {', '.join(changed)}" if changed else "nothing has changed"


def _lines(path: Path, cells: Sequence[Cell]) -> Iterator[str]:
    """The slides of a lesson that have something from an author, or need it: each with what begins it, and a line to edit."""
    yield f"\n# {pages.title(path)}"
    seen = set()
    for number, here in enumerate(slide_cells.slides(cells), 1):
        id, wrote = here.first["id"], kind.for_slide(here.first)
        lacks = {"title": not here.title, "notes": not here.notes}
        lines = [f"{id} {name}: {wrote.get(name, '')}" for name in kind.WRITTEN if name in wrote or lacks[name]]
        if lines and id not in seen:
            yield f"# slide {number}: {kind.source(here.first).strip().splitlines()[0][:100]}"
            yield from lines
        seen.add(id)
