"""Settings for the kernels in which the course runs lessons."""

import os
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

# The path of a socket has at most 104 bytes on macOS and 108 on Linux, and Jupyter appends a number.
_LONGEST = 100
#: The folder that contains this kit.
_ROOT = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The environment of a kernel: the current one, with this kit before any that is installed, and UTF-8 on Windows, too.

    Python does not optimize there: beartype, whose checks lesson 05 shows, checks nothing under PYTHONOPTIMIZE.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONOPTIMIZE": ""}


def address() -> dict[str, Any]:
    """Settings of a Jupyter `KernelManager`: sockets that are files, where the system has such sockets.

    By default, Jupyter looks for free ports and releases them for the kernel. If another kernel or connection on this
    machine takes one in between, the kernel dies when it starts.
    """
    name = Path(tempfile.gettempdir(), f"lesson-{uuid4().hex}")
    possible = os.name == "posix" and len(os.fsencode(name)) < _LONGEST
    return {"transport": "ipc", "ip": str(name)} if possible else {}
