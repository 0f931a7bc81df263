"""Every exercise of the course: the reference passes, each known mistake gets its own message, nothing breaks the check."""

import itertools
import re

import pytest

from cs336kit.teach import exercises

IDS = exercises.known_ids()


def test_unknown_ids_list_the_known_ones():
    for bad in ("99.1", "01", "", None, 7):
        with pytest.raises(ValueError, match="the lessons with exercises are"):
            exercises.load(bad)
    with pytest.raises(ValueError, match=r"has no exercise '00\.99'; it has 00\.1"):
        exercises.load("00.99")


def test_ids_are_unique_and_numbered_from_one():
    assert len(set(IDS)) == len(IDS)
    for lesson, group in itertools.groupby(IDS, key=lambda id: id[:2]):
        numbers = [id[3:] for id in group]
        assert numbers == [str(i) for i in range(1, len(numbers) + 1)] and 4 <= len(numbers) <= 6, lesson


@pytest.mark.parametrize("id", IDS)
def test_the_reference_passes(id):
    exercise = exercises.load(id)
    result = exercises.check(id, exercise.reference)
    assert result.passed, result
    assert len(exercise.checked) > 10


@pytest.mark.parametrize("id", IDS)
def test_each_known_mistake_gets_its_own_message(id):
    exercise = exercises.load(id)
    assert len(exercise.mistakes) >= 3
    messages = []
    for mistake in exercise.mistakes:
        result = exercises.check(id, mistake.answer)
        assert result.state == "not yet", (id, mistake.message)
        for words in re.split(r"\{(?:case|given|expected)\}", mistake.message):
            assert words in result.message, (mistake.message, result.message)
        messages.append(mistake.message)
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("id", IDS)
def test_there_are_three_hints_that_differ(id):
    hints = exercises.load(id).hints
    assert len(set(hints)) == 3 and all(len(hint) > 15 for hint in hints)


def _raise(*args, **kwargs):
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("id", IDS)
def test_hostile_answers_get_a_sentence(id):
    import torch

    values = ["text", object(), itertools.count(), torch.ones(7, 1, 3), [], {}, float("nan"), None]
    answers = values + [lambda *args, _v=value, **kwargs: _v for value in values] + [_raise, lambda: 0]
    for answer in answers:
        result = exercises.check(id, answer)
        assert not result.passed and len(result.message) > 15, (id, answer, result)
        assert "Traceback" not in result.message


@pytest.mark.parametrize("id", IDS)
def test_the_stub_waits(id):
    assert exercises.check(id, lambda *args, **kwargs: ...).state == "waiting" or not exercises.load(id).is_function
    assert exercises.check(id, ...).state == "waiting"
