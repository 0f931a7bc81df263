"""Keep the answer to an exercise from leaving anything behind, and from changing what judges it."""

import operator
import os
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

#: Bytes of memory that an answer may allocate on top of what is in use.
MEMORY = 2 << 30
#: Modules that the judge uses, besides the kit's own.
_USED = {"builtins", "copy", "inspect", "math", "operator", "os", "re", "reprlib", "torch"}


def keeper() -> Callable[[], None]:
    """A function that restores what the judge uses, whatever an answer may have changed in it since."""
    owners: list = [m for name, m in sys.modules.items() if name.startswith("cs336") or name in _USED]
    # Classes written in Python, with whose methods values are compared; those in C cannot be changed.
    owners += [
        Fraction,
        *([sys.modules["torch"].Tensor, sys.modules["torch"].nn.Parameter] if "torch" in sys.modules else []),
    ]
    # Each with its names, a copy of them, and how one is set and deleted. What was added to the judge's own modules or to
    # tensors is removed; other modules gain names by lazy imports.
    places = []
    for owner in owners:
        kind, own = (type, True) if isinstance(owner, type) else (object, owner.__name__.startswith(__package__))
        places.append((owner, vars(owner), dict(vars(owner)), kind.__setattr__, kind.__delattr__, own))
    missing, size, every, pairs, same = object(), len, all, map, operator.is_

    # Every name used below is a local or a method of a dict: the answer may have replaced any other.
    def untouched(now: dict[str, Any], before: dict[str, Any]) -> bool:
        names = size(now) == size(before) and every(pairs(same, now, before))
        return names and every(pairs(same, now.values(), before.values()))

    def restore() -> None:
        for owner, now, before, put, drop, own in places:
            if untouched(now, before):  # without a Python loop: there are thousands of names, after each call
                continue
            for name, value in before.items():
                if now.get(name, missing) is not value:
                    put(owner, name, value)
            for name in [*now] if own else ():
                if name not in before:
                    drop(owner, name)

    return restore


def guard() -> None:
    """Keep this process from changing files and other processes from here on.

    An audit hook stops Python from doing so on every system. On Linux, `MEMORY` is limited, too, and Landlock (Linux 5.13 or
    later, where it is enabled) stops C and C++.
    """
    import tempfile

    tempfile.gettempdir()  # finds it by writing into it; torch asks for it when a first mode counts operators
    if torch := sys.modules.get("torch"):
        torch.save = _to_files_only(torch.save)  # type: ignore[attr-defined] # of a module found by name
    if sys.platform == "linux":
        _limit()
        _lock_files()
    sys.dont_write_bytecode = True
    sys.addaudithook(_hook())


def _limit() -> None:
    """Limit memory, and the length of any file that is written to nothing."""
    import resource

    with open("/proc/self/statm") as sizes:
        now = int(sizes.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    room = now + MEMORY if most == resource.RLIM_INFINITY else min(now + MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # for what C++ writes, unseen by the hook


def _lock_files() -> None:
    """With Landlock, where Linux has it, forbid changing files, starting programs and signaling: C++ calls no audit hook."""
    import ctypes
    import struct

    libc = ctypes.CDLL(None)

    def call(number: int, *given: bytes | int) -> int:
        return libc.syscall(*(one if isinstance(one, bytes) else ctypes.c_long(one) for one in (number, *given)))

    # Three system calls, whose numbers are the same on every machine: make a set of rules, add one, and be bound by them.
    if (version := call(444, 0, 0, 1)) < 1:
        return
    rights = (1 << 12 + min(version, 3)) - 1 & ~0b1100  # all rights of this version, except reading files and folders
    if (rules := call(444, struct.pack("=QQQ", rights, 0, 2 if version >= 6 else 0), 24, 0)) < 0:
        return
    null = os.open(os.devnull, os.O_PATH)
    call(445, rules, 1, struct.pack("=Qi", rights & (1 << 1 | 1 << 14), null), 0)
    libc.prctl(38, *map(ctypes.c_long, (1, 0, 0, 0)))  # give up new privileges, which Landlock requires
    call(446, rules, 0)
    os.close(null)
    os.close(rules)


def _to_files_only(save: Callable[..., Any]) -> Callable[..., Any]:
    def save_to(value: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(file, "write"):
            open(file, "wb")  # noqa: SIM115 - torch opens paths in C++, unseen by the hook, and this is refused
        return save(value, file, *args, **kwargs)

    return save_to


def _hook() -> Callable[..., None]:
    """An audit hook that refuses whatever would outlive the process; it cannot be removed."""
    refused = (
        "remove rmdir rename truncate mkdir link symlink chmod chown utime setxattr removexattr system exec posix_spawn spawn "
        "fork forkpty"
    )
    names = {f"os.{name}" for name in refused.split()} | {"os.kill", "os.killpg", "shutil.rmtree", "shutil.move"}
    names |= {"subprocess.Popen", "socket.connect", "signal.pthread_kill", "ctypes.dlopen", "ctypes.dlsym"}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def hook(
        event: str, args: tuple[Any, ...], names: set[str] = names, writing: int = writing, null: str = os.devnull,
        error: type[Exception] = PermissionError,
    ) -> None:  # fmt: skip
        if event in names or (event == "open" and args[2] and args[2] & writing and args[0] != null):
            raise error(f"an answer may not do that here ({event})")

    return hook
