"""The reader's own copies of the lessons, in a folder that git ignores: ``cs336kit lessons copy``.

Opening a notebook changes its file (JupyterLab writes the kernel's name and saves automatically), so readers open copies
and not the lessons that git tracks. A copy is made once, and is updated until the reader has worked in it.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from sqlite3 import Error as DatabaseError
from typing import Any

from cs336course import cells as kind
from cs336course import lessons
from cs336kit.files import write_whole

COPIES = Path("my")
#: In the copies' folder: digests of the lessons when they were copied. JupyterLab does not list hidden files.
MANIFEST = ".copies.json"


def content(path: Path) -> str:
    """A digest of what a reader can change in a notebook: text, kinds, counts and outputs of its cells.

    Metadata (kernel, trust, folded cells) and the layout of the JSON are left out, because JupyterLab changes them by
    merely opening a file. For a file that is not a notebook, all bytes count.
    """
    data = path.read_bytes()
    try:
        return digest(json.loads(data)["cells"])
    except lessons.DAMAGED:
        return hashlib.sha256(data).hexdigest()


def digest(cells: Iterable[kind.Cell]) -> str:
    """The same for cells: a digest of their texts, kinds, counts and outputs."""
    return hashlib.sha256(json.dumps([_told(cell) for cell in cells], sort_keys=True).encode()).hexdigest()


def _told(cell: kind.Cell) -> list[Any]:
    outputs = [
        kind.joined({key: value for key, value in out.items() if key != "metadata"}) for out in cell.get("outputs", [])
    ]
    return [cell["cell_type"], kind.source(cell), cell.get("execution_count"), outputs]


def copy(names: list[str], folder: Path = lessons.NOTEBOOKS, into: Path = COPIES) -> list[str]:
    """Update the copies of these lessons (all for none); returns what the reader should know, a sentence each.

    A missing copy is made. One that nobody has worked in follows its lesson. One with the reader's work stays as it is,
    and so does the copy of a lesson that no longer exists. Raises ValueError for an unknown or damaged lesson, before
    anything is written; OSError if the folder cannot be written.
    """
    chosen = {lesson: digest(lessons.read(lesson)) for lesson in lessons.find(names, folder)}
    into.mkdir(exist_ok=True)
    known = _manifest(into)
    made: list[str] = []
    renewed: list[str] = []
    kept: list[str] = []
    clean: list[Path] = []
    for lesson, new in chosen.items():
        mine = into / lesson.name
        have = content(mine) if mine.exists() else None
        if have is None or (have != new and have == known.get(lesson.name)):
            write_whole(mine, lesson.read_bytes())
            (made if have is None else renewed).append(lesson.name)
            have = new
        if have == new:
            clean.append(mine)
            known[lesson.name] = new
        elif known.get(lesson.name) != new:
            kept.append(lesson.name)
    gone = [] if names else [name for name in known if not (folder / name).exists()]
    known = {name: known[name] for name in sorted(known) if name not in gone}
    write_whole(into / MANIFEST, json.dumps(known, indent=1) + "\n")
    stays = [name for name in gone if (into / name).exists()]
    return [*_report(folder, into, made, renewed, kept, stays), *_trust(clean)]


def _report(
    folder: Path, into: Path, made: list[str], renewed: list[str], kept: list[str], stays: list[str]
) -> list[str]:
    many = f"{made[0]} to {made[-1]}" if len(made) > 2 else ", ".join(made)
    sentences = [
        (made, f"Copied into {into}/: {many}. These copies are yours: git ignores them."),
        (renewed, f"Updated in {into}/, because you had not worked in them yet: {', '.join(renewed)}."),
        (
            kept,
            f"Changed in {folder}/, but kept in {into}/ as you left them: {', '.join(kept)}. "
            "If you want a new copy, too, rename yours and run this again.",
        ),
        (stays, f"No longer in the course under these names: {', '.join(stays)}. Your copies stay in {into}/."),
    ]
    return [sentence for about, sentence in sentences if about]


def _manifest(into: Path) -> dict[str, str]:
    """What was copied; empty if that was never written or cannot be read, and then every copy that differs is the reader's."""
    try:
        known = json.loads((into / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _trust(copies: Iterable[Path]) -> list[str]:
    """Sign what came with the course, because JupyterLab shows stored figures only in trusted notebooks."""
    import nbformat
    from nbformat.sign import NotebookNotary

    try:
        notary = NotebookNotary()
        for path in copies:
            notebook = nbformat.read(path, as_version=4)
            if not notary.check_signature(notebook):
                notary.sign(notebook)
    except (OSError, DatabaseError) as error:
        return [
            f"The copies could not be marked as trusted ({error}). "
            "If a figure is not shown, choose Trust Notebook in JupyterLab's command palette."
        ]
    return []
