"""Lessons and exercises where nothing can fork, there are no process groups, no alarms and no /proc: as on Windows."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cs336course import cells as kind
from cs336course.lessons import read

pytestmark = pytest.mark.proof

ROOT = Path(__file__).parents[2]
#: Of these lessons, the first starts the command, the second crashes and goes on, and the third starts ranks.
LESSONS = "00", "13", "18"


def elsewhere(*arguments, **more):
    """What a Python on such a system prints, and its exit code."""
    path = os.pathsep.join([str(ROOT / "tests" / "other_system"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, **more}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, encoding="utf-8", env=environment
    )
    return done.stdout + done.stderr, done.returncode


def for_linux_alone():
    """Cells that ask for Linux and are compared all the same: (lesson, place among its code cells)."""
    for number in LESSONS:
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        for place, cell in enumerate(filter(kind.is_code, read(path)), start=1):
            if 'sys.platform == "linux"' in kind.source(cell) and not kind.measured(cell):
                yield path.name, str(place)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_lessons_give_the_stored_outputs():
    said, code = elsewhere("-m", "cs336kit", "lessons", "verify", *LESSONS)
    failed = {*re.findall(r"^(?:FAILED|ERROR) notebooks/(\S+)::cell \[(\d+)\]", said, flags=re.M)}
    assert failed == {*for_linux_alone()} and code == (1 if failed else 0), said[-5000:]
    assert int(re.search(r"(\d+) passed", said)[1]) > 130


@pytest.mark.proof
def test_the_right_answer_of_every_exercise_can_be_sent_and_passes():
    """Here all in one process, for its time; `test_exercise_core.py` sends answers one by one."""
    code = """
        import pickle, sys, types
        from cs336kit.measure.processes import pickled
        from cs336kit.teach.exercises import checking, known_ids, load

        def sent(prepare, answer, seconds=None):
            (prepare, _), (answer, _) = (pickle.loads(pickled(it, ())) for it in (prepare, answer))
            said = []
            prepare()(answer, lambda *state: said.append(state))
            return said[-1]

        assert sys.platform == "elsewhere"
        checking.run, seen = sent, 0
        for id in known_ids():
            found = load(id)
            if found.decision:
                continue
            right = found.reference
            copy = types.FunctionType(right.__code__, right.__globals__, right.__name__, right.__defaults__)
            copy.__kwdefaults__, copy.__module__ = right.__kwdefaults__, "__main__"  # as a reader's own
            assert checking.check_solution(id, copy), (id, checking.check_solution(id, copy))
            seen += 1
        print(seen)
    """
    said, code = elsewhere("-c", textwrap.dedent(code))
    assert code == 0 and int(said) > 60, said


def test_answers_are_checked_and_an_endless_one_is_stopped():
    code = """
        from cs336kit.teach import exercises
        from cs336kit.teach.exercises import load, sandbox

        def endless(*args):
            while True:
                pass

        sandbox.LIMIT = 1
        for answer in (load("07.1").reference, lambda *args: 0, endless, lambda *args: open("left", "w")):
            print(exercises.check("07.1", answer))
    """
    said, code = elsewhere("-c", textwrap.dedent(code), CS336KIT_GUESSES=os.devnull + "/none")
    passed, wrong, stopped, refused = said.splitlines()
    assert code == 0 and passed.startswith("07.1 passed") and wrong.startswith("07.1 not yet: ")
    assert "did not return within 1 seconds" in stopped and "may not do that here" in refused
    assert not (ROOT / "left").exists()
