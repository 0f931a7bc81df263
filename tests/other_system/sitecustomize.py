"""Where this folder is on Python's path, what Windows or macOS lack is missing: forks, process groups, alarms, /proc.

`sys.platform` is a name that nobody knows, so that the kit does what it does on a system that it knows nothing about. The
modules that Windows lacks are hidden from the kit alone, since Jupyter and torch have other ways on Windows that are not here.
"""

import builtins
import os
import signal
import subprocess
import sys
from multiprocessing import popen_fork
from typing import Any

MODULES = {"fcntl", "resource", "pwd", "grp", "termios"}
FUNCTIONS = {
    os: "fork killpg getpgid setsid getuid geteuid mkfifo O_PATH sched_getaffinity sysconf",
    signal: "SIGKILL SIGALRM SIGPROF setitimer ITIMER_REAL ITIMER_PROF alarm",
}

kill, bring = signal.SIGKILL, builtins.__import__


def bring_what_is_there(name: str, into: Any = None, *rest: Any) -> Any:
    """Import a module, unless the kit asks for one that Windows lacks."""
    if name in MODULES and str((into or {}).get("__name__", "")).startswith(("cs336kit", "__mp_main__", "__main__")):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return bring(name, into, *rest)


def without_proc(event: str, given: tuple[Any, ...]) -> None:
    """Only Linux has files that tell about processes."""
    if event in ("open", "os.listdir") and str(given[0]).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", given[0])


# What the standard library does there by other means, it still does.
subprocess.Popen.kill = lambda self: self.send_signal(kill)  # type: ignore[method-assign]
popen_fork.Popen.kill = lambda self: self._send_signal(kill)  # type: ignore[method-assign,attr-defined]
for module, names in FUNCTIONS.items():
    for name in names.split():
        delattr(module, name)
builtins.__import__ = bring_what_is_there
sys.addaudithook(without_proc)
sys.platform = "elsewhere"
