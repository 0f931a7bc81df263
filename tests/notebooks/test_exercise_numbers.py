"""The numbers in the sentences of an exercise follow from its cases, its right answer, its mistakes, its task or its lesson."""

import gc
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from cs336course import exercise
from cs336course.lessons import every
from cs336course.prose import Pool, Prose, numbers
from cs336kit import predict
from cs336kit.lessons.lesson_00 import exercises as lesson_00
from cs336kit.predict import MODELS
from cs336kit.teach import exercises

IDS = exercises.known_ids()


def autocast(device):
    """The bytes of exercise 14.5 with plan A."""
    return predict.training_memory(MODELS["gpt2-xl"], batch=8, sequence=1024, precision="autocast", device=device).total


#: What follows from something that an exercise does not compute: the number, and its value.
COMPUTED = {
    "00.4": {
        "39 days": lesson_00._days(48, 312e12),
        "16 bytes": predict.bytes_per_parameter("adamw", precision="mixed").total,
    },
    "01.4": {"2,048": 2**11},
    "02.5": {"0.00012": 2**-5 * 2**-7 / 2},
    "04.4": {"63 GB": predict.pcie_bandwidth(5)},
    "06.3": {"8.6 of": 4 * 2048**2 * 1024 / 2 / 1e9},
    "06.4": {"9 %": 8 / (24 + 4 * 16)},
    "07.2": {"67 million": 8192**2},
    "14.5": {"70 GiB": autocast("cpu"), "107 GiB": autocast("cuda")},
    "15.2": {"15.9 is": exercises.load("15.2").right(())[1] * 2**20 / 1e6},
    "17.4": {
        "12.9 billion": predict.active_parameters(MODELS["mixtral-8x7b"]).total,
        "46.7 billion": predict.parameters(MODELS["mixtral-8x7b"]).total,
    },
}


@cache
def lessons():
    return {path.name[:2]: Prose(cells) for path, cells in every(Path(__file__).parents[2] / "notebooks")}


@pytest.mark.parametrize("id", IDS)
def test_the_numbers_of_its_sentences_follow(id):
    lessons()
    gc.freeze()  # 12.1 looks at all objects, and takes seconds for those of pytest and of the lessons
    found = exercise.untied(exercises.load(id), lessons()[id[:2]])
    assert {text.split(" in ")[0] for text in found} == {*COMPUTED.get(id, {})}, found
    for text, value in COMPUTED.get(id, {}).items():
        assert next(numbers(text)) in Pool([(value, "")]), (text, value)


def test_another_number_is_seen_in_each_kind_of_sentence():
    found, lesson = exercises.load("07.1"), lessons()["07"]
    hints = (*found.hints, "Try 7,654 tokens.")
    mistakes = {**found.mistakes, "17": "that is for 76 layers."}
    changed = replace(found, checked="an A100 at 8.1 GB.", mistakes=mistakes, hints=hints)
    assert [text.split(" in ")[0] for text in exercise.untied(changed, lesson)] == [
        "8.1 GB",
        "76 layers",
        "7,654 tokens",
    ]
