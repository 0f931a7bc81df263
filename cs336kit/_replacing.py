"""Write a file so that a reader finds either the old one or the new one, never part of one. Needs the standard library alone."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, ending: str = "") -> Iterator[Path]:
    """A path beside `path` for a file that takes its place at the end, and is removed if something fails.

    `ending`: how its name ends; without one, it is a name that no other process takes, so that several may write at once,
    and the last one wins. (A process that is killed leaves the file beside; one of a given name is written over next time.)
    """
    beside = path.with_name(path.name + (ending or f".writing-{secrets.token_hex(4)}"))
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
