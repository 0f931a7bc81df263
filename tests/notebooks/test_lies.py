"""Fifty lies, each told in one place: a rule sees them, or lies.toml says why none can."""

import copy
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from claims.settled import settlements, untied, untied_truth
from claims.test_claims import TRUTHS
from notebooks.test_prose import CONSTANTS, is_listed, known, unlisted
from test_documents import DOCUMENTS
from test_documents import unlisted as unlisted_in_document

from cs336course import exam, exercise, structure
from cs336course.cells import for_slide
from cs336course.lessons import find, read
from cs336course.prose import Prose
from cs336kit.teach import exercises

HERE = Path(__file__).parent
LIES = tomllib.loads((HERE / "lies.toml").read_text(encoding="utf-8"))["lie"]
LESSONS = {path.name[:2]: path for path in find([], HERE.parents[1] / "notebooks")}
#: The rules of the anatomy that look at what is said; that a cell was edited is no lie after a refresh.
RULES = (structure._twice, structure._sections, structure._pointers)


@cache
def cells(lesson):
    """The cells of a lesson with their texts joined, as nbformat has them."""
    return [cell | {"source": "".join(cell["source"])} for cell in read(LESSONS[lesson])]


def told(lie):
    """The cells of a lesson in which a lie is told."""
    changed = copy.copy(cells(lie["where"]))
    if "twice" in lie:
        (place,) = _begins(changed, lie["twice"])
        changed.insert(place + 3, changed[place])
    elif "move" in lie:
        (place,), (over,) = _begins(changed, lie["move"]), _begins(changed, lie["over"])
        changed.insert(over, changed.pop(place))
    elif "title" in lie:
        (place,) = (i for i, cell in enumerate(changed) if lie["title"] in for_slide(cell).get("title", ""))
        slide = changed[place]["metadata"]["slideshow"] | {"title": lie["after"]}
        changed[place] = changed[place] | {"metadata": changed[place]["metadata"] | {"slideshow": slide}}
    else:
        (place,) = (i for i, cell in enumerate(changed) if lie["before"] in cell["source"])
        changed[place] = changed[place] | {"source": changed[place]["source"].replace(lie["before"], lie["after"], 1)}
    return changed


def _begins(found, words):
    return [place for place, cell in enumerate(found) if cell["source"].startswith(words)]


def problems(lesson, changed):
    """What the rules find in a lesson with these cells, which are not executed."""
    prose = Prose(changed)
    loose = [number for _, number in prose.untied()]
    yield from (f"{n.digits} {n.word} is tied to nothing" for n in loose if not known(lesson, n))
    yield from unlisted(lesson, prose)
    notebook = {"cells": changed}
    yield from (problem for rule in RULES for problem in rule(notebook))
    yield from (problem for cell in changed for problem in structure._sums(cell))


def seen(lie):
    """The problems that come with a lie."""
    where, which = lie["where"], lie.get("which", "")
    if where in LESSONS:
        return [*problems(where, told(lie))]
    if where == "claims":
        (test,) = (test for test in settlements() if test.claim.id == which)
        if lie["before"] in test.claim.truth:
            loose = untied_truth(replace(test.claim, truth=_changed(test.claim.truth, lie)), test.settle)
            listed = [text for group in TRUTHS.get(which, {}).values() for text in group]
            return [number.digits for number in loose if not any(is_listed(text, number) for text in listed)]
        return untied(replace(test.claim, claim=_changed(test.claim.claim, lie)), test.settle)
    if where == "exam":
        entry = tomllib.loads(exam.FILE.read_text(encoding="utf-8"))[which]
        part = "answer" if lie["before"] in entry["answer"] else "question"
        changed = entry | {part: _changed(entry[part], lie)}
        return [*exam.untied(changed), *exam.false(changed)]
    if where == "exercises":
        found, lesson = exercises.load(which), Prose(cells(which[:2]))
        mistakes = {
            mistake: sentence.replace(lie["before"], lie["after"]) for mistake, sentence in found.mistakes.items()
        }
        changed = replace(found, checked=found.checked.replace(lie["before"], lie["after"]), mistakes=mistakes)
        assert changed != found
        return [*{*exercise.untied(changed, lesson)} - {*exercise.untied(found, lesson)}]
    (text,) = (text for text in DOCUMENTS.values() if lie["before"] in text)
    return [*unlisted_in_document(_changed(text, lie))]


def _changed(text, lie):
    assert text.count(lie["before"]) == 1, lie
    return text.replace(lie["before"], lie["after"])


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: f"{lie['where']}-{lie.get('after', lie['kind'])[:40]}")
def test_a_lie_is_seen(lie):
    found = seen(lie)
    print(f"{'passes' if not found else 'seen'} | {lie['kind']} | {lie['where']} | {found[:1]}")
    assert bool(found) != ("passes" in lie), found


def test_few_lies_pass_and_the_lessons_as_they_are_tell_none():
    assert len(LIES) > 50 and sum("passes" in lie for lie in LIES) <= 5
    assert {*CONSTANTS} <= {*LESSONS}
    for lesson in {lie["where"] for lie in LIES} & {*LESSONS}:
        assert [*problems(lesson, cells(lesson))] == []
