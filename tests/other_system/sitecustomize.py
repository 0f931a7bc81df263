"""Where this folder is on Python's path, what Windows or macOS lack is missing: forks, process groups, alarms, /proc.

`sys.platform` is a name that nobody knows, so that the kit does what it does on a system that it knows nothing about. From
Jupyter and torch only those functions are taken that they do without; other modules are hidden from the kit alone.
"""

import builtins
import os
import signal
import subprocess
import sys
import sysconfig
import types
from typing import Any

MODULES = {"fcntl", "resource", "pwd", "grp", "termios"}
FUNCTIONS = "fork killpg geteuid O_PATH sysconf sched_getaffinity"
SIGNALS = "SIGKILL SIGALRM SIGPROF SIGHUP SIGQUIT setitimer ITIMER_REAL ITIMER_PROF alarm pthread_kill"

bring, signals = builtins.__import__, types.ModuleType("signal")
vars(signals).update({name: value for name, value in vars(signal).items() if name not in SIGNALS.split()})


def bring_what_is_there(name: str, into: Any = None, *rest: Any, **named: Any) -> Any:
    """Import a module, unless the kit asks for what Windows lacks."""
    if str((into or {}).get("__name__", "")).startswith("cs336kit"):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "signal":
            return signals
    return bring(name, into, *rest, **named)


def without_proc(event: str, given: tuple[Any, ...]) -> None:
    """Only Linux has files that tell about processes."""
    if event in ("open", "os.listdir") and str(given[0]).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", given[0])


for name in FUNCTIONS.split():
    delattr(os, name)
subprocess.Popen.kill = subprocess.Popen.terminate  # type: ignore[method-assign] # as on Windows
builtins.__import__ = bring_what_is_there
sys.addaudithook(without_proc)
sysconfig.get_config_vars()  # reads a file that is named after the platform
sys.platform = "elsewhere"
