import os
import subprocess
import sys

import pytest

from benchmarks import steadiness
from benchmarks.steadiness import CONDITIONS, Condition


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A repository of two lessons, as the one to be cloned."""
    (tmp_path / "course/notebooks").mkdir(parents=True)
    for name in ("00_a", "01_b"):
        (tmp_path / f"course/notebooks/{name}.ipynb").write_text("{}", encoding="utf-8")
    git = ["git", "-C", tmp_path / "course", "-c", "user.name=a", "-c", "user.email=a@b"]
    for order in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *order], check=True)
    monkeypatch.setattr(steadiness, "ROOT", tmp_path / "course")
    monkeypatch.setattr(steadiness, "REPORTS", tmp_path / "course")
    return tmp_path


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.name)
def test_every_condition_verifies_every_lesson(condition, course):
    there = steadiness.clone(condition, course)
    lessons = steadiness.command(condition, there, course / "report.xml")[-2:]
    assert sorted(lessons) == ["notebooks/00_a.ipynb", "notebooks/01_b.ipynb"]


def test_nobody_can_write_into_a_read_only_clone(course):
    condition = next(condition for condition in CONDITIONS if condition.read_only)
    there = steadiness.clone(condition, course)
    powers = steadiness.command(condition, there, course / "report.xml")
    write = "import pathlib; pathlib.Path('notebooks/new').touch()"
    done = subprocess.run([*powers[: powers.index("-m")], "-c", write], cwd=there, capture_output=True, text=True)
    assert "PermissionError" in done.stderr


def test_what_the_settings_of_the_tests_overwrite_is_set_after_them(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("STEADY_OMP_NUM_THREADS", "2")
    steadiness.pytest_configure()
    assert os.environ["OMP_NUM_THREADS"] == "2"


def test_a_locale_that_cannot_be_made_is_left_out_with_the_reason(course):
    row, held = steadiness.run(Condition("nowhere", locale="xx_XX"), 1)
    assert "left out" in row and "xx_XX" in row and held


def test_a_run_that_breaks_off_is_no_success(course, monkeypatch):
    monkeypatch.setattr(steadiness, "command", lambda *_: [sys.executable, "-c", "import no_such_module"])
    row, held = steadiness.run(Condition("broken"), 1)
    assert "did not run" in row and not held


@pytest.mark.parametrize("word", ["0", "12", "-1", "busy", ""])
def test_a_condition_that_there_is_not_is_refused_with_those_that_are(course, capsys, word):
    assert steadiness.main(["1", word]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"unknown condition {word!r}.") and "1, 2, 3" in said.err and said.out == ""
