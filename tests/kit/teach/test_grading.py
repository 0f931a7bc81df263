"""Points: all for an answer that passes, a share for cases or parts that are right, none for an empty answer."""

import os
import sys
from fractions import Fraction

import checked_here
import pytest

from cs336kit.teach.exercises import core, exercise, load, sandbox
from cs336kit.teach.exercises.grading import grade

pytestmark = pytest.mark.torch

#: Among them a decision, cases that a function without a body meets, and answers that change what they are given.
IDS = ("01.2", "02.2", "05.5", "07.1", "07.2", "13.3", "19.1", "19.5")


@pytest.fixture
def here(monkeypatch):
    """Known answers, which need no process of their own, are tried in this one."""
    checked_here.use(monkeypatch)


@pytest.fixture
def area(monkeypatch):
    """An exercise with four cases, of which a function without a body meets the last one."""
    monkeypatch.setattr(core, "_known", dict(core._known))

    @exercise(
        "99.1",
        cases=[(2, 3), (4, 5), (6, 6), (-1, 1)],
        mistakes={"width + height": "you added.", "width * width": "you squared.", "0": "zero."},
        hints=("", ""),
        checked="four.",
    )
    def area(width, height):
        return width * height if width >= 0 else None

    return lambda answer: grade("99.1", answer, of=8)


@pytest.mark.parametrize("id", IDS)
def test_of_a_real_exercise_the_right_answer_gets_all_a_mistake_less_and_nothing_none(id, here):
    found = load(id)
    value = (lambda answer: answer()) if found.decision else (lambda answer: answer)
    assert grade(id, value(found.reference), of=12) == 12
    assert all(0 <= grade(id, value(wrong), of=12) < 12 for wrong in found.wrong_answers.values())
    for nothing in (..., lambda *args: ..., lambda *args: None):
        assert grade(id, nothing, of=12) == 0


def test_a_share_is_that_of_the_cases_and_the_mistake_is_named(area, capsys):
    def rounded_to_a_square(width, height):
        return width * width

    assert area(rounded_to_a_square) == 8 * Fraction(1, 4)
    said = capsys.readouterr().out
    assert "99.1 not yet: For rounded_to_a_square(2, 3) you returned 4: you squared." in said
    assert said.endswith("Cases passed: 1 of 4.\n")
    assert area(lambda width, height: width * height) == 6
    assert area(lambda width, height: width * height if width >= 0 else None) == 8
    assert capsys.readouterr().out.endswith("99.1 passed: four.\n")


@pytest.mark.parametrize(("constant", "points"), [(None, 0), (..., 0), (6, 2), (7, 0)])
def test_a_function_without_a_body_gets_nothing(area, constant, points):
    assert area(lambda width, height: constant) == points


LOOPS = [
    pytest.param(2, 0, True, marks=pytest.mark.proof),
    (6, 4, True),
    pytest.param(-1, 6, True, marks=pytest.mark.proof),
    pytest.param(6, 4, False, marks=pytest.mark.proof),
]


@pytest.mark.parametrize(("at", "points", "fork"), LOOPS)
def test_an_answer_that_loops_is_stopped_and_gets_the_cases_before(area, monkeypatch, capsys, at, points, fork):
    monkeypatch.setattr(sandbox, "LIMIT", 1)
    monkeypatch.setattr(sandbox, "_can_fork", lambda: fork)

    def loops(width, height):
        while width == at:
            pass
        return width * height

    assert area(loops) == points
    said = capsys.readouterr().out
    assert f"loops({at}, " in said and "did not return within 1 seconds" in said
    assert said.endswith(f"Cases passed: {points // 2} of 4.\n") == bool(points)


def test_an_answer_that_ends_its_process_gets_the_cases_before(area, capsys):
    assert area(lambda width, height: os._exit(3) if width == 6 else width * height) == 4
    assert "ended the process that it ran in, with exit code 3.\nCases passed: 2 of 4." in capsys.readouterr().out


def test_cases_that_a_function_without_a_body_meets_count_for_nothing_if_it_loops_in_another(monkeypatch):
    monkeypatch.setattr(core, "_known", dict(core._known))
    monkeypatch.setattr(sandbox, "LIMIT", 1)

    @exercise("99.1", cases=[(0,), (1,)], mistakes={}, hints=("", ""), checked="two.")
    def twice(number):
        return 2 * number or None

    def loops(number):
        while number:
            pass

    assert grade("99.1", loops, of=8) == 0


def test_an_answer_that_writes_a_file_is_stopped(area, tmp_path, capsys):
    def writes(width, height):
        (tmp_path / "note.txt").write_text("I was here")
        return width * height

    assert area(writes) == 0 and not (tmp_path / "note.txt").exists()
    assert "PermissionError: an answer may not do that here" in capsys.readouterr().out


def test_an_answer_that_raises_in_some_cases_gets_the_others(area):
    def raises(width, height):
        assert width < 5
        return width * height

    assert area(raises) == 4


def test_of_a_decision_each_part_counts(capsys):
    right = load("07.2").reference()
    assert grade("07.2", right, of=9) == 9
    assert grade("07.2", (right[0].lower(), 1.0, right[2]), of=9) == 6
    assert capsys.readouterr().out.endswith("Right parts: 2 of 3.\n")
    assert grade("07.2", (right[0], ..., ...), of=9) == 3
    assert (grade("07.2", (right[0], ..., ...), of=5), grade("07.2", (right[0], ..., ...), of=0.5)) == (1.67, 0.17)
    for nothing in (..., (..., ..., ...), right[:2], "B", None, [*right, 1]):
        assert grade("07.2", nothing, of=9) == 0


def test_a_function_that_the_task_forbids_gets_nothing():
    import torch

    assert grade("03.2", lambda x: torch.diagonal(x), of=6) == 0


def test_what_an_answer_writes_on_stderr_costs_no_points(area, here, capsys):
    def noisy(width, height):
        print("mind the gap", file=sys.stderr)
        return width * height

    assert area(noisy) == 6
    said = capsys.readouterr()
    assert said.err == "" and "mind the gap" in said.out  # nbgrader gives a cell with anything on stderr no points


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match=r"no exercise '99\.7'"):
        grade("99.7", ..., of=1)


def test_an_answer_that_is_not_there_is_said_to_be_missing(capsys):
    assert grade("03.3", None, of=6, name="answer") == 0
    assert capsys.readouterr().out == (
        "03.3 no answer: nothing here is called answer. "
        "Run the cell above again; it must end without an error and set that name.\n"
    )
