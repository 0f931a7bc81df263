"""Run a learner's function where it can do no harm, and turn whatever happens there into a sentence.

An answer runs in a process of its own, and everything that it does ends with that process, except in memory that is shared
on purpose: it cannot hang (the process is killed after `LIMIT` seconds), exit, print megabytes, change the checker or torch
for later cells, or delete, write or start anything (see :mod:`~cs336kit.teach.exercises.guarding`, also for what holds on
Linux only). Only words come back.

On Linux that process is forked, so the answer has the reader's cells, imports and tensors. Where a fork is not safe (on
macOS, and where CUDA is in use) or there is none (Windows), a new process imports torch, and the answer is sent to it with what
it uses of the notebook; the next process then starts at once, so that only the first check waits for it. An answer that
computes gradients goes that way, too, once torch has started threads for them, which a forked process lacks: a CUDA build
without a GPU starts them at the first backward pass, if fake tensors were made before it.

What an answer is compared with is computed before it runs, and what the judge uses is restored after each call. This
protects against accidents and simple tricks; somebody who reads the frames of the checker can cheat.
"""

import ast
import contextlib
import gc
import os
import pickle
import queue
import secrets
import selectors
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from cs336kit.teach.exercises.guarding import guard

#: Seconds after which a check gives up: endless loops are a common mistake.
LIMIT = 10
#: Seconds within which a new process must be ready to check: it imports torch meanwhile, and the machine may be busy.
START = 180
#: How many characters of what an answer prints are shown.
PRINTED = 2000
#: The exit code of a process that has ended itself because time was up (that of the command `timeout`).
LATE = 124

Say = Callable[[str, str], None]
#: What is done with an answer: ``work(answer, say)``.
Work = Callable[[Any, Say], None]

#: Whether this process was forked to run an answer.
_forked = False


class Failed(Exception):
    """The call returned nothing that can be judged; the text continues a sentence that begins with the call."""


class TooLong(BaseException):
    """Raised by whoever limits a call further; no Exception, so that an `except Exception` in the answer does not swallow it."""


class NoAutograd(BaseException):
    """Torch had started threads for backward passes, which a forked process does not have, so it refuses to run any there."""


def attempt(function: Callable, args: tuple, restore: Callable[[], None]) -> Any:
    """Call `function`; raise Failed with a sentence when it raises or takes different arguments."""
    try:
        return function(*args)
    except (KeyboardInterrupt, TooLong):
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


def run(prepare: Callable[[], Work], answer: Any, seconds: float | None = None) -> tuple[str, str]:
    """The last state and message that ``prepare()(answer, say)`` said, from a process of its own.

    `prepare` runs before the process has the answer; its time does not count. If the process ends while the state is
    "running", that becomes "not yet", or what follows it, as in "running 2/3".
    """
    seconds = LIMIT if seconds is None else seconds
    if _can_fork():
        work = prepare()
        state, message = _forked_off(lambda say: work(answer, say), seconds)
        if state != "no autograd":
            return state, message
    return _sent_off(prepare, answer, seconds)


def _can_fork() -> bool:
    torch = sys.modules.get("torch")
    return sys.platform == "linux" and hasattr(os, "fork") and not (torch and torch.cuda.is_initialized())


def _verdict(said: bytes, token: str, code: int, late: bool) -> tuple[str, str]:
    """The last state and message among the lines that came back; for a process that has ended too early, why it did."""
    verdicts = [ast.literal_eval(line[len(token) :]) for line in said.decode().splitlines() if line.startswith(token)]
    state, message = verdicts[-1] if verdicts else ("running", "the check")
    if not state.startswith("running"):
        return state, message
    if late or code == LATE:
        why = f"did not return within {LIMIT} seconds: is there a loop that never ends?"
    else:
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        why = f"ended the process that it ran in, {ended}."
    return state.removeprefix("running").strip() or "not yet", f"{message} {why}"


def _show(text: bytes, length: int) -> None:
    """Print what an answer has printed, up to a limit."""
    if length:
        more = f"\n… {length - PRINTED:,} more characters were printed.\n" if length > PRINTED else ""
        print(text.decode(errors="replace")[:PRINTED] + more, end="")


# --- in a fork ------------------------------------------------------------------------------------------------------------


def _forked_off(work: Callable[[Say], None], seconds: float) -> tuple[str, str]:
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
    code = os.waitstatus_to_exitcode(status)
    state, message = _verdict(said, token, code, late=code == -signal.SIGKILL)
    if state != "no autograd":  # it is tried again, and prints again
        _show(text, length)
    return state, message


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


def _child(work: Callable[[Say], None], say_to: int, print_to: int, token: str, seconds: float) -> NoReturn:
    """The forked process, which sends out nothing but lines of a state and a message."""
    global _forked
    _forked, code = True, 1
    try:
        os.setsid()
        _end_itself(seconds)
        for old, new in ((os.open(os.devnull, os.O_RDONLY), 0), (print_to, 1), (print_to, 2)):
            os.dup2(old, new)
        for inherited in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, say_to}:
            with contextlib.suppress(OSError):
                os.close(inherited)
        if shell := "IPython" in sys.modules and sys.modules["IPython"].get_ipython():
            # Only the kernel itself can send displays; here they become text.
            shell.display_pub.publish = lambda data, **_: print(data.get("text/plain", ""))
        gc.freeze()  # sockets and threads of the parent are not ours to finalize
        gc.enable()
        code = _confined(lambda: work, say_to, token)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)


def _end_itself(seconds: float) -> None:
    """End this process a second after its time is up: its parent has killed it by then, unless that was itself killed."""
    timer = threading.Timer(seconds + 1, os._exit, (LATE,))
    timer.daemon = True
    timer.start()


def _confined(made: Callable[[], Callable[[Say], None]], say_to: int, token: str) -> int:
    """In the process of an answer: guard it, run ``made()(say)``, and return 0."""
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace")
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # in a fork, the parent's pool of threads did not come along
    guard()
    write, flush = os.write, sys.stdout.flush

    def say(state: str, message: str) -> None:
        write(say_to, f"{token}{(state, message)!r}\n".encode())

    try:
        made()(say)
    except NoAutograd:
        say("no autograd", "")
    flush()
    return 0


# --- in a new process -----------------------------------------------------------------------------------------------------

#: A process that has imported torch, or is about to, and waits for an answer.
_spare: subprocess.Popen[bytes] | None = None


def _started() -> subprocess.Popen[bytes]:
    """Start a process that waits for an answer; it ends when its input does."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {__name__} import serve; serve()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


def _sent_off(prepare: Callable[[], Work], answer: Any, seconds: float) -> tuple[str, str]:
    from cs336kit.measure.processes import pickled

    global _spare
    torch, token = sys.modules["torch"], secrets.token_hex(8)
    place = (sys.path, os.getcwd(), torch.cuda.is_initialized())
    try:
        job = pickle.dumps((token, seconds, place, pickled(prepare, ()), pickled(answer, ())))
    except (TypeError, RuntimeError) as error:
        return "not yet", f"here an answer is checked in a process of its own, but {error}"
    process = _spare if _spare and _spare.poll() is None else _started()
    try:
        said, text, length, late = _hear(process, job, seconds)
    finally:
        _spare = None
        process.kill()
        process.wait()
    _spare = _started()
    _show(text, length)
    return _verdict(said, token, process.returncode, late)


def _hear(process: subprocess.Popen[bytes], job: bytes, seconds: float) -> tuple[bytes, bytes, int, bool]:
    """Send the job; what comes back as results until they end or time is up, what is printed (its start, and its length),
    and whether time was up. Threads read, because Windows cannot wait for several pipes.
    """
    heard: queue.Queue[tuple[Any, bytes]] = queue.Queue()

    def read(pipe: Any) -> None:
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                heard.put((pipe, data))
        heard.put((pipe, b""))

    def send(pipe: Any) -> None:
        with contextlib.suppress(OSError), pipe:  # a process that has ended already says so by itself
            pipe.write(job)

    results, prints = process.stdout, process.stderr
    for target, pipe in ((read, results), (read, prints), (send, process.stdin)):
        threading.Thread(target=target, args=(pipe,), daemon=True).start()
    received, printed, deadline = {results: b"", prints: b""}, 0, time.monotonic() + START
    ended: set[Any] = set()
    while len(ended) < 2:
        try:
            pipe, data = heard.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return received[results], received[prints], printed, results not in ended
        if not data:
            ended.add(pipe)
            # After the results have ended, only the rest of what was printed can come.
            deadline = time.monotonic() + 1 if pipe is results else deadline
        elif pipe is results and not received[results]:
            deadline = time.monotonic() + seconds  # it is ready: only now time runs
        printed += len(data) if pipe is prints else 0
        if pipe is results or len(received[prints]) < 4 * PRINTED:
            received[pipe] += data
    return received[results], received[prints], printed, False


def serve() -> None:
    """What the new process does: import torch, wait for one answer, judge it, and end."""
    say_to = os.dup(1)
    os.dup2(2, 1)
    import torch

    job = sys.stdin.buffer.read()
    if not job:  # whoever has started it is gone
        return
    token, seconds, (sys.path[:], folder, cuda), prepare, answer = pickle.loads(job)
    os.chdir(folder)
    if cuda:
        torch.zeros(1, device="cuda")  # needs more address space than the guard leaves
    work, _ = pickle.loads(prepare)[0](), os.write(say_to, f"{token}{('running', 'the check')!r}\n".encode())
    _end_itself(seconds)

    def made() -> Callable[[Say], None]:
        function, _ = pickle.loads(answer)
        return lambda say: work(function, say)

    code = 1
    try:
        code = _confined(made, say_to, token)
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)
