"""Every exercise of the course: the reference passes, each mistake gets its own words, nothing else passes."""

import itertools

import pytest
import torch

from cs336kit.course import exercise as maintain
from cs336kit.teach import exercises
from cs336kit.teach.exercises import running

IDS = exercises.known_ids()

#: Changes to a right answer that change nothing, or nothing that the task asks for.
HARMLESS = {
    "01.5": ["bias + top → bias - top"],  # top is 0
    "02.4": ["0 → -1", "0 → -1"],  # the only axis
    "03.3": ["1000000000.0 → 999999999.0"],  # within the tolerance of a float
    "09.2": [
        "p * (1 - lr * weight_decay) → p / (1 - lr * weight_decay)",  # weight_decay and sums are off
        "1 - lr * weight_decay → 1 + lr * weight_decay",
        "1 → 2",
        "1 → 0",
    ],
    "09.5": ["norm > max_norm → norm >= max_norm"],  # then the factor is 1
    "11.5": ["1 → 2"],  # a k above layers is never better
    "12.3": ["norm > max_norm → norm >= max_norm"],
}


@pytest.fixture
def here(monkeypatch):
    """Known answers, which need no process of their own, are tried in this one."""
    monkeypatch.setattr(running, "_can_fork", lambda: False)


def test_unknown_ids_list_the_known_ones():
    for bad in ("99.1", "01", "", None, 7):
        with pytest.raises(ValueError, match="the lessons with exercises are"):
            exercises.load(bad)
    with pytest.raises(ValueError, match=r"has no exercise '00\.99'; it has 00\.1"):
        exercises.load("00.99")


def test_ids_are_numbered_from_one():
    for lesson, group in itertools.groupby(IDS, key=lambda id: id[:2]):
        numbers = [id[3:] for id in group]
        assert numbers == [str(i) for i in range(1, len(numbers) + 1)] and 4 <= len(numbers) <= 6, lesson


@pytest.mark.parametrize("id", IDS)
def test_the_reference_passes_and_each_mistake_gets_its_own_words(id, here):
    found = exercises.load(id)
    result = exercises.check(id, found.reference)
    assert repr(result) == f"{id} passed: {found.checked}" and len(found.checked) > 10
    assert 3 <= len(found.mistakes) <= 6 and len(set(found.mistakes.values())) == len(found.mistakes)
    for mistake, sentence in found.mistakes.items():
        message = exercises.check(id, found.wrong_answers[mistake]).message
        assert message.startswith("For ") and message.endswith(f": {sentence}"), (sentence, message)
    assert maintain.confused(found) == []
    assert len(set(found.hints)) == len(found.hints) in (2, 3) and min(map(len, found.hints)) > 15


@pytest.mark.parametrize("id", IDS)
def test_stubs_wait_and_answers_of_another_kind_get_a_sentence(id, here):
    found = exercises.load(id)
    assert exercises.check(id, lambda *args: ...).state == exercises.check(id, ...).state == "waiting"
    (_, first), *_ = found.calls("")
    values = ["text", object(), itertools.count(), torch.ones(7, 1, 3), [], {}, float("nan"), None]
    answers = [*values, lambda: 0, lambda *args: args[0], lambda *args: found.reference(*first)]
    for answer in answers + [lambda *args, _v=value: _v for value in values]:
        result = exercises.check(id, answer)
        assert result.state == "not yet" and len(result.message) > 15, (answer, result)


@pytest.mark.parametrize("id", IDS)
def test_a_changed_reference_does_not_pass(id):
    found = exercises.load(id)
    assert maintain.unnoticed(found, maintain.changed(found.reference)) == HARMLESS.get(id, [])
