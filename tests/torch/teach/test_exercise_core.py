"""The checking framework itself, on a small exercise of its own."""

import itertools

import pytest
import torch

from cs336kit.teach import exercises
from cs336kit.teach.exercises import Case, Exercise, Mistake, core
from cs336kit.teach.exercises.calling import shorten


def area(width, height):
    return width * height


EXERCISE = Exercise(
    id="99.1",
    reference=area,
    cases=lambda: [Case((2, 2)), Case((3, 4)), Case((5, 6), label="a large one")],
    mistakes=(
        Mistake(lambda width, height: width + height, "For {case} you returned {given}: a sum, not a product."),
        Mistake(lambda width, height: 2 * (width + height), "That is the perimeter; the area is {expected}."),
        Mistake(lambda width, height: width**2, "You squared the width."),
    ),
    hints=("nudge", "method", "almost"),
    checked="three rectangles.",
)


@pytest.fixture(autouse=True)
def one_exercise(monkeypatch):
    monkeypatch.setattr(core, "load", lambda id: EXERCISE)
    monkeypatch.setattr(core, "_asked", {})


def message(answer):
    return exercises.check("99.1", answer).message


def test_the_reference_passes_and_says_what_was_tried():
    result = exercises.check("99.1", area)
    assert result and result.passed and repr(result) == "99.1 passed: three rectangles."


@pytest.mark.parametrize("stub", [..., lambda width, height: ...])
def test_a_stub_is_waiting(stub):
    result = exercises.check("99.1", stub)
    assert not result and result.state == "waiting" and "teach.exercises.hint('99.1')" in result.message


def test_a_usual_mistake_is_named_with_the_counterexample():
    # 2 + 2 equals 2 * 2, so the first case cannot tell; the second can.
    assert message(
        lambda width, height: width + height
    ) == "For <lambda>(3, 4) you returned 7: a sum, not a product.".replace("<lambda>", "your function")
    assert message(lambda width, height: 2 * (width + height)) == "That is the perimeter; the area is 4."
    assert message(lambda width, height: width * width) == "You squared the width."


def test_an_unknown_mistake_shows_the_counterexample_and_the_right_value():
    def area(width, height):
        return width * height + (width == 5)

    assert message(area) == "for a large one you returned 31, and 30 is right."


def test_the_first_counterexample_stops_the_check():
    seen = []

    def area(width, height):
        seen.append(width)
        return 0

    exercises.check("99.1", area)
    assert seen == [2]


def hangs(width, height):
    while True:
        pass


def raises(width, height):
    return width / 0


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (7, "pass the function itself, not 7"),
        (None, "pass the function itself, not None"),
        (lambda: 1, "raised TypeError"),
        (raises, "raises(2, 2) raised ZeroDivisionError: division by zero (line 2 of your function)"),
        (lambda width, height: None, "returned nothing (is there a return?)"),
        (lambda width, height: "four", "you returned 'four', a str; an int is wanted"),
        (lambda width, height: True, "a bool; an int is wanted"),
        (lambda width, height: itertools.count(), "you returned count(0), a count; an int is wanted"),
        (lambda width, height: torch.ones(2), "a Tensor; an int is wanted"),
        (lambda width, height: NoRepr(), "<NoRepr instance>, a NoRepr; an int is wanted"),
        (lambda width, height: exit(3), "raised SystemExit: 3"),
        (lambda width, height: float("nan"), "you returned nan, and 4 is right"),
    ],
)
def test_hostile_answers_get_a_sentence(answer, part):
    result = exercises.check("99.1", answer)
    assert not result and part in result.message
    assert "cs336kit" not in result.message


def test_an_endless_loop_is_given_up(monkeypatch):
    monkeypatch.setattr("cs336kit.teach.exercises.calling.LIMIT", 1)
    assert "did not return within 1 seconds" in message(hangs)


def test_arguments_are_copied_for_every_call(monkeypatch):
    def first(row):
        return row.pop(0)

    exercise = Exercise("99.2", lambda row: row[0], (), ("", "", ""), "one list", cases=lambda: [Case(([1, 2],))] * 2)
    monkeypatch.setattr(core, "load", lambda id: exercise)
    assert exercises.check("99.2", first)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (torch.ones(3, 2), "a tensor of shape (3, 2), and (2, 3) is right"),
        (torch.ones(2, 3, dtype=torch.int64), "a tensor of torch.int64, and torch.float32 is right"),
        (torch.zeros(2, 3), "at [0, 0]: you have 0.0, and 1.0 is right"),
        ([1], "a Tensor is wanted"),
    ],
)
def test_tensors_differ_by_shape_dtype_or_element(monkeypatch, given, part):
    exercise = Exercise("99.3", lambda: torch.ones(2, 3), (), ("", "", ""), "one tensor")
    monkeypatch.setattr(core, "load", lambda id: exercise)
    assert part in exercises.check("99.3", lambda: given).message


def test_a_value_may_be_asked_for(monkeypatch):
    exercise = Exercise("99.4", 40e9, (Mistake(5e9, "That is one GPU: you have eight."),), ("", "", ""), "the number.")
    monkeypatch.setattr(core, "load", lambda id: exercise)
    assert exercises.check("99.4", 40e9) and exercises.check("99.4", 40_000_000_000)
    assert exercises.check("99.4", 5e9).message == "That is one GPU: you have eight."
    assert exercises.check("99.4", 1).message == "you returned 1, and 40000000000.0 is right."


def test_hints_come_one_after_another():
    assert [exercises.hint("99.1").text for _ in range(4)] == ["nudge", "method", "almost", "almost"]
    assert repr(exercises.hint("99.1", 2)) == "99.1 hint 2 of 3: method"
    for level in (0, 4, True, "1"):
        with pytest.raises(ValueError, match="there are hints 1"):
            exercises.hint("99.1", level)


def test_shorten_never_ends_in_a_long_line():
    assert len(shorten(list(range(10**6)))) < 200 and len(shorten("x" * 10**6)) < 200
