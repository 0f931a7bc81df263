"""What a cell is: its tags, its identity, and whether this machine can run it."""

import hashlib
import re
from importlib import metadata

#: Tags with a fixed spelling, and tags that carry a value after a colon.
PLAIN_TAGS = ("exercise", "solution", "check", "verdict", "gpu")
VALUE_TAGS = {
    "measured": r"[a-z][a-z-]*",
    "claim": r"[a-z0-9][a-z0-9.-]*",
    "approx": r"\d+(\.\d+)?(e-?\d+)?",
    "needs": r"[A-Za-z0-9_-]+(>=|<)\d+(\.\d+)*",
}


def tags(cell) -> list[str]:
    """The cell's tags, in order."""
    return list(cell.get("metadata", {}).get("tags", []))


def valued(cell, name: str) -> list[str]:
    """The values of all tags ``name:value``."""
    return [tag.split(":", 1)[1] for tag in tags(cell) if tag.startswith(name + ":")]


def unknown_tags(cell) -> list[str]:
    """Tags that the course does not define; every one of nbval's own markers is among them."""

    def known(tag):
        name, colon, value = tag.partition(":")
        return tag in PLAIN_TAGS or bool(colon and name in VALUE_TAGS and re.fullmatch(VALUE_TAGS[name], value))

    return [tag for tag in tags(cell) if not known(tag)]


def is_code(cell) -> bool:
    """Whether this is a code cell with something in it."""
    return cell["cell_type"] == "code" and bool("".join(cell["source"]).strip())


def measured(cell) -> bool:
    """Whether the cell's outputs depend on the machine, and are therefore not compared."""
    return any(tag.startswith("measured") for tag in tags(cell))


def reason_to_skip(cell) -> str | None:
    """Why this machine cannot verify the cell (no CUDA device, another version of a library), or None."""
    if "gpu" in tags(cell) and not cuda():
        return "needs a CUDA device, and there is none"
    return unmet_need(cell)


def cuda() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def unmet_need(cell) -> str | None:
    """Which version of a library the cell asks for and this machine lacks, or None."""
    for need in valued(cell, "needs"):
        package, relation, wanted = re.fullmatch(r"([A-Za-z0-9_-]+)(>=|<)([\d.]+)", need).groups()
        have = metadata.version(package)
        if (_release(have) >= _release(wanted)) != (relation == ">="):
            return f"needs {need}, and {package} {have} is installed"
    return None


def _release(version: str) -> tuple[int, ...]:
    digits = [int(part) for part in re.match(r"\d+(\.\d+)*", version)[0].split(".")]
    return tuple(digits + [0] * (4 - len(digits)))


def source_id(cell, occurrence: int = 0) -> str:
    """An id from the cell's own text: when the text changes, so does the id, and outputs stored under the old one are stale."""
    text = f"{cell['cell_type']}\n{occurrence}\n{''.join(cell['source'])}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def source_ids(cells) -> list[str]:
    """One id per cell; a text that stands twice is numbered."""
    seen: dict[str, int] = {}
    ids = []
    for cell in cells:
        first = source_id(cell)
        seen[first] = seen.get(first, -1) + 1
        ids.append(source_id(cell, seen[first]))
    return ids
