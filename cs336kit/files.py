"""Write a file so that a reader finds either the old one or the new one, never part of one. Needs the standard library alone."""

import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, which removes no file that another process has open
    fcntl = None  # type: ignore[assignment]

#: Windows replaces no file that somebody has open: how often it is tried, and the seconds between.
_TRIES, _PAUSE = 20, 0.05
#: Windows says: access is denied, or another process uses the file.
_IN_USE = (5, 32)


@contextmanager
def replacing(path: Path, ending: str = "", *, flush: bool = False) -> Iterator[Path]:
    """A path beside `path` for a file that takes its place at the end, and is removed if something fails.

    The file is there, empty, with the permissions of the one that it will replace. Where `path` is a link, it takes the
    place of what the link leads to. `ending`: how its name ends, so that one that a killed process left is written over;
    while one process writes it, a second gets a BlockingIOError. Without an ending it is a name that no other process
    takes, so that several may write at once, and the last one wins.
    `flush`: its new name is on the disk at the end, so that not even a power cut brings the old file back, if the content
    was flushed before. Windows cannot open folders: there, this is left to the system.
    """
    path = followed(path)
    beside = path.with_name(path.name + (ending or f".writing-{secrets.token_hex(4)}"))
    with alone_in(beside.parent) if ending else nullcontext():  # a name of one's own needs no lock
        claim = _claimed(beside, path)
    try:
        yield beside
        with suppress(FileNotFoundError):  # nothing is replaced
            shutil.copymode(path, beside)
        _replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(claim)
    if flush and os.name != "nt":
        folder = os.open(path.absolute().parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def followed(path: Path) -> Path:
    """The file that a link leads to, or the path itself."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _claimed(beside: Path, path: Path) -> int:
    """Create `beside`, empty, with the permissions of `path`, for this process alone; returns the open file that says so.

    A lock of the operating system ends with its process, so that what a killed one left can be told from what is written
    now. Raises BlockingIOError if another process writes it now.
    """
    if os.path.lexists(beside):
        if not beside.is_symlink():
            _refuse_in_use(beside, path)
        beside.unlink(missing_ok=True)  # who wrote it has just finished
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    # Nobody may read it who could not read the old one, not even while it is written.
    claim = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666 if mode is None else mode & 0o600)
    if mode is not None:
        os.chmod(beside, mode | stat.S_IWUSR)
    _lock(claim)
    if fcntl is None:
        os.close(claim)
        return os.open(os.devnull, os.O_RDONLY)
    return claim


def _refuse_in_use(beside: Path, path: Path) -> None:
    try:
        left = os.open(beside, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        taken = not _lock(left)
    finally:
        os.close(left)
    if taken:
        raise BlockingIOError(
            errno.EAGAIN,
            "another process is writing this file at the moment, and it was left as it is. Wait until that has finished, "
            "or give another name",
            str(path),
        )


def _lock(file: int) -> bool:
    """Lock an open file until it is closed; False if another has it. A file system without locks locks nothing."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
    return True


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """While this lasts, others that ask for the same folder wait, where the system has locks; no file is left beside."""
    if fcntl is None:
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network drives lock no folder
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


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
