"""Run a learner's function where it can do no harm, and turn whatever happens there into a sentence.

On Linux the check forks the kernel, so the answer has the reader's cells, imports and tensors, and everything that it does
ends with its process, except in memory that is shared on purpose: it cannot hang (the process is killed after `LIMIT`
seconds), exit, print megabytes, change the checker or torch for later cells, or delete, write or start anything (see
:mod:`~cs336kit.teach.exercises.guarding`). Only words come back. Where there is no fork, or CUDA is in use (which a fork
would break), the answer runs in this process: an alarm, where the system has one, then stops an endless loop, and nothing
else is guarded. An answer that computes gradients also runs here once torch has started threads for them, which a forked
process lacks: a CUDA build without a GPU starts them at the first backward pass, if fake tensors were made before it.

What an answer is compared with is computed before it runs, and what the judge uses is restored after each call. This
protects against accidents and simple tricks; somebody who reads the frames of the checker can cheat.
"""

import ast
import contextlib
import gc
import os
import secrets
import selectors
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from cs336kit.teach.exercises.guarding import guard

#: Seconds after which a check gives up: endless loops are a common mistake.
LIMIT = 10
#: How many characters of what an answer prints are shown.
PRINTED = 2000

Say = Callable[[str, str], None]

#: Whether this process was forked to run an answer.
_forked = False


class Failed(Exception):
    """The call returned nothing that can be judged; the text continues a sentence that begins with the call."""


class NoAutograd(BaseException):
    """Torch had started threads for backward passes, which a forked process does not have, so it refuses to run any there."""


class TooLong(BaseException):
    """Not an Exception, so that an `except Exception` inside the answer does not swallow it."""


def attempt(function: Callable, args: tuple, restore: Callable[[], None]) -> Any:
    """Call `function`; raise Failed with a sentence when it raises or takes different arguments, TooLong when time is up."""
    try:
        return function(*args)
    except (KeyboardInterrupt, TooLong):  # no second alarm would end the next call
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
    except KeyError:  # torch was not imported
        pass
    return True


def _too_long() -> str:
    return f"did not return within {LIMIT} seconds: is there a loop that never ends?"


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split()) or "no message"
    except Exception:
        return "its message cannot be shown"


def _line(error: BaseException, function: object) -> str:
    """Where in the answer the error happened, as the line number that Jupyter shows."""
    code = getattr(function, "__code__", None)
    trace, found = error.__traceback__, None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            found = trace.tb_lineno - code.co_firstlineno + 1
        trace = trace.tb_next
    return f" (line {found} of your function)" if found else ""


def run(work: Callable[[Say], None], seconds: float | None = None) -> tuple[str, str]:
    """The last state and message that ``work(say)`` said, from a process of its own where that is possible.

    If it ends while the state is "running", that becomes "not yet", or what follows it, as in "running 2/3".
    """
    seconds = LIMIT if seconds is None else seconds
    if not _can_fork():
        return _here(work, seconds)
    state, message = _apart(work, seconds)
    return _here(work, seconds) if state == "no autograd" else (state, message)


def _can_fork() -> bool:
    torch = sys.modules.get("torch")
    return sys.platform == "linux" and hasattr(os, "fork") and not (torch and torch.cuda.is_initialized())


def _here(work: Callable[[Say], None], seconds: float) -> tuple[str, str]:
    said = [("running", "the check")]
    with contextlib.suppress(TooLong), alarm(seconds):
        work(lambda state, message: said.append((state, message)))
    state, message = said[-1]
    return (state, message) if not state.startswith("running") else (_ended(state), f"{message} {_too_long()}")


def _ended(state: str) -> str:
    return state.removeprefix("running").strip() or "not yet"


@contextlib.contextmanager
def alarm(seconds: float, *, processor: bool = False) -> Iterator[None]:
    """Raise TooLong in the block after `seconds`, where the system has an alarm and this is the main thread.

    `processor`: count processor time, which does not depend on how busy the machine is.
    """
    main = threading.current_thread() is threading.main_thread()
    if not (main and hasattr(signal, "SIGALRM") and hasattr(signal, "setitimer")):
        yield
        return

    timer, sent = (signal.ITIMER_PROF, signal.SIGPROF) if processor else (signal.ITIMER_REAL, signal.SIGALRM)

    def stop(signum: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                # An interrupted import leaves half a module behind: let it finish.
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


def _apart(work: Callable[[Say], None], seconds: float) -> tuple[str, str]:
    results, say_to = os.pipe()
    prints, print_to = os.pipe()
    token = secrets.token_hex(8)  # so that nothing else on the pipe passes for a verdict
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork beside threads, which stay behind
        collecting = gc.isenabled()
        gc.disable()  # garbage that has threads would wait for them in the child, until it is frozen there
        try:
            child = os.fork()
            if child == 0:
                _child(work, say_to, print_to, token, seconds)
        finally:
            if collecting:
                gc.enable()
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
    if length and state != "no autograd":  # it is tried again, and prints again
        more = f"\n… {length - PRINTED:,} more characters were printed.\n" if length > PRINTED else ""
        print(text.decode(errors="replace")[:PRINTED] + more, end="")
    if not state.startswith("running"):
        return state, message
    code = os.waitstatus_to_exitcode(status)
    ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    why = _too_long() if code in (-signal.SIGKILL, -signal.SIGALRM) else f"ended the process that it ran in, {ended}."
    return _ended(state), f"{message} {why}"


def _listen(results: int, prints: int, seconds: float) -> tuple[bytes, bytes, int]:
    """What comes through the pipe of results until it closes or time is up; and the start and length of what was printed."""
    received, printed, deadline = {results: b"", prints: b""}, 0, time.monotonic() + seconds
    with selectors.DefaultSelector() as pipes:
        pipes.register(results, selectors.EVENT_READ)
        pipes.register(prints, selectors.EVENT_READ)
        over = False
        # After the results have ended, the rest of the other pipe is read without waiting.
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


def _child(work: Callable[[Say], None], say_to: int, print_to: int, token: str, seconds: float) -> None:
    """The forked process, which sends out nothing but lines of a state and a message."""
    global _forked
    _forked, code = True, 1
    try:
        os.setsid()
        # The parent kills this process in time, unless it has itself been killed.
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
            # Only the kernel itself can send displays; here they become text.
            shell.display_pub.publish = lambda data, **_: print(data.get("text/plain", ""))
        gc.freeze()  # sockets and threads of the parent are not ours to finalize
        gc.enable()
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # the parent's pool of threads did not come along
        guard()
        write, flush = os.write, sys.stdout.flush

        def say(state: str, message: str) -> None:
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
