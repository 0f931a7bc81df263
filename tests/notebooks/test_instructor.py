"""The instructor's page: nothing of a lesson is missing, plans hold every lesson once, and no student gets the answers."""

from pathlib import Path

import pytest

from cs336kit.cli import main
from cs336kit.course import exam, instructor, pages, plans
from cs336kit.course.cells import source
from cs336kit.course.lessons import every
from cs336kit.course.plans import Lesson
from cs336kit.teach import exercises

LESSONS = every(Path(__file__).parents[2] / "notebooks")
MINUTES = [Lesson(path.name[:2], *pages.minutes(cells)) for path, cells in LESSONS]


@pytest.fixture(scope="module")
def page():
    return instructor.page(LESSONS)


def test_ten_weeks_hold_every_lesson_once_in_order_and_the_minutes_add_up():
    weeks = plans.weeks(MINUTES)
    assert len(weeks) == plans.WEEKS
    held = [lesson for week in weeks for lesson in sorted(week.sittings + week.read_at_home, key=lambda x: x.number)]
    assert held == MINUTES
    assert all(
        len(week.sittings) <= 2 and lesson.reading <= plans.SITTING for week in weeks for lesson in week.sittings
    )
    in_class = sum(lesson.reading for week in weeks for lesson in week.sittings)
    assert in_class + sum(week.at_home for week in weeks) == sum(lesson.both for lesson in MINUTES)


def test_three_days_hold_or_name_every_lesson_and_leave_out_no_more_than_needed():
    days, left_out = plans.days(MINUTES)
    held = [lesson for day in days for lesson in day]
    assert len(days) <= plans.DAYS and all(sum(lesson.both for lesson in day) <= plans.DAY for day in days)
    assert sorted([lesson.number for lesson in held] + list(left_out)) == [lesson.number for lesson in MINUTES]
    assert all(left_out.values()) and set(left_out) == set(list(plans.LEFT_OUT)[: len(left_out)])
    fewer = dict(list(plans.LEFT_OUT.items())[: len(left_out) - 1])
    with pytest.raises(ValueError, match="does not fit into 3 days"):
        plans.days(MINUTES, fewer)


def test_other_lessons_make_another_plan_and_one_that_is_too_long_is_named():
    few = [Lesson(f"{i:02}", 30 + i, 20) for i in range(5)]
    assert [week.sittings for week in plans.weeks(few)] == [tuple(few[:2]), tuple(few[2:4]), tuple(few[4:])]
    assert plans.days(few) == ([few], {})
    many = [Lesson(f"{i:02}", 40 - i, 0) for i in range(21)]
    assert plans.weeks(many)[-1].read_at_home == (many[20],)
    with pytest.raises(ValueError, match="lesson 03 takes 51 minutes, and a sitting has 50"):
        plans.weeks([Lesson("03", 51, 0)])


@pytest.mark.parametrize(("path", "cells"), LESSONS, ids=[path.stem for path, _ in LESSONS])
def test_a_lesson_has_its_question_three_to_discuss_its_mistakes_and_its_exam(path, cells, page):
    own = page.split(f"### {pages.title(path)}\n")[1].split("\n### ")[0]
    asked = exam.questions()[path.name[:2]]
    assert pages.question(cells) in own and len(instructor.discussion(cells)) == 3
    assert all(each in own for each in (*instructor.discussion(cells), asked.asked, asked.answer))
    ids = [found[1] for cell in cells if (found := pages.EXERCISE.match(source(cell)))]
    assert ids and all(f"- {id} · " in own for id in ids)
    assert own.count("\n  - ") == sum(len(exercises.load(id).mistakes) for id in ids)
    assert "{" not in asked.answer and "lambda" not in own


def test_the_command_says_where_it_has_written(monkeypatch, tmp_path, capsys, page):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(instructor, "every", lambda folder: LESSONS)
    assert main(["lessons", "instructor"]) == 0 and instructor.FILE.read_text(encoding="utf-8") == page
    assert capsys.readouterr().out == "build/instructor/instructor.md is written.\n"


def test_what_a_lesson_needs_are_earlier_lessons_that_it_names():
    needs = {path.name[:2]: instructor.needed(path.name[:2], cells) for path, cells in LESSONS}
    assert needs["00"] == [] and {"08", "11"} <= set(needs["14"])
    assert all(each < number for number, named in needs.items() for each in named)


def test_no_notebook_holds_an_exam_question():
    texts = "\n".join(source(cell) for _, cells in LESSONS for cell in cells)
    assert not any(question.asked.splitlines()[0] in texts for question in exam.questions().values())
