"""The process of a check, seen from inside: what it may do, and how it ends with all that an answer has started."""

import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from cs336kit.teach.exercises import call
from cs336kit.teach.exercises.call import NoAutograd

#: Bytes of memory that an answer may allocate on top of what is in use.
MEMORY = 2 << 30

#: What an answer's process says: its state and a message.
Say = Callable[[str, Any], None]
#: Makes ready what ``begin(say)`` runs, without the guard and before time runs.
Begin = Callable[[], Callable[[Say], None]]


def serve() -> None:
    """What a new process does: import torch, wait for one answer, judge it, and end."""
    say_to, lifeline = os.dup(1), os.dup(0)
    os.dup2(2, 1)  # what torch says while it is imported
    import torch

    try:
        token, (sys.path[:], folder, cuda), prepare, answer = pickle.load(sys.stdin.buffer)
    except EOFError:  # whoever has started it is gone
        return
    os.chdir(folder)

    def make() -> Callable[[Say], None]:
        if cuda:
            torch.zeros(1, device="cuda")  # needs more address space than the guard leaves
        work = pickle.loads(prepare)[0]()
        return lambda say: work(pickle.loads(answer)[0], say)

    watched(make, say_to, 2, token, lifeline)


def watched(make: Begin, say_to: int, print_to: int, token: str, lifeline: int) -> NoReturn:
    """Run an answer, and end with all that it has started when it has ended or the lifeline closes."""
    write, code = os.write, 1

    def say(state: str, message: Any) -> None:
        write(say_to, f"{token}{(state, message)!r}\n".encode())

    try:
        if call.forked:
            os.setsid()
            kept = {0, say_to, print_to, lifeline}
            for inherited in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
                with suppress(OSError):
                    os.close(inherited)
        os.dup2(print_to, 1)
        os.dup2(print_to, 2)
        if sys.platform == "linux":
            import ctypes

            control = ctypes.CDLL(None).prctl
            control(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below become our children
            if answer := os.fork():
                if (ended := _outlived(answer, lifeline)) is not None:
                    say("ended", ended)
                os._exit(0)
            control(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG: when the watcher is gone, so is the answer
            os.close(lifeline)
        else:
            threading.Thread(target=lambda: (os.read(lifeline, 1), os._exit(1)), daemon=True).start()
        code = _confined(make, say)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)


def _outlived(answer: int, lifeline: int) -> int | None:
    """Wait for the end of this child, and end all others; return its exit code, or None where the lifeline closed before."""
    import select

    closed, code = select.poll(), None
    closed.register(lifeline, select.POLLIN)
    while code is None and not closed.poll(5):
        ended, status = os.waitpid(answer, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
    with suppress(ChildProcessError):  # there is none left
        while True:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                for child in _children():  # what they had started are children in the next round
                    with suppress(OSError):
                        os.kill(child, signal.SIGKILL)
                os.waitpid(-1, 0)
    return code


def _children() -> list[int]:
    """The processes whose parent is this one, as Linux lists them."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", errors="replace") as facts:
            if int(facts.read().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(name))
    return found


def _confined(make: Begin, say: Say) -> int:
    """In the process of an answer: guard it, run ``make()(say)``, and return 0."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace")
    if shell := "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
        # Only the kernel itself can send displays; here they become text.
        shell.display_pub.publish = lambda data, **_: print(data.get("text/plain", ""))
    gc.freeze()  # sockets and threads of the parent are not ours to finalize
    gc.enable()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # in a fork, the parent's pool of threads did not come along
    begin, flush = make(), sys.stdout.flush
    guard()
    say("running", "the check")
    try:
        begin(say)
    except NoAutograd:
        say("no autograd", "")
    flush()
    return 0


def guard() -> None:
    """Keep this process from changing files and other processes from here on."""
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

    def ask(number: int, *given: bytes | int) -> int:
        return libc.syscall(*(one if isinstance(one, bytes) else ctypes.c_long(one) for one in (number, *given)))

    # Three system calls, whose numbers are the same on every machine: make a set of rules, add one, and be bound by them.
    if (version := ask(444, 0, 0, 1)) < 1:
        return
    rights = (1 << 12 + min(version, 3)) - 1 & ~0b1100  # all rights of this version, except reading files and folders
    if (rules := ask(444, struct.pack("=QQQ", rights, 0, 2 if version >= 6 else 0), 24, 0)) < 0:
        return
    null = os.open(os.devnull, os.O_PATH)
    ask(445, rules, 1, struct.pack("=Qi", rights & (1 << 1 | 1 << 14), null), 0)
    libc.prctl(38, *map(ctypes.c_long, (1, 0, 0, 0)))  # give up new privileges, which Landlock requires
    ask(446, rules, 0)
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
