"""The cells of a lesson: their tags, their ids, and whether this machine can run them."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any

#: A cell as JSON or as nbformat's node, which is a dict too.
Cell = dict[str, Any]

#: Seconds after which a cell counts as hanging: many, because a busy machine is slow.
HANGING = 600
#: The name in a measured cell's metadata under which the digest of its run is stored.
RUN = "run"
#: Tags with a fixed spelling, and tags that carry a value after a colon.
PLAIN_TAGS = (
    "prediction", "pencil", "answer", "exercise", "drill", "solution", "check", "verdict", "aside", "gpu", "page",
)  # fmt: skip
VALUE_TAGS = {
    "measured": r"[a-z][a-z-]*",
    "approx": r"\d+(\.\d+)?(e-?\d+)?",
    "needs": r"[A-Za-z0-9_-]+(>=|<)\d+(\.\d+)*",
}
#: The widest tolerance of ``approx``: a different processor changes no more than this, but a wrong digit may.
WIDEST = 1e-2
_KNOWN = re.compile("|".join([*PLAIN_TAGS, *(f"{name}:(?:{value})" for name, value in VALUE_TAGS.items())]))


def tags(cell: Cell) -> list[str]:
    """The cell's tags, in order."""
    return list(cell.get("metadata", {}).get("tags", []))


def valued(cell: Cell, name: str) -> list[str]:
    """The values of all tags ``name:value``."""
    return [tag.split(":", 1)[1] for tag in tags(cell) if tag.startswith(name + ":")]


def unknown_tags(cell: Cell) -> list[str]:
    """Tags that the course does not define, including all of nbval's own markers."""
    return [tag for tag in tags(cell) if not _KNOWN.fullmatch(tag)]


def tag_problem(cell: Cell) -> str | None:
    """What is wrong with the cell's tags, as the rest of a sentence about it, or None."""
    if unknown := unknown_tags(cell):
        known = ", ".join([*PLAIN_TAGS, *(f"{name}:" for name in VALUE_TAGS)])
        return f"has the tag {unknown[0]!r}, which the course does not know; it knows {known}"
    if (width := tolerance(cell) or 0) > WIDEST:
        return f"has a tolerance of {width:g}; {WIDEST:g} is the most, and what varies more should be measured:<reason>"
    return None


def source(cell: Cell) -> str:
    """The text of a cell: a file stores it in lines, nbformat joins them."""
    text = cell["source"]
    # Most are a text already, and to join its characters took a fifth of all that the rules of a lesson take.
    return text if isinstance(text, str) else "".join(text)


#: How a cell of prose begins and ends that tells the answer to a prediction above it.
FOLD, FOLD_END = "<details><summary>What it says</summary>\n\n", "\n\n</details>"


def told(cell: Cell) -> bool:
    """Whether this is prose that is folded because it tells the answer to a prediction."""
    return cell["cell_type"] == "markdown" and source(cell).startswith(FOLD) and source(cell).endswith(FOLD_END)


def unfolded(text: str) -> str:
    """The prose of a folded cell without its fold; any other text as it is."""
    return text.removeprefix(FOLD).removesuffix(FOLD_END) if text.startswith(FOLD) else text


#: What an author may write for the slide that a cell begins, in its metadata: everything else there is generated.
WRITTEN = ("title", "notes")


def for_slide(cell: Cell) -> dict[str, str]:
    """What the author wrote for the slide that this cell begins: its ``title``, or ``notes`` for the speaker."""
    found = cell.get("metadata", {}).get("slideshow", {})
    return {name: found[name] for name in WRITTEN if found.get(name)}


def where(cell: Cell) -> str:
    """The name of a cell for a sentence about it: the number that JupyterLab shows, and its first words."""
    first = next(iter(source(cell).strip().splitlines()), "")
    return f"cell {cell.get('execution_count') or ('of code' if is_code(cell) else 'of text')} ({first[:50]!r})"


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


def live(cell: Cell) -> bool:
    """Whether the cell shows something different here, because what is stored comes from a machine without a GPU."""
    return "gpu" in tags(cell) and cuda()


def unmet_need(cell: Cell, version: Callable[[str], str] | None = None) -> str | None:
    """The requirement of the cell that is not met here, or None; a pre-release counts as its release.

    version: of a library by its name; by default the one that is installed here.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    for need in map(Requirement, valued(cell, "needs")):
        have = (version or metadata.version)(need.name)
        if Version(have).base_version not in need.specifier:
            return f"needs {need}, but this is {need.name} {have}"
    return None


def joined(value: Any) -> Any:
    """The value with texts that are stored in lines joined, so that it does not matter how they are stored."""
    if isinstance(value, dict):
        return {key: joined(inner) for key, inner in value.items()}
    if isinstance(value, list):
        text = value and all(isinstance(line, str) for line in value)
        return "".join(value) if text else [joined(inner) for inner in value]
    return value


def run_digest(cell: Cell) -> str:
    """A digest of a cell's text with its outputs; `refresh` stores it with what a run has measured.

    It is keyed, so that an output that was changed by hand is noticed. The key is not secret, so this does not stop fraud.
    """
    outputs = [{key: part for key, part in out.items() if key != "execution_count"} for out in cell["outputs"]]
    told = json.dumps([source(cell), joined(outputs)], sort_keys=True)
    return hashlib.blake2b(told.encode(), key=b"cs336kit", digest_size=8).hexdigest()


def from_a_run(cell: Cell) -> bool:
    """Whether the stored outputs are those of a run."""
    return bool(cell.get("metadata", {}).get(RUN) == run_digest(cell))


def source_ids(cells: Iterable[Cell]) -> list[str]:
    """An id for each cell from its own text: when the text changes, so does the id, and its stored outputs are stale.

    Cells with the same text are numbered.
    """
    seen: dict[str, int] = {}
    ids = []
    for cell in cells:
        text = source(cell)
        key = f"{cell['cell_type']}\n{text}"
        seen[key] = seen.get(key, -1) + 1
        ids.append(hashlib.sha256(f"{cell['cell_type']}\n{seen[key]}\n{text}".encode()).hexdigest()[:12])
    return ids


def identify(cells: Sequence[Cell]) -> None:
    """Give each cell its id of :func:`source_ids`, in place."""
    for cell, id in zip(cells, source_ids(cells), strict=True):
        cell["id"] = id
