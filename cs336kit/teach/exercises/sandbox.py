"""Run a learner's function where it can do no harm, and turn whatever happens there into a sentence.

An answer runs in a process of its own, and only words come back. Everything that it does ends with that process, except in
memory that is shared on purpose. From the outside in:

1. The process is ended after `LIMIT` seconds, and when whoever has asked for the check is gone: a pipe, the lifeline, then
   closes. On Linux a watcher waits for both. It adopts what the answer's process leaves behind (as a "child subreaper"), so it
   also ends a program that has left its parents and its session. Elsewhere the process group is ended, where there are groups.
2. Files and other processes are out of reach: an audit hook stops Python on every system. On Linux, memory is limited, too, no
   file may have any length, and Landlock (Linux 5.13 or later, where it is enabled) stops C and C++.
3. What an answer is compared with is computed before it runs, and what the judge uses is restored after each call.

`call` makes one call of the answer, `confined` is the process seen from inside, and this module the same from outside.
This protects against accidents and simple tricks; somebody who reads the frames of the checker can cheat.

On Linux the process is forked, so the answer has the reader's cells, imports and tensors. Where a fork is not safe (on macOS,
and where CUDA is in use) or there is none (Windows), a new process imports torch, and the answer is sent to it with what it uses
of the notebook; the next process then starts at once, so that only the first check waits for it. An answer that computes
gradients goes that way, too, once torch has started threads for them, which a forked process lacks: a CUDA build without a GPU
starts them at the first backward pass, if fake tensors were made before it.
"""

import ast
import gc
import os
import pickle
import secrets
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cs336kit.teach.exercises import call, confined
from cs336kit.teach.exercises.confined import Begin, Say

#: Seconds after which a check gives up: endless loops are a common mistake.
LIMIT = 10
#: Seconds within which a process must be ready to check: a new one imports torch meanwhile, and the machine may be busy.
START = 180
#: Seconds that a process has to end itself, with all that it has started, before it is killed.
END = 5
#: How many characters of what an answer prints are shown.
PRINTED = 2000

#: What is done with an answer: ``work(answer, say)``.
Work = Callable[[Any, Say], None]


def run(prepare: Callable[[], Work], answer: Any, seconds: float | None = None) -> tuple[str, str]:
    """The last state and message that ``prepare()(answer, say)`` said, from a process of its own.

    `prepare` runs before the process has the answer; its time does not count. If the process ends while the state is
    "running", that becomes "not yet", or what follows it, as in "running 2/3".
    """
    seconds = LIMIT if seconds is None else seconds
    if _can_fork():
        work = prepare()
        state, message = _forked_off(lambda: lambda say: work(answer, say), seconds)
        if state != "no autograd":
            return state, message
    return _sent_off(prepare, answer, seconds)


def _can_fork() -> bool:
    torch = sys.modules.get("torch")
    return sys.platform == "linux" and hasattr(os, "fork") and not (torch and torch.cuda.is_initialized())


def _forked_off(make: Begin, seconds: float) -> tuple[str, str]:
    token = secrets.token_hex(8)  # so that nothing else on the pipe passes for a verdict
    (results, say_to), (prints, print_to), (lifeline, hold) = os.pipe(), os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork beside threads, which stay behind
        collecting = gc.isenabled()
        gc.disable()  # garbage that has threads would wait for them in the child, until it is frozen there
        try:
            child = os.fork()
            if child == 0:
                call.forked = True
                confined.watched(make, say_to, print_to, token, lifeline)
        finally:
            if collecting:
                gc.enable()
    for one in (say_to, print_to, lifeline):
        os.close(one)

    def end() -> None:
        _end_group(child)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    return _heard(token, os.fdopen(results, "rb", 0), os.fdopen(prints, "rb", 0), lambda: os.close(hold), end, seconds)


#: A process that has imported torch, or is about to, and waits for an answer.
_spare: subprocess.Popen[bytes] | None = None


def _started() -> subprocess.Popen[bytes]:
    """Start a process that waits for an answer; it ends when its input does."""
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"from {confined.__name__} import serve; serve()"], bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


def _sent_off(prepare: Callable[[], Work], answer: Any, seconds: float) -> tuple[str, str]:
    from cs336kit.measure.processes import pickled

    global _spare
    token = secrets.token_hex(8)
    place = (sys.path, os.getcwd(), sys.modules["torch"].cuda.is_initialized())
    try:
        job = pickle.dumps((token, place, pickled(prepare, ()), pickled(answer, ())))
    except (TypeError, RuntimeError) as error:
        return "not yet", f"here an answer is checked in a process of its own, but {error}"
    process, _spare = _spare if _spare and _spare.poll() is None else _started(), None
    send_to: Any = process.stdin

    def send() -> None:
        rest = memoryview(job)
        with suppress(OSError, ValueError):  # a process that has ended already says so by itself
            while rest:
                rest = rest[send_to.write(rest) :]

    def end() -> int:
        _end_group(process.pid)
        process.kill()
        return process.wait()

    threading.Thread(target=send, daemon=True).start()
    verdict = _heard(token, process.stdout, process.stderr, send_to.close, end, seconds)
    _spare = _started()
    return verdict


def _end_group(leader: int) -> None:
    if hasattr(os, "killpg"):
        with suppress(OSError):  # it has ended already
            os.killpg(leader, signal.SIGKILL)


class _Reader(threading.Thread):
    """Reads a pipe to its end: keeps the first `most` bytes, and counts all. Windows cannot wait for several pipes at once."""

    def __init__(self, pipe: Any, most: int) -> None:
        super().__init__(daemon=True)
        self.pipe, self.most, self.kept, self.length, self.begun = pipe, most, b"", 0, threading.Event()
        self.start()

    def run(self) -> None:
        with self.pipe:
            while data := self.pipe.read(1 << 16):
                self.length += len(data)
                self.kept += data[: self.most - len(self.kept)]
                self.begun.set()
        self.begun.set()


def _heard(
    token: str, results: Any, prints: Any, hang_up: Callable[[], None], end: Callable[[], int | None], seconds: float
) -> tuple[str, str]:
    """The verdict of a process: the last state and message that it said, or why it has ended too early. Its prints are shown.

    hang_up: close its lifeline. end: end it, if it does not do so by itself, and return its exit code, unless it says that.
    """
    said, printed = _Reader(results, 1 << 20), _Reader(prints, 4 * PRINTED)
    try:
        said.begun.wait(START)
        said.join(seconds)
        late = said.is_alive()
    finally:
        hang_up()
        for reader in (said, printed):
            reader.join(END)
        code = end()
    lines = said.kept.decode(errors="replace").split("\n")[:-1]
    verdicts = [ast.literal_eval(line[len(token) :]) for line in lines if line.startswith(token)]
    codes = [code, *(message for state, message in verdicts if state == "ended")]
    state, message = [("running", "the check"), *(each for each in verdicts if each[0] != "ended")][-1]
    if printed.length and state != "no autograd":  # it is tried again, and prints again
        left = printed.length - PRINTED
        more = f"\n… {left:,} more characters were printed.\n" if left > 0 else ""
        print(printed.kept.decode(errors="replace")[:PRINTED] + more, end="")
    if not state.startswith("running"):
        return state, message
    if late or codes[-1] is None:
        why = f"did not return within {LIMIT} seconds: is there a loop that never ends?"
    else:
        ended = f"by {signal.Signals(-codes[-1]).name}" if codes[-1] < 0 else f"with exit code {codes[-1]}"
        why = f"ended the process that it ran in, {ended}."
    return state.removeprefix("running").strip() or "not yet", f"{message} {why}"
