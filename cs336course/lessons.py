"""Find and read the lessons."""

import json
from pathlib import Path

from cs336course import cells as kind
from cs336course import clone

NOTEBOOKS = Path("notebooks")
#: The same for everybody who stores the notebook: no version, and no name of an environment.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def find(names: list[str], folder: Path = NOTEBOOKS) -> list[Path]:
    """The notebooks with these numbers (``2`` or ``02``), names or paths, each once; all if none are given.

    ValueError for an unknown one.
    """
    every = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not every:
        raise ValueError(clone.missing() if folder == NOTEBOOKS else f"there are no lessons in {folder}/.")
    known = {key: path for path in every for key in (path.name[:2], path.stem, path.name, str(path.resolve()))}
    found = [known.get(name.zfill(2)) or known.get(str(Path(name).resolve())) for name in names]
    if None in found:
        name = names[found.index(None)]
        raise ValueError(f"no lesson {name!r} in {folder}; there are {', '.join(path.stem for path in every)}")
    return list(dict.fromkeys(filter(None, found))) or every


#: What reading a file as a notebook may raise if it is damaged, or not a notebook.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def read(path: Path) -> list[kind.Cell]:
    """The cells of a lesson; ValueError, with the file's name, for one that is damaged or has no cells."""
    try:
        cells: list[kind.Cell] = json.loads(path.read_bytes())["cells"]
        if not [(cell["cell_type"], kind.source(cell), cell["metadata"].get("tags")) for cell in cells]:
            raise ValueError
    except DAMAGED:
        raise ValueError(
            f"{path} is not a notebook with cells in the current format (nbformat 4). Was it saved only in part, or does it have "
            "merge conflicts? git checkout restores the last version that was committed."
        ) from None
    return cells


def every(folder: Path = NOTEBOOKS) -> list[tuple[Path, list[kind.Cell]]]:
    """All lessons of a folder in order, with their cells."""
    return [(path, read(path)) for path in find([], folder)]
