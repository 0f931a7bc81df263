"""How the course speaks to the kernels in which it runs lessons."""

import os
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

# A socket's file has at most 104 bytes of name on macOS and 108 on Linux; Jupyter writes a number behind it.
_LONGEST = 100
#: Where this kit lies.
_ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """What a kernel finds in its environment: what is here, and this kit before one that is installed, if any is."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}


def address() -> dict[str, Any]:
    """Settings of a Jupyter `KernelManager`: sockets that are files of its own, where the system has such.

    By default Jupyter looks for ports that are free, and lets them go so that the kernel can take them: where another
    kernel or connection on this machine takes one meanwhile, the kernel dies at its start.
    """
    name = Path(tempfile.gettempdir(), f"lesson-{uuid4().hex}")
    possible = os.name == "posix" and len(os.fsencode(name)) < _LONGEST
    return {"transport": "ipc", "ip": str(name)} if possible else {}
