"""The machine that checks answers, on a small exercise of its own: what it says, and what an answer cannot do to it."""

import ctypes
import gc
import itertools
import math
import operator
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import checked_here
import nbformat
import numpy as np
import pytest
import torch
from few import one_in

from cs336kit import journal as _journal
from cs336kit.teach import exercises
from cs336kit.teach.exercises import call, checking, confined, core, judging, sandbox

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]


def area(width, height):
    return width * height


EXERCISE = exercises.Exercise(
    "99.1",
    area,
    cases={"a square": (2, 2), "a page": (3, 4), "a large one": (5, 6)},
    mistakes={
        "width + height": "a sum, not a product.",
        lambda width, height: 2 * (width + height): "that is the perimeter.",
        "right_if(height=width)": "you squared the width.",
        "right + 1 / (width - 2)": "you added something.",
    },
    hints=("nudge", "method", "almost"),
    checked="three rectangles.",
)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Exercises of these tests, beside those of the course."""
    monkeypatch.setattr(core, "_known", {"99.1": EXERCISE})
    monkeypatch.setattr(core, "_asked", {})
    return core._known


@pytest.fixture(params=["apart", "here"])
def way(request, monkeypatch):
    """In a process of its own, and in this one."""
    if request.param == "here":
        checked_here.use(monkeypatch)
    return request.param


@pytest.fixture
def sent(monkeypatch):
    """As on macOS and Windows, and where CUDA is in use: the answer is sent to a new process."""
    monkeypatch.setattr(sandbox, "_can_fork", lambda: False)


def message(answer):
    result = exercises.check("99.1", answer)
    assert result.state == "not yet" and not result
    return result.message


def test_the_reference_passes_and_says_what_was_tried(way):
    result = exercises.check("99.1", area)
    assert result and result.passed and repr(result) == "99.1 passed: three rectangles."


@pytest.mark.parametrize("stub", [..., lambda width, height: ...])
def test_a_stub_is_waiting(stub, way):
    result = exercises.check("99.1", stub)
    assert not result and result.state == "waiting"
    assert result.message.endswith("teach.exercises.hint('99.1') helps, three times.")


def test_a_usual_mistake_is_named_with_the_counterexample(way):
    # 2 + 2 equals 2 * 2, so the first case cannot tell; the second can.
    assert message(lambda width, height: width + height) == "For a page you returned 7: a sum, not a product."
    assert message(lambda width, height: 2 * (width + height)) == "For a square you returned 8: that is the perimeter."
    assert message(lambda width, height: width * width) == "For a page you returned 9: you squared the width."


def test_of_mistakes_that_agree_here_the_one_that_agrees_elsewhere_is_named(known, way):
    mistakes = {"0": "always zero.", "width - 1": "one less.", "width * 0 + (width > 1)": "one if above one."}
    known["99.1"] = exercises.Exercise("99.1", area, mistakes, ("a", "b"), "three.", [(1, 1), (3, 1), (2, 2)])
    assert message(lambda width, height: width - 1) == "For your function(1, 1) you returned 0: one less."


def test_a_mistake_that_agrees_by_accident_is_not_named(way):
    # At 2 × 2 this is the perimeter, and nowhere else.
    assert (
        message(lambda width, height: 8 if width == 2 else 100 * width)
        == "for a square you returned 8, but 4 is right."
    )


@pytest.mark.parametrize(
    ("widths", "said"), [((1, 3), "you returned 3: a sum."), ((1,), "you returned 3, but 2 is right.")]
)
def test_half_of_the_cases_are_enough_to_name_a_mistake(known, way, widths, said):
    cases = [(1, 2), (3, 1), (2, 5), (4, 4)]
    known["99.1"] = exercises.Exercise("99.1", area, {"width + height": "a sum."}, ("a", "b"), "four.", cases)
    assert message(lambda width, height: width + height if width in widths else 100).endswith(said)


def test_a_mistake_that_a_case_before_refutes_is_not_named(way):
    # A sum would have been wrong for the page, too.
    assert (
        message(lambda width, height: 11 if width == 5 else width * height)
        == "for a large one you returned 11, but 30 is right."
    )


def test_an_unknown_mistake_shows_the_counterexample_and_the_right_value(way):
    def area(width, height):
        return width * height + (width == 5)

    assert message(area) == "for a large one you returned 31, but 30 is right."


def raises(width, height):
    return width / 0


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no")

    __eq__ = __repr__
    __hash__ = None


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raises_without_text(width, height):
    raise NoText


class Yes(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__
    __int__ = __index__ = lambda self: 4


def equal_to_all(width, height):
    Fraction.__eq__ = lambda self, other: True
    return Fraction(1, 3)


class YesList(list):
    def __iter__(self):
        return iter([4])

    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (7, "pass the function itself, not 7"),
        (None, "pass the function itself, not None"),
        (lambda: 1, "raised TypeError"),
        (raises, "a square raised ZeroDivisionError: division by zero (line 2 of your function)"),
        (raises_without_text, "raised NoText: its message cannot be shown (line 2 of your function)"),
        (lambda width, height: None, "returned nothing (is there a return?)"),
        (lambda width, height: "four", "you returned 'four', a str; an int is expected"),
        (lambda width, height: True, "a bool; an int is expected"),
        (lambda width, height: itertools.count(), "you returned count(0), a count; an int is expected"),
        (lambda width, height: torch.ones(2), "a Tensor; an int is expected"),
        (lambda width, height: NoRepr(), "<NoRepr instance>, a NoRepr; an int is expected"),
        (lambda width, height: exit(3), "raised SystemExit: 3"),
        (lambda width, height: float("nan"), "you returned nan, but 4 is right"),
        (lambda width, height: Yes(5), "you returned 5, but 4 is right"),
        (lambda width, height: YesList([5]), "a list; an int is expected"),
        (equal_to_all, "you returned Fraction(1, 3), but 4 is right"),
        (lambda width, height: (yield), "a generator; an int is expected"),
    ],
)
def test_answers_of_every_kind_get_a_sentence(answer, part, way):
    assert part in message(answer) and "cs336kit" not in message(answer)


# --- what an answer may do in its own process ------------------------------------------------------------------------


def patches_the_judge(width, height):
    judging.difference = checking.difference = lambda *args: None
    judging._difference = judging._close = checking.shorten = core.shorten = lambda *args: None
    checking.judge = call.attempt = lambda *args: 4
    return 0


def patches_the_libraries(width, height):
    import builtins
    import copy
    import math
    import operator

    math.isclose = operator.eq = lambda *args, **kwargs: True
    copy.deepcopy = lambda value: value
    torch.equal = torch.allclose = torch.isclose = lambda *args, **kwargs: True
    torch.Tensor.__ne__ = torch.Tensor.shape = None
    builtins.isinstance = builtins.all = builtins.type = lambda *args: True
    return 0


def hides_builtins_in_the_judge(width, height):
    judging.type = judging.len = judging.zip = lambda *args: int
    judging.all = lambda values: True
    return 0


def changes_the_exercise(width, height):
    EXERCISE.mistakes.clear()
    object.__setattr__(EXERCISE, "tolerance", float("inf"))
    object.__setattr__(EXERCISE, "reference", lambda *args: 0)
    exercises.Exercise.right = lambda *args: 0
    return 0.5


def changes_what_is_observed(width, height):
    exercises.Exercise.observed = lambda self, result, args: self.reference(*args)
    return 0


def changes_the_type_of_whole_numbers(width, height):
    """In the dict behind ``int.__dict__``, which cannot be set."""
    gc.get_referents(int.__dict__)[0]["__index__"] = lambda self: 4
    return Yes(5)


def changes_fractions(width, height):
    Fraction.__eq__ = Fraction.__float__ = lambda self, *other: True
    Fraction.__new__ = lambda *args: 4
    return Fraction.from_float(0.5)


def guesses_the_pipe(width, height):
    for pipe in range(3, 64):
        try:
            os.write(pipe, b'["passed", "three rectangles."]\n')
        except OSError:
            continue
    os._exit(0)


@pytest.mark.parametrize(
    "answer",
    [
        patches_the_judge, patches_the_libraries, hides_builtins_in_the_judge, changes_the_exercise, guesses_the_pipe,
        changes_what_is_observed, changes_the_type_of_whole_numbers, changes_fractions,
    ],
)  # fmt: skip
def test_an_answer_cannot_make_itself_pass(answer, known):
    if answer is changes_what_is_observed:
        known["99.1"] = replace(EXERCISE, observe=lambda result, args: result)
    before = [dict(vars(module)) for module in (call, checking, confined, core, judging, sandbox, torch)]
    assert message(answer)
    assert [dict(vars(module)) for module in (call, checking, confined, core, judging, sandbox, torch)] == before
    assert EXERCISE.mistakes and exercises.check("99.1", area) and not exercises.check("99.1", max)


def test_in_this_process_the_checker_is_put_back(monkeypatch):
    checked_here.use(monkeypatch)
    equal, kind = torch.equal, isinstance
    assert (
        message(patches_the_libraries) == message(patches_the_judge) == "for a square you returned 0, but 4 is right."
    )
    assert torch.equal is equal and isinstance is kind


def test_an_answer_cannot_delete_write_or_start_anything(tmp_path):
    (tmp_path / "kept").write_text("kept")
    before = (tmp_path / "kept").stat()
    actions = {
        "remove": lambda: os.remove(tmp_path / "kept"),
        "open": lambda: (tmp_path / "kept").write_text("lost"),
        "open a descriptor": lambda: os.open(tmp_path / "new", os.O_CREAT | os.O_WRONLY),
        "rename": lambda: os.replace(tmp_path / "kept", tmp_path / "moved"),
        "rmdir": lambda: os.rmdir(tmp_path),
        "mkdir": lambda: os.mkdir(tmp_path / "new"),
        "link": lambda: os.link(tmp_path / "kept", tmp_path / "new"),
        "symlink": lambda: os.symlink(tmp_path / "kept", tmp_path / "new"),
        "cut": lambda: os.truncate(tmp_path / "kept", 0),
        "permissions": lambda: os.chmod(tmp_path / "kept", 0o777),
        "time": lambda: os.utime(tmp_path / "kept", (0, 0)),
        "system": lambda: os.system(f"rm {tmp_path / 'kept'}"),
        "program": lambda: subprocess.Popen([sys.executable, "-c", ""]),
        "connect": lambda: socket.create_connection(("127.0.0.1", 9)),
        "kill": lambda: os.kill(os.getppid(), signal.SIGTERM),
        "another language": lambda: ctypes.CDLL(None).fork(),
        "save": lambda: torch.save(torch.ones(2), tmp_path / "saved"),
    }
    for name, action in actions.items():
        text = message(lambda width, height, action=action: action())
        assert "raised" in text and "may not do that here" in text, (name, text)
    after = (tmp_path / "kept").stat()
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)
    assert os.listdir(tmp_path) == ["kept"] and (tmp_path / "kept").read_text() == "kept"


def landlock():
    """The version of Landlock that this kernel has, or -1."""
    return ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) if sys.platform == "linux" else -1


@pytest.mark.skipif(landlock() < 3, reason="this Linux has no Landlock that keeps files from being cut")
def test_an_answer_cannot_change_files_by_what_python_does_not_see(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")

    def traced():
        with torch.profiler.profile() as seen:
            torch.ones(1) + 1
        seen.export_chrome_trace(str(kept))

    libc = ctypes.CDLL(None)
    unlink, truncate, execv = libc.unlink, libc.truncate, libc.execv  # an answer itself could not look them up
    actions = {
        "trace": traced,
        "script": lambda: torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), str(kept)),
        "map": lambda: torch.from_file(str(kept), shared=True, size=4, dtype=torch.uint8).zero_(),
        "database": lambda: sqlite3.connect(tmp_path / "new").execute("create table t(c)"),
        "pipe": lambda: os.mkfifo(tmp_path / "new"),
        "remove": lambda: unlink(os.fsencode(kept)),
        "cut": lambda: truncate(os.fsencode(kept), 0),
        "program": lambda: execv(b"/bin/true", (ctypes.c_char_p * 2)(b"true", None)),
        "attribute": lambda: os.setxattr(kept, "user.new", b"1"),
    }
    for name, action in actions.items():
        text = message(lambda width, height, action=action: action())
        assert os.listdir(tmp_path) == ["kept"] and kept.read_text() == "kept", name
        assert "user.new" not in os.listxattr(kept), name
        assert name != "program" or "ended" not in text, text
    assert exercises.check("99.1", lambda width, height: Path(os.devnull).write_text("x") and width * height)


@pytest.mark.skipif(sys.platform != "linux", reason="an answer is forked on Linux only")
def test_garbage_of_the_kernel_is_not_finalized_beside_an_answer(monkeypatch):
    """What has threads waits for them when it goes, and they did not come along."""
    kernel, fork = os.getpid(), os.fork

    class Waits:
        def __init__(self):
            self.circle = self

        def __del__(self):
            while os.getpid() != kernel:
                time.sleep(1)

    def forked():
        Waits()
        child = fork()
        if child == 0:  # much is made at the start of a process
            gc.set_threshold(1)
            _ = [[] for _ in range(1000)]
        return child

    monkeypatch.setattr(os, "fork", forked)
    assert exercises.check("99.1", lambda width, height: width * height * gc.isenabled()) and gc.isenabled()


def ended(*processes):
    """Whether these processes end within ten seconds; those that do not are ended here."""

    def runs(process):
        # Where nobody waits for orphans, as in some containers, an entry of what has ended stays.
        with suppress(FileNotFoundError):
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    end = time.monotonic() + 10
    while (left := [*filter(runs, processes)]) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return bool(processes) and not left


@pytest.mark.skipif(sys.platform != "linux", reason="an answer has a watcher on Linux only")
@pytest.mark.parametrize("killed", one_in(2, ["getpid", "getppid"]))
def test_an_endless_answer_ends_although_its_kernel_or_its_watcher_is_gone(killed):
    code = f"""
        import os
        from cs336kit.teach.exercises import sandbox

        def killed(token, results, prints, *rest):  # as soon as the answer runs
            answer, watcher = map(int, prints.readline().split())
            print(answer, watcher, flush=True)
            os.kill(dict(getpid=os.getpid(), getppid=watcher)[{killed!r}], 9)
            return heard(token, results, prints, *rest)

        def work(answer, say):
            print(os.getpid(), os.getppid(), flush=True)
            while True:
                pass

        heard, sandbox._heard = sandbox._heard, killed
        print(sandbox.run(lambda: work, None, seconds=30))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT)
    first, *rest = done.stdout.splitlines()
    assert ended(*map(int, first.split()))
    assert done.returncode == -9 if killed == "getpid" else "the check did not return" in rest[0]


#: What an answer could not look up, but a cell before it could.
LIBC = ctypes.PyDLL(None)
FORK, SETSID, SYSTEM = (getattr(LIBC, name, None) for name in ("fork", "setsid", "system"))


def forks(width, height):
    """A child with a session of its own."""
    if child := FORK():
        print(child, flush=True)
        return width * height
    SETSID()
    time.sleep(1000)


def forks_twice(width, height):
    """A daemon, as it is done by the book: its parent is gone, and it holds no file."""
    if FORK():
        time.sleep(0.2)
        return width * height
    SETSID()
    if FORK():
        os._exit(0)
    print(os.getpid(), flush=True)
    os.closerange(0, 100)
    time.sleep(1000)


def starts_a_program(width, height):
    SYSTEM(b"nohup sleep 1000 > /dev/null 2>&1 & echo $!")
    return width * height


@pytest.mark.skipif(sys.platform != "linux", reason="an answer has a watcher on Linux only")
@pytest.mark.parametrize("answer", [forks, forks_twice, starts_a_program])
@pytest.mark.parametrize("returns", [True, False])
def test_what_an_answer_leaves_behind_is_ended(answer, returns, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "LIMIT", 10 if returns else 2)
    # As before Linux 5.13, where the program is started at all.
    monkeypatch.setattr(confined, "_lock_files", lambda: None)
    begin = time.monotonic()
    result = exercises.check("99.1", lambda width, height: answer(width, height) if returns else loops(answer(2, 2), 0))
    assert result.passed == returns and (returns or "did not return within 2 seconds" in result.message)
    assert time.monotonic() - begin < 8, "what is left behind holds nothing up"
    children = [int(line) for line in capsys.readouterr().out.splitlines()]
    assert len(children) == (3 if returns else 1) and ended(*children)


def test_a_thread_that_goes_on_is_refused_and_ends(capsys):
    def again_and_again():
        while True:
            judging._close = judging.math.isclose = lambda *args, **kwargs: True

    def answer(width, height):
        threading.Thread(target=again_and_again, daemon=True).start()
        print(os.getpid(), flush=True)
        return 0

    def waits(width, height):
        thread = threading.Thread(target=time.sleep, args=(0.01,))
        thread.start()
        thread.join()
        return width * height

    assert message(answer) == "a square left a thread running: end it before you return."
    assert ended(int(capsys.readouterr().out)) and exercises.check("99.1", waits)


def test_a_program_is_not_started_by_python():
    for start in (lambda: subprocess.Popen(["nohup", "sleep", "1000"], start_new_session=True), lambda: os.fork()):
        assert "may not do that here" in message(lambda width, height, start=start: start())


def test_what_happens_in_an_answer_ends_with_its_process():
    def answer(width, height):
        os.environ["CHANGED"] = "1"
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        EXERCISE.cases["a square"] = (9, 9)
        seen.append(width)
        return width * height

    seen = []
    here = os.getcwd()
    assert exercises.check("99.1", answer)
    assert seen == [] and "CHANGED" not in os.environ and os.getcwd() == here
    assert torch.get_default_dtype() == torch.float32 and EXERCISE.cases["a square"] == (2, 2)


def test_an_answer_uses_the_cells_around_it_and_lazy_imports():
    offset = torch.ones(1)

    def helper(value):
        return value * int(offset)

    def answer(width, height):
        import pyclbr  # nothing else imports it

        return helper(width) * height * int(bool(pyclbr.readmodule))

    assert exercises.check("99.1", answer) and "pyclbr" not in sys.modules


def loops(width, height):
    while True:
        try:
            while True:
                pass
        except:  # noqa: E722
            pass


def raises_without_end(width, height):
    class Endless(Exception):
        def __str__(self):
            while True:
                pass

    raise Endless


class EndlessRepr:
    def __repr__(self):
        while True:
            pass

    __getattr__ = __repr__


def test_what_cannot_even_be_shown_does_not_hang(monkeypatch):
    monkeypatch.setattr(sandbox, "LIMIT", 0.5)
    assert "the check did not return" in message(EndlessRepr())


@pytest.mark.parametrize(
    "answer", [loops, raises_without_end, lambda width, height: time.sleep(1e6), lambda width, height: EndlessRepr()]
)
def test_nothing_hangs(answer, monkeypatch):
    for limit in (0.5, 5, 50):  # a busy machine takes longer to come to the answer at all
        monkeypatch.setattr(sandbox, "LIMIT", limit)
        if "the check did not return" not in (said := message(answer)):
            break
    assert f"a square did not return within {limit} seconds" in said


def test_leaving_is_noticed():
    assert "a square ended the process that it ran in, with exit code 0." in message(lambda *args: os._exit(0))
    assert "by SIGABRT" in message(lambda *args: os.abort())
    assert "by SIGSEGV" in message(lambda *args: signal.raise_signal(signal.SIGSEGV))


def test_memory_is_limited(monkeypatch):
    monkeypatch.setattr(confined, "MEMORY", 1 << 28)
    assert "raised MemoryError" in message(lambda *args: bytearray(1 << 32))


def test_prints_are_shown_and_cut(capsys):
    def answer(width, height):
        print("side", width, flush=True)
        return width * height

    def floods(width, height):
        for _ in range(100):
            print("x" * 99_999)
        return width * height

    assert exercises.check("99.1", answer)
    assert capsys.readouterr().out == "side 2\nside 3\nside 5\n"
    assert exercises.check("99.1", floods)
    shown = capsys.readouterr().out
    assert len(shown) < 2_100 and "29,998,000 more characters were printed." in shown


def test_no_process_and_no_open_file_stays():
    before = len(os.listdir("/proc/self/fd"))
    for answer in (area, raises, lambda *args: os._exit(1)):
        exercises.check("99.1", answer)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a check is interrupted when it is over")
def test_an_interrupt_ends_the_answer_and_the_check():
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    # A shell starts what runs in the background with interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            exercises.check("99.1", loops)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_with_cuda_in_use_nothing_is_forked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(sandbox, "_sent_off", lambda prepare, answer, seconds: ("passed", f"in {seconds} s"))
    assert repr(exercises.check("99.1", area)) == f"99.1 passed: in {sandbox.LIMIT} s"


def test_an_answer_that_is_sent_brings_its_notebook_along_and_leaves_nothing(sent, capsys, tmp_path):
    offset, seen = torch.zeros(1), []

    def helper(value):
        return value + int(offset)

    def answer(width, height):
        print("side", width)
        seen.append(width)
        torch.set_default_dtype(torch.float64)
        return helper(width) * height

    assert exercises.check("99.1", answer) and seen == [] and torch.get_default_dtype() == torch.float32
    assert capsys.readouterr().out == "side 2\nside 3\nside 5\n"


@pytest.mark.proof
def test_what_happens_in_an_answer_that_is_sent_is_a_sentence(sent, tmp_path):
    """Each of these answers has a process of its own, which imports torch."""
    assert "line 2 of your function" in message(raises)
    assert "may not do that here" in message(lambda width, height: (tmp_path / "new").write_text("x"))
    assert "ended the process that it ran in" in message(lambda width, height: os.abort()) and not os.listdir(tmp_path)
    assert "pass the function itself, not 7" in message(7)


def test_an_answer_that_is_sent_and_does_not_return_is_ended(sent, monkeypatch):
    monkeypatch.setattr(sandbox, "LIMIT", 0.5)
    assert "a square did not return within 0.5 seconds" in message(loops)


def test_what_cannot_be_sent_is_a_sentence(sent):
    lock = threading.Lock()
    said = message(lambda width, height: width * height * bool(lock))
    assert (
        said.startswith("here an answer is checked in a process of its own, but <lambda> cannot be sent")
        and "Open files" in said
    )


@pytest.mark.proof
def test_the_process_for_the_next_answer_is_there_and_ends_with_this_one():
    code = """
        from cs336kit.teach import exercises
        from cs336kit.teach.exercises import sandbox
        sandbox._can_fork = lambda: False
        assert "not yet" in repr(exercises.check("07.1", lambda *args: 3))
        print(sandbox._spare.pid)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    psutil = pytest.importorskip("psutil")
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(60)


#: Backward passes inside of one another, so many that torch starts a thread for the innermost.
THREADS = """
import torch
class Nested(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x, depth: (setattr(ctx, "depth", depth), x.clone())[1])
    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            if ctx.depth:
                Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).backward()
        return gradient, None
Nested.apply(torch.ones(1, requires_grad=True), 100).backward()
"""


RIGHT = """
from cs336kit.teach import exercises
def dropout(x, noise, p):
    print("once")
    return (x / (1 - p)).masked_fill(noise <= p, 0)
print(exercises.check("14.4", dropout))
"""
WRONG = """
from cs336kit.teach import exercises
print(exercises.check("14.4", lambda x, noise, p: x * (noise > p)))
def refused(x, noise, p):
    open("left", "w")
    raise RuntimeError("of another kind")
print(exercises.check("14.4", refused))
"""


def said_behind_threads(answers, tmp_path):
    """What these answers get in a process in which torch has started its threads for backward passes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CS336KIT_GUESSES": str(tmp_path / "guesses.json")}
    done = subprocess.run(
        [sys.executable, "-c", THREADS + answers],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_gradients_are_asked_for_in_a_new_process_where_a_forked_one_has_none(tmp_path):
    """Torch refuses them in a process that was forked after its threads for backward passes had been started."""
    *printed, right = said_behind_threads(RIGHT, tmp_path)
    assert printed == ["once"] * 4 and right.startswith("14.4 passed: ")


@pytest.mark.proof
def test_a_new_process_for_gradients_names_mistakes_and_guards_files(tmp_path):
    wrong, guarded = said_behind_threads(WRONG, tmp_path)
    assert "divide what survives" in wrong
    assert "PermissionError" in guarded and not (tmp_path / "left").exists()


@pytest.mark.proof
def test_after_threads_of_torch_a_kernel_still_checks(tmp_path):
    """In a real kernel, whose threads and OpenMP pool the forked process does not have."""
    from nbclient import NotebookClient
    from traitlets.config import Config

    from cs336course import kernel

    source = """
        import torch
        from cs336kit.teach import exercises
        from cs336kit.teach.exercises import core
        torch.set_num_threads(4)
        x = torch.randn(600, 600, requires_grad=True)
        (x @ x).sum().backward()
        cases = [(2, 3), (3, 4), (5, 6)]
        product = lambda width, height: width * height
        core._known["99.1"] = exercises.Exercise("99.1", product, {"width": "one side."}, ("", ""), "three.", cases)
        def area(width, height):
            y = torch.randn(600, 600, requires_grad=True)
            (y @ x @ y.softmax(0)).sum().backward()
            print("trained", len(torch.linalg.svdvals(y.detach()[:50])))
            return width * height
        from IPython.display import display
        def shows(*args):
            display("shown")
            return 1
        assert "right" in exercises.check("99.1", shows).message
        print(exercises.check("99.1", area), exercises.check("99.1", area).passed)
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(textwrap.dedent(source).strip())])
    settings = {"timeout": 120, "kernel_name": "python3", "config": Config(KernelManager=kernel.address())}
    NotebookClient(notebook, **settings).execute(env=os.environ | {"OMP_NUM_THREADS": "4"})
    text = "".join(output["text"] for output in notebook.cells[0].outputs)
    assert text.startswith("'shown'\n" + "trained 50\n" * 6 + "99.1 passed") and text.endswith("True\n")


# --- what is compared ------------------------------------------------------------------------------------------------


def test_arguments_are_copied_for_every_call(known, way):
    def first(row):
        return row.pop(0)

    cases = [([1, 2],)] * 2
    known["99.2"] = exercises.Exercise("99.2", lambda row: row[0], {"row.pop()": "."}, ("", ""), "a list", cases)
    assert exercises.check("99.2", first)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (torch.ones(3, 2), "a tensor of shape (3, 2), but (2, 3) is right"),
        (torch.ones(2, 3, dtype=torch.int64), "a tensor of torch.int64, but torch.float32 is right"),
        (torch.zeros(2, 3), "at [0, 0]: you have 0.0, but 1.0 is right"),
        ([1], "a Tensor is expected"),
        (torch.ones(2, 3).as_subclass(type("Equal", (torch.Tensor,), {"__ne__": None})), "a Tensor is expected"),
    ],
)
def test_tensors_differ_by_shape_dtype_or_element(given, part):
    assert part in judging.difference(given, torch.ones(2, 3), 1e-9)


@pytest.mark.parametrize(
    ("given", "expected", "text"),
    [
        (
            ([torch.ones(7), torch.zeros(7)], 5),
            ([torch.ones(7), torch.ones(7)], 5),
            "only item 1 of 2 is not right: only item 2 of 2 is not right: the first different element is at [0]: you have 0.0, "
            "but 1.0 is right",
        ),
        ([*range(13), 0, 0], [*range(15)], "item 14 of 15 is not right: you have 0, but 13 is right"),
        (([1], 2), ([2], 2), "you returned ([1], 2), but ([2], 2) is right"),
        ({"sum": 3, "calls": 7}, {"sum": 3, "calls": 5}, "only 'calls' is not right: you have 7, but 5 is right"),
        ({"sum": None, "calls": 7}, {"sum": 3, "calls": 5}, "'sum' is not right: you have None, but 3 is right"),
        ({"calls": 7}, {"calls": 5}, "'calls' is not right: you have 7, but 5 is right"),
        (1, None, "you returned 1, but None is right"),
    ],
)
def test_the_first_part_that_differs_is_named_where_it_would_not_be_seen(given, expected, text):
    assert judging.difference(given, expected, 1e-9) == text
    assert judging.difference(expected, expected, 1e-9) is None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_tensors_may_differ_by_a_share_of_their_largest_element(scale):
    right = torch.tensor([2.0, 0.0], dtype=torch.float64) * scale
    near, far = right + 2e-4 * scale, right + 2e-2 * scale
    assert judging.difference(near, right, 1e-3) is None
    assert "the first different element is at [0]" in judging.difference(far, right, 1e-3)
    assert judging.difference(torch.zeros_like(right), right, 1e-3)


def test_a_fraction_above_one_counts_as_the_next_whole_number_but_for_its_rounding():
    given = [2.5, 3 * (1 + 2**-50), 3.0, 4, torch.tensor(7.25), 1.0, 0.3, math.inf, "three"]
    assert [judging.whole(value) for value in given] == [3, 3, 3, 4, 8, 1.0, 0.3, math.inf, "three"]


def test_only_nan_is_nan_and_whole_numbers_stay_whole():
    assert judging.difference(math.nan, math.nan, 1e-9) is None
    assert judging.difference(1.0, math.nan, 1e-9) and judging.difference(math.nan, 1.0, 1e-9)
    assert judging.difference(2**53 + 1, 2.0**53, 0) and judging.difference(2**53, 2.0**53, 0) is None


def test_where_equality_is_asked_for_a_float_is_no_int():
    assert judging.difference(4.0, 4, 1e-9) is None and judging.difference(4, 4.0, 0) is None
    assert judging.difference(4.0, 4, 0) == "you returned 4.0, a float; an int is expected"


def test_nothing_is_no_forgotten_return_where_it_is_right_in_some_case(known):
    known["99.2"] = exercises.Exercise("99.2", lambda x: x or None, {}, ("", ""), "two.", {"one": (1,), "none": (0,)})
    assert exercises.check("99.2", lambda x: None).message == "for one you returned None, but 1 is right."


def test_names_that_the_task_rules_out(known):
    known["99.3"] = exercises.Exercise("99.3", area, {}, ("", ""), "one", [(2, 3)], avoid=("prod",))

    def answer(width, height):
        return next(math.prod(pair) for pair in [(width, height)])

    assert exercises.check("99.3", answer).message == "the task asks for an answer of your own, without prod."


NOTEBOOK = """
import math
import math as m
from functools import partial
from math import prod as times

def sides(width, height):
    return [width, height]

def product(width, height):
    return math.prod(sides(width, height)) if width else helped(width, height)

def helped(width, height):
    return product(width, height)

def alias(width, height):
    return times([width, height])

def module(width, height):
    return m.gcd(width, height)

def real(width, height):
    return math.prod([width, height])

def attribute(width, height):
    return width.real * math.fabs(len(sides(height, height)) * height / 2)

ready = partial(helped)
"""


def test_names_that_the_task_rules_out_are_seen_in_what_the_answer_calls(known):
    known["99.3"] = exercises.Exercise("99.3", area, {}, ("", ""), "one", [(2, 3)], avoid=("prod", "math"))
    cells: dict[str, Any] = {}
    exec(NOTEBOOK, cells)
    own = "the task asks for an answer of your own, "
    assert exercises.check("99.3", cells["helped"]).message == own + "without math and prod."
    assert exercises.check("99.3", cells["alias"]).message == own + "without prod."
    assert exercises.check("99.3", cells["module"]).message == own + "without math."
    for ready in (math.prod, cells["ready"], operator.mul, int.__mul__):
        assert exercises.check("99.3", ready).message == own + "as a function that you write with def."
    # An attribute is not the function of that name.
    known["99.3"] = exercises.Exercise("99.3", area, {}, ("", ""), "one", [(2, 3)], avoid=("prod",))
    assert exercises.check("99.3", cells["attribute"])


def test_an_argument_may_not_be_named_like_what_mistakes_use(known):
    parts = {"cases": [], "mistakes": {"right + 1": "."}, "hints": (), "checked": ""}
    with pytest.raises(ValueError, match="98.1: in a mistake, right has another meaning"):
        exercises.exercise("98.1", **parts)(lambda left, right: left)


def test_an_id_is_given_once(known):
    with pytest.raises(ValueError, match="there is an exercise '99.1' already, with the answer area"):
        exercises.exercise("99.1", cases=[], mistakes={}, hints=(), checked="")(raises)
    exercises.exercise("99.1", cases=[], mistakes={}, hints=(), checked="reloaded")(area)
    assert exercises.load("99.1").checked == "reloaded"


DECISION = exercises.Exercise(
    "99.2",
    lambda: ("B", 0.4),
    mistakes={
        "('A', ...)": "A's gradient still travels through all layers.",
        "({'d', 'e-f'}, ...)": "neither is a plan.",
        "('B', 1 - right[1])": "that is what stays, not what is saved.",
    },
    hints=("nudge", "method"),
    checked="the plan, and its share within a tenth.",
    tolerance=0.1,
)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (("B", 0.42), "passed", "the plan, and its share within a tenth."),
        (["B", 0.4], "passed", "the plan"),
        (("b ", 0.4), "passed", "the plan"),
        (("D", 0.4), "not yet", "You answered ('D', 0.4): neither is a plan."),
        (("e f", 0.4), "not yet", "You answered ('e f', 0.4): neither is a plan."),
        (("a", 0.4), "not yet", "You answered ('a', 0.4): A's gradient still travels"),
        ((..., ...), "waiting", "helps, twice."),
        (("B", ...), "waiting", "helps, twice."),
        (..., "waiting", "helps, twice."),
        (("A", 0.9), "not yet", "You answered ('A', 0.9): A's gradient still travels"),
        (("B", 0.6), "not yet", "that is what stays"),
        (("B", 0.2), "not yet", "part 2 of your answer, 0.2, is too low."),
        (
            ("C", 0.4),
            "not yet",
            "part 1 of your answer, 'C', is not the right choice, or not one of the words that the task gives.",
        ),
        (
            ("C", torch.tensor(0.9)),
            "not yet",
            "part 1 of your answer, 'C', is not the right choice, or not one of the words that the task gives.",
        ),
        (("B", torch.tensor(0.9)), "not yet", "part 2 of your answer, tensor(0.9000), is too high."),
        (("B", np.float32(0.2)), "not yet", "is too low."),
        (("B", float("nan")), "not yet", "part 2 of your answer, nan, is not a number."),
        (("B", "much"), "not yet", "part 2 of your answer, 'much', is not a number."),
        (("A", 1, 2), "not yet", "the answer is one tuple of 2 values; you gave ('A', 1, 2)."),
        ("B", "not yet", "the answer is one tuple of 2 values; you gave 'B'."),
        (None, "not yet", "you gave None."),
        (("B", ("B", 0.4)), "not yet", "part 2 of your answer, ('B', 0.4), is not a number."),
        ((("B", 0.4), 0.4), "not yet", "part 1 of your answer, ('B', 0.4), is not a word."),
        (lambda: ("B", 0.4), "passed", "the plan"),
    ],
)
def test_a_decision_is_a_value(answer, state, words, known):
    known["99.2"] = DECISION
    result = exercises.check("99.2", answer)
    assert (result.state, words in result.message) == (state, True), result


def test_the_courses_answer_is_not_the_readers(known):
    known["99.2"] = DECISION
    for id, answer in (("99.1", area), ("99.2", ("B", 0.4))):
        result = exercises.check_solution(id, answer)
        assert repr(result).startswith(f"{id}, the course's answer, passed: ") and result
        assert "#008866" not in result._repr_html_() and "#008866" in exercises.check(id, answer)._repr_html_()
    assert "99.1, the course's answer, not yet: For a page" in repr(
        exercises.check_solution("99.1", lambda width, height: width + height)
    )


def test_hints_come_one_after_another():
    assert [exercises.hint("99.1").text for _ in range(4)] == ["nudge", "method", "almost", "almost"]
    assert repr(exercises.hint("99.1", 2)) == "99.1 hint 2 of 3: method"
    # In plain text JupyterLab would break its lines in the middle of a word.
    assert "<b>99.1 hint 2 of 3:</b> method</div>" in exercises.hint("99.1", 2)._repr_html_()
    for level in (0, 4, True, "1"):
        with pytest.raises(ValueError, match="there are hints 1"):
            exercises.hint("99.1", level)


def test_what_is_shown_is_short():
    assert len(judging.shorten(list(range(10**6)))) < 200 and len(judging.shorten("x" * 10**6)) < 200
    assert judging.shorten((torch.ones(3, 4), [1])) == "(a tensor of shape (3, 4), [1])"


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_tensor_with_a_nan_or_an_infinity_is_still_compared(odd):
    expected = torch.tensor([1.0, odd])
    assert judging.difference(torch.tensor([1.0, odd]), expected, 1e-6) is None
    assert judging.difference(torch.tensor([1.0 + 1e-7, odd]), expected, 1e-6) is None
    assert judging.difference(torch.tensor([2.0, odd]), expected, 1e-6) is not None
    assert judging.difference(torch.tensor([1.0, 3.0]), expected, 1e-6) is not None


@pytest.mark.parametrize("near", [0.1 + 0.2, math.nan])
def test_the_element_that_is_named_is_one_that_is_not_right(near):
    expected = torch.tensor([0.3 if near == near else near, 1.0], dtype=torch.float64)
    given = torch.tensor([near, 5.0], dtype=torch.float64)
    assert (
        judging.difference(given, expected, 1e-9)
        == "the first different element is at [1]: you have 5.0, but 1.0 is right"
    )


def test_an_array_is_compared_like_a_list():
    assert judging.difference(np.array([0.25, 0.5]), (0.25, 0.5), 1e-6) is None
    assert "0.75" in judging.difference(np.array([0.25, 0.75]), (0.25, 0.5), 1e-6)
    assert "2 are right" in judging.difference(np.zeros(3), (0.25, 0.5), 1e-6)
    assert "is expected" in judging.difference(np.zeros(1), 0.5, 1e-6)


def test_what_passes_is_noted_and_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv(_journal.VARIABLE, str(tmp_path / "guesses.json"))
    assert exercises.check_solution("99.1", area) and not exercises.check("99.1", max)
    assert _journal.read() == _journal.Journal()
    assert exercises.check("99.1", area) and _journal.read().solved == ("99.1",)
    monkeypatch.setenv(_journal.VARIABLE, str(tmp_path / "guesses.json" / "taken"))
    result = exercises.check("99.1", area)
    assert result and "That you solved it is not kept" in result.message and "cannot be written" in result.message
