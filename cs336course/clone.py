"""The clone of the course that a command works in: the lessons are in its notebooks/, and the installed package has none."""

import contextlib
import json
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

LESSONS = "notebooks/[0-9][0-9]_*.ipynb"
#: The folder that contains this kit: a clone, or where packages are installed.
BESIDE = Path(__file__).parents[1]


def around(folder: Path) -> Path | None:
    """The clone that contains a folder, or is it; None outside a clone."""
    return next((place for place in (folder, *folder.parents) if any(place.glob(LESSONS))), None)


def origin() -> Path | None:
    """The clone that this kit is part of or that pip has installed it from, as far as that is known and it still exists."""
    places = [BESIDE]
    # What `pip install .` in a clone notes: {"url": "file:///where/the/clone/is", …}. A damaged note is as good as none.
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        noted = urlsplit(json.loads(metadata.distribution("cs336kit").read_text("direct_url.json") or "{}")["url"])
        places += [Path(url2pathname(noted.path))] if noted.scheme == "file" else []
    return next((place for place in places if any(place.glob(LESSONS))), None)


def missing() -> str:
    """Why a command cannot work in the current folder, and where it can."""
    place = origin()
    return (
        "there are no lessons here, nor in a folder above: they are in a clone of the course, and not in the package. "
        + (f"This kit comes from the one in {place}: " if place else "Get one (git clone), ")
        + "change into it (cd), and run this again."
    )
