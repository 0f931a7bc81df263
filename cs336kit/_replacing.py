"""Write a file so that a reader finds either the old one or the new one, never part of one. Needs the standard library alone."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Windows replaces no file that somebody has open: how often it is tried, and the seconds between.
_TRIES, _PAUSE = 20, 0.05
#: Windows says: access is denied, or another process uses the file.
_IN_USE = (5, 32)


@contextmanager
def replacing(path: Path, ending: str = "", *, flush: bool = False) -> Iterator[Path]:
    """A path beside `path` for a file that takes its place at the end, and is removed if something fails.

    `ending`: how its name ends; without one, it is a name that no other process takes, so that several may write at once,
    and the last one wins. (A process that is killed leaves the file beside; one of a given name is written over next time.)
    `flush`: its new name is on the disk at the end, so that not even a power cut brings the old file back, if the content
    was flushed before. Windows cannot open folders: there, this is left to the system.
    """
    beside = path.with_name(path.name + (ending or f".writing-{secrets.token_hex(4)}"))
    try:
        yield beside
        _replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    if flush and os.name != "nt":
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _replace(new: Path, old: Path) -> None:
    """Let `new` take the place of `old`, also where it has to wait until a reader has closed that."""
    for left in reversed(range(_TRIES)):
        try:
            return os.replace(new, old)
        except PermissionError as error:
            if not left or getattr(error, "winerror", None) not in _IN_USE:
                raise
            time.sleep(_PAUSE)


def write_whole(path: Path, content: str | bytes, *, flush: bool = False) -> None:
    """Write a file (text as UTF-8) so that there is always the old one or the new one, never half of one; OSError names it.

    `flush`: even if the power fails in between.
    """
    try:
        with replacing(path, flush=flush) as beside, open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if flush:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
