"""Run a learner's function where it can do no harm: whatever happens in there becomes a sentence.

On Linux the check forks the kernel, so that the answer has the reader's cells, imports and tensors, and everything that it
does ends with its process: it cannot hang (the process is killed after `LIMIT` seconds), exit, print megabytes, change the
checker or torch for later cells, or delete, write and start anything: an audit hook refuses what Python does, and Landlock
(Linux 5.13 or later, where it is switched on) what C and C++ do. Only words come back. Where
there is no fork, or CUDA is in use (which a fork would break), the answer runs in this process: then an alarm ends a loop,
where the system has one, and the rest is not guarded. So does one that asks a forked process for gradients after torch has
started threads for them: a CUDA build without a GPU does at the first backward pass, if fake tensors were made before it.

What an answer is compared with is computed before it runs, and what the judge calls is put back after each call. This
guards against accidents and simple tricks; whoever reads the frames of the checker can cheat.
"""

import ast
import contextlib
import gc
import operator
import os
import secrets
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

#: Seconds after which a check is given up: an endless loop is a usual mistake.
LIMIT = 10
#: Bytes of memory that an answer may take on top of what is there.
MEMORY = 2 << 30
#: Characters of what an answer prints that are shown.
PRINTED = 2000

Say = Callable[[str, str], None]

#: Whether this is the process of an answer.
_forked = False


class Failed(Exception):
    """The call gave no value; the text continues a sentence that begins with the call."""


class NoAutograd(BaseException):
    """Torch has threads for its backward passes, which did not come along into the forked process: there it refuses them."""


class TooLong(BaseException):
    """Not an Exception, so that an `except Exception` inside the answer does not swallow it."""


def attempt(function: Callable, args: tuple, restore: Callable[[], None]):
    """Call `function`; raise Failed with a sentence when it raises, never ends, or asks for other arguments."""
    try:
        return function(*args)
    except TooLong:
        raise Failed(_too_long()) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        restore()
        if _forked and isinstance(error, RuntimeError) and not _has_autograd():
            raise NoAutograd from None
        raise Failed(f"raised {type(error).__name__}: {_text(error)[:200]}{_line(error, function)}") from None
    finally:
        restore()


def _has_autograd() -> bool:
    """Whether a backward pass runs in this process."""
    try:
        sys.modules["torch"].ones(1, requires_grad=True).sum().backward()
    except RuntimeError:
        return False
    except KeyError:  # nobody has imported torch
        pass
    return True


def _too_long() -> str:
    return f"did not return within {LIMIT} seconds: is there a loop that never ends?"


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split()) or "no message"
    except Exception:
        return "its message cannot be shown"


def _line(error: BaseException, function) -> str:
    """Where in the answer itself it happened, as the line number that Jupyter can show."""
    code = getattr(function, "__code__", None)
    trace, found = error.__traceback__, None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            found = trace.tb_lineno - code.co_firstlineno + 1
        trace = trace.tb_next
    return f" (line {found} of your function)" if found else ""


#: Modules that the judge calls, besides the kit's own.
_USED = {"builtins", "copy", "inspect", "math", "operator", "os", "re", "reprlib", "torch"}


def keeper() -> Callable[[], None]:
    """A function that puts back what the judge uses, however an answer may have changed it since."""
    used = [m for name, m in sys.modules.items() if name.startswith("cs336kit.") or name in _USED]
    tensor = sys.modules["torch"].Tensor if "torch" in sys.modules else None
    # What is added to the judge's own modules or to tensors goes; other modules gain names by lazy imports.
    places = [(vars(m), dict(vars(m)), m.__name__.startswith(__package__)) for m in used]
    methods, missing, get, put, drop = (
        dict(vars(tensor)) if tensor else {},
        object(),
        dict.get,
        dict.__setitem__,
        dict.__delitem__,
    )
    put_on_class, drop_from_class = type.__setattr__, type.__delattr__
    size, every, pairs, same = len, all, map, operator.is_

    # Every name in here is a local or a method of a plain dict: the answer may have replaced all others.
    def untouched(now, before):
        names = size(now) == size(before) and every(pairs(same, now, before))
        return names and every(pairs(same, now.values(), before.values()))

    def restore():
        for now, before, own in places:
            if untouched(now, before):  # without a loop in Python: thousands of names, after each call
                continue
            for name, value in before.items():
                if get(now, name, missing) is not value:
                    put(now, name, value)
            for name in [*now] if own else ():
                if name not in before:
                    drop(now, name)
        now = tensor.__dict__ if methods else {}
        if untouched(now, methods):
            return
        for name, value in methods.items():
            if now.get(name, missing) is not value:
                put_on_class(tensor, name, value)
        for name in [*now]:
            if name not in methods:
                drop_from_class(tensor, name)

    return restore


def run(work: Callable[[Say], None], seconds: float | None = None) -> tuple[str, str]:
    """What ``work(say)`` said last, a state and a message; in a process of its own where that is possible."""
    seconds = LIMIT if seconds is None else seconds
    if not _can_fork():
        return _here(work, seconds)
    state, message = _apart(work, seconds)
    return _here(work, seconds) if state == "no autograd" else (state, message)


def _can_fork() -> bool:
    torch = sys.modules.get("torch")
    return sys.platform == "linux" and hasattr(os, "fork") and not (torch and torch.cuda.is_initialized())


def _here(work, seconds: float):
    said = [("running", "the check")]
    with contextlib.suppress(TooLong), alarm(seconds):
        work(lambda state, message: said.append((state, message)))
    state, message = said[-1]
    return (state, message) if state != "running" else ("not yet", f"{message} {_too_long()}")


@contextlib.contextmanager
def alarm(seconds: float, *, processor: bool = False):
    """Raise TooLong in the block after `seconds`, where the system has an alarm and this is the main thread.

    `processor`: seconds of the processor, which are as many on a busy machine.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "SIGALRM") and hasattr(signal, "setitimer")):
        yield
        return

    timer, sent = (signal.ITIMER_PROF, signal.SIGPROF) if processor else (signal.ITIMER_REAL, signal.SIGALRM)

    def stop(signum, frame):
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                # An import that is interrupted leaves half a module behind: let it end.
                signal.setitimer(timer, 0.1)
                return
            frame = frame.f_back
        raise TooLong

    before = signal.signal(sent, stop)
    remaining, _ = signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, remaining)
        signal.signal(sent, before)


def _apart(work, seconds: float):
    results, say_to = os.pipe()
    prints, print_to = os.pipe()
    token = secrets.token_hex(8)  # so that nothing else on the pipe is taken for a verdict
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork beside threads, which stay behind
        child = os.fork()
    if child == 0:
        _child(work, say_to, print_to, token, seconds)
    os.close(say_to)
    os.close(print_to)
    try:
        said, text, length = _listen(results, prints, seconds)
    finally:
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(results)
        os.close(prints)
    verdicts = [ast.literal_eval(line[len(token) :]) for line in said.decode().splitlines() if line.startswith(token)]
    state, message = verdicts[-1] if verdicts else ("running", "the check")
    if length and state != "no autograd":  # which is tried again, and prints again
        more = f"\n… {length - PRINTED:,} more characters were printed.\n" if length > PRINTED else ""
        print(text.decode(errors="replace")[:PRINTED] + more, end="")
    if state != "running":
        return state, message
    code = os.waitstatus_to_exitcode(status)
    ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    why = _too_long() if code == -signal.SIGKILL else f"ended the process that it ran in, {ended}."
    return "not yet", f"{message} {why}"


def _listen(results: int, prints: int, seconds: float) -> tuple[bytes, bytes, int]:
    """What comes through the pipe of results until it is closed or time is up; the beginning and length of what is printed."""
    received, printed, deadline = {results: b"", prints: b""}, 0, time.monotonic() + seconds
    with selectors.DefaultSelector() as pipes:
        pipes.register(results, selectors.EVENT_READ)
        pipes.register(prints, selectors.EVENT_READ)
        over = False
        # When the results have ended, what is still in the other pipe is read without waiting.
        while ready := pipes.select(0 if over else max(0, deadline - time.monotonic())):
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    pipes.unregister(key.fd)
                    over = over or key.fd == results
                printed += len(data) if key.fd == prints else 0
                if key.fd == results or len(received[prints]) < 4 * PRINTED:
                    received[key.fd] += data
            if time.monotonic() > deadline or not pipes.get_map():
                break
    return received[results], received[prints], printed


def _child(work, say_to: int, print_to: int, token: str, seconds: float):
    """The forked process: everything that leaves it are lines of a state and a message."""
    import resource

    global _forked
    _forked, code = True, 1
    try:
        os.setsid()
        # The kernel ends this process in time, unless somebody has ended the kernel.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 1)
        for old, new in ((os.open(os.devnull, os.O_RDONLY), 0), (print_to, 1), (print_to, 2)):
            os.dup2(old, new)
        for inherited in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, say_to}:
            with contextlib.suppress(OSError):
                os.close(inherited)
        sys.stdin = os.fdopen(0)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, errors="replace")
        if shell := "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
            # Only the kernel itself may send what is displayed; here it becomes text.
            shell.display_pub.publish = lambda data, **_: print(data.get("text/plain", ""))
        gc.freeze()  # sockets and threads of the parent are not ours to finalize
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # the parent's pool of threads did not come along
            torch.save = _to_files_only(torch.save)  # type: ignore[attr-defined] # of a module found by name
        with open("/proc/self/statm") as sizes:
            now = int(sizes.read().split()[0]) * resource.getpagesize()
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        room = now + MEMORY if most == resource.RLIM_INFINITY else min(now + MEMORY, most)
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # for what C++ writes, which the hook does not see
        _lock_files()
        sys.dont_write_bytecode = True
        sys.addaudithook(_guard())
        write, flush = os.write, sys.stdout.flush

        def say(state, message):
            write(say_to, f"{token}{(state, message)!r}\n".encode())

        try:
            work(say)
        except NoAutograd:
            say("no autograd", "")
        flush()
        code = 0
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)


def _lock_files() -> None:
    """Have Linux refuse to change files, start programs and signal others, where it has Landlock: C++ asks no audit hook."""
    import ctypes
    import struct

    libc = ctypes.CDLL(None)

    def call(number: int, *given: bytes | int) -> int:
        return libc.syscall(*(one if isinstance(one, bytes) else ctypes.c_long(one) for one in (number, *given)))

    # Three system calls, whose numbers are the same on every machine: make a set of rules, add one, and be bound by them.
    if (version := call(444, 0, 0, 1)) < 1:
        return
    rights = (1 << 12 + min(version, 3)) - 1 & ~0b1100  # all of this version, but to read files and folders
    if (rules := call(444, struct.pack("=QQQ", rights, 0, 2 if version >= 6 else 0), 24, 0)) < 0:
        return
    null = os.open(os.devnull, os.O_PATH)
    call(445, rules, 1, struct.pack("=Qi", rights & (1 << 1 | 1 << 14), null), 0)
    libc.prctl(38, *map(ctypes.c_long, (1, 0, 0, 0)))  # without new privileges, which is what it takes
    call(446, rules, 0)
    os.close(null)
    os.close(rules)


def _to_files_only(save):
    def save_to(value, file, *args, **kwargs):
        if not hasattr(file, "write"):
            open(file, "wb")  # noqa: SIM115 - it opens paths in C++, which the hook does not see, and this is refused
        return save(value, file, *args, **kwargs)

    return save_to


def _guard():
    """An audit hook that refuses what would outlive the process; nothing can remove it."""
    refused = (
        "remove rmdir rename truncate mkdir link symlink chmod chown utime setxattr removexattr system exec posix_spawn spawn "
        "fork forkpty"
    )
    names = {f"os.{name}" for name in refused.split()} | {"os.kill", "os.killpg", "shutil.rmtree", "shutil.move"}
    names |= {"subprocess.Popen", "socket.connect", "signal.pthread_kill"}
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def hook(event, args, names=names, writing=writing, null=os.devnull, error=PermissionError):
        if event in names or (event == "open" and args[2] and args[2] & writing and args[0] != null):
            raise error(f"an answer may not do that here ({event})")

    return hook
