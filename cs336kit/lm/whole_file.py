"""Write a checkpoint so that not even a power cut leaves part of one, and keep older ones beside it."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import torch


def save_beside(content: Any, beside: Path, path: Path) -> None:
    """Write `content` with torch.save to `beside`, which will become `path`, and flush it to the disk.

    A full disk, or any other failure to write, raises OSError with what to do.
    """
    with open(beside, "wb", buffering=0) as raw:
        writer: Any = _Writer(raw)
        try:
            torch.save(content, writer)
            writer.sync()  # some file systems notice only now that they are full
        except (OSError, RuntimeError):
            if writer.error is None:
                raise
            full = writer.error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            raise OSError(
                writer.error.errno,
                f"the checkpoint could not be written: {os.strerror(writer.error.errno)} after {writer.written:,} "
                "bytes. Earlier checkpoints are as they were. "
                f"{'Free space, or save to another disk.' if full else 'Look at the disk.'}",
                str(path),
            ) from writer.error


def keep_older(path: Path, *, keep: int) -> None:
    """Give the files at path, path.1, … path.(keep-2) the names path.1, … path.(keep-1); `path` itself stays as well.

    A hard link costs no copy, and `path` exists at every moment. On a file system without hard links, the file is copied.
    """
    for age in range(keep - 1, 0, -1):
        newer = path if age == 1 else path.with_name(f"{path.name}.{age - 1}")
        older = path.with_name(f"{path.name}.{age}")
        if newer.exists():
            link = path.with_name(path.name + ".linking")
            link.unlink(missing_ok=True)
            try:
                os.link(newer, link)
            except OSError:
                shutil.copy2(newer, link)
            os.replace(link, older)


class _Writer:
    """A file that remembers why a write failed: torch reports only that it did."""

    def __init__(self, raw: Any):
        self.raw, self.written = raw, 0
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        try:
            while view:
                count = self.raw.write(view)
                view, self.written = view[count:], self.written + count
        except OSError as error:
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        self.raw.flush()

    def sync(self) -> None:
        try:
            os.fsync(self.raw.fileno())
        except OSError as error:
            self.error = error
            raise
