"""What a cell is: its tags, its identity, and whether this machine can run it."""

import hashlib
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

#: A cell as JSON or as nbformat's node, which is a dict too.
Cell = dict[str, Any]

#: Tags with a fixed spelling, and tags that carry a value after a colon.
PLAIN_TAGS = ("prediction", "answer", "exercise", "solution", "check", "verdict", "gpu", "page")
VALUE_TAGS = {
    "measured": r"[a-z][a-z-]*",
    "claim": r"[a-z0-9][a-z0-9.-]*",
    "approx": r"\d+(\.\d+)?(e-?\d+)?",
    "needs": r"[A-Za-z0-9_-]+(>=|<)\d+(\.\d+)*",
}
_KNOWN = re.compile("|".join([*PLAIN_TAGS, *(f"{name}:(?:{value})" for name, value in VALUE_TAGS.items())]))


def tags(cell: Cell) -> list[str]:
    """The cell's tags, in order."""
    return list(cell.get("metadata", {}).get("tags", []))


def valued(cell: Cell, name: str) -> list[str]:
    """The values of all tags ``name:value``."""
    return [tag.split(":", 1)[1] for tag in tags(cell) if tag.startswith(name + ":")]


def unknown_tags(cell: Cell) -> list[str]:
    """Tags that the course does not define; every one of nbval's own markers is among them."""
    return [tag for tag in tags(cell) if not _KNOWN.fullmatch(tag)]


def source(cell: Cell) -> str:
    """The text of a cell: a file stores it in lines, nbformat joins them."""
    return "".join(cell["source"])


def is_code(cell: Cell) -> bool:
    """Whether this is a code cell with something in it."""
    return cell["cell_type"] == "code" and bool(source(cell).strip())


def measured(cell: Cell) -> bool:
    """Whether the cell's outputs depend on the machine, and are therefore not compared."""
    return any(tag.startswith("measured") for tag in tags(cell))


def tolerance(cell: Cell) -> float | None:
    """The relative tolerance of a cell tagged ``approx``, or None: its outputs must be equal."""
    return next(map(float, valued(cell, "approx")), None)


def cuda() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return bool(torch.cuda.is_available())


def reason_to_skip(cell: Cell) -> str | None:
    """Why this machine cannot verify the cell (no CUDA device, another version of a library), or None."""
    if "gpu" in tags(cell) and not cuda():
        return "needs a CUDA device, and there is none"
    return unmet_need(cell)


def unmet_need(cell: Cell) -> str | None:
    """Which version of a library the cell asks for and this machine lacks, or None; a pre-release counts as its release."""
    from packaging.requirements import Requirement
    from packaging.version import Version

    for need in map(Requirement, valued(cell, "needs")):
        have = metadata.version(need.name)
        if Version(have).base_version not in need.specifier:
            return f"needs {need}, and {need.name} {have} is installed"
    return None


def source_ids(cells: Iterable[Cell]) -> list[str]:
    """An id for each cell from its own text: when the text changes, so does the id, and outputs stored under it are stale.

    A text that stands twice is numbered.
    """
    seen: dict[str, int] = {}
    ids = []
    for cell in cells:
        text = source(cell)
        key = f"{cell['cell_type']}\n{text}"
        seen[key] = seen.get(key, -1) + 1
        ids.append(hashlib.sha256(f"{cell['cell_type']}\n{seen[key]}\n{text}".encode()).hexdigest()[:12])
    return ids
