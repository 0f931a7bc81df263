"""The instructor's page: nothing of a lesson is missing, plans hold every lesson once, and no student gets the answers."""

from itertools import islice
from pathlib import Path

import pytest

from cs336course import exam, instructor, pace, pages, plans
from cs336course.cells import source
from cs336course.lessons import every
from cs336course.pace import Minutes
from cs336course.plans import Lesson
from cs336kit.command import main
from cs336kit.teach import exercises

LESSONS = every(Path(__file__).parents[2] / "notebooks")
MINUTES = [plans.lesson(*each) for each in LESSONS]
#: The fewest weeks in which nothing is read at home.
ENOUGH = -(-len(LESSONS) // 2)


@pytest.fixture(scope="module")
def page():
    return instructor.page(LESSONS)


def test_ten_weeks_hold_every_lesson_once_in_order_and_the_minutes_add_up():
    weeks = plans.weeks(MINUTES)
    assert len(weeks) == plans.WEEKS
    held = [lesson for week in weeks for lesson in sorted(week.sittings + week.read_at_home, key=lambda x: x.number)]
    assert held == MINUTES
    assert all(
        len(week.sittings) <= 2 and lesson.first.reading <= lesson.in_class <= plans.SITTING
        for week in weeks
        for lesson in week.sittings
    )
    in_class = sum(week.in_class for week in weeks)
    assert in_class + sum(week.at_home for week in weeks) == sum(lesson.both for lesson in MINUTES)


@pytest.mark.parametrize("weeks", [ENOUGH + 1, ENOUGH, 8, 6, 4, 1])
def test_in_fewer_weeks_each_has_about_as_much_to_read_at_home(weeks, monkeypatch):
    monkeypatch.setattr(plans, "WEEKS", weeks)
    found = plans.weeks(MINUTES)
    assert len(found) == min(weeks, ENOUGH)
    # The fullest week has the average number of lessons, rounded up, and a sitting for two of them.
    assert max(len(week.read_at_home) for week in found) == -(-len(LESSONS) // len(found)) - 2
    held = [lesson for week in found for lesson in sorted(week.sittings + week.read_at_home, key=lambda x: x.number)]
    assert held == MINUTES


def test_three_days_hold_or_name_every_lesson_and_leave_out_no_more_than_needed():
    days, left_out = plans.days(MINUTES)
    held = [lesson for day in days for lesson in day]
    assert len(days) <= plans.DAYS and all(sum(lesson.both for lesson in day) <= plans.DAY for day in days)
    assert sorted([lesson.number for lesson in held] + list(left_out)) == [lesson.number for lesson in MINUTES]
    assert all(left_out.values()) and set(left_out) == set(list(plans.LEFT_OUT)[: len(left_out)])
    fewer = dict(list(plans.LEFT_OUT.items())[: len(left_out) - 1])
    with pytest.raises(ValueError, match="do not fit into 3 days"):
        plans.days(MINUTES, fewer)


def test_what_fits_exactly_fits():
    assert len(plans.weeks([Lesson("00", 50, 0)])) == 1
    # Three days of 360 minutes, in order; a minute more is too much.
    full = [Lesson(f"{i:02}", 100, 80) for i in range(6)]
    assert plans.days(full, {}) == ([full[:2], full[2:4], full[4:]], {})
    for minutes in (1, 181):
        with pytest.raises(
            ValueError, match="do not fit into 3 days of 360: plan more days, or name one of them in LEFT_OUT"
        ):
            plans.days([*full[:5], Lesson("05", 100, 80 + minutes)], {})
    with pytest.raises(ValueError, match="lessons 00, 01 may not be left out and take 371 minutes, which do not fit"):
        plans.days([Lesson("00", 300, 61), Lesson("01", 10, 0)], {})
    # Left out in the order given, named in the order of the lessons, and no more than needed.
    more = [*full, Lesson("06", 10, 0), Lesson("07", 10, 0)]
    assert plans.days(more, {"07": "late", "06": "long", "00": "last"})[1] == {"06": "long", "07": "late"}
    assert plans.weeks(full[:1] * 0) == [] and plans.Week((full[0],), (full[1],)).at_home == 360 - plans.SITTING


def test_plans_as_tables():
    lessons = [Lesson("00", 30, 20), Lesson("01", 40, 5, Minutes(20, 5)), Lesson("02", 60, 30, Minutes(45, 10))]
    titles = {"00": "A", "01": "B", "02": "C"}
    *_, weeks = instructor._ten_weeks(lessons, titles)
    assert weeks.splitlines()[1:] == [
        "|---|---|---|---|---|---|",
        "| 1 | A (50) | B (25) | – | 75 | 20 |",
        "| 2 | C (50) | – | – | 50 | 40 |",
    ]
    _, most, days, *_ = instructor._three_days(lessons, titles)
    assert days.splitlines()[2:] == ["| 1 | A (50), B (45), C (90) | 185 |"] and "360 minutes a day" in most


def test_the_exercises_of_a_lesson_with_their_minutes():
    first, *_ = instructor._mistakes([{"source": "### Exercise 01.1 ★★ 12 min · build it: bits"}])
    assert first == "- 01.1 · build it: bits (12 minutes)"


def test_other_lessons_make_another_plan_and_one_that_is_too_long_is_named():
    few = [Lesson(f"{i:02}", 30 + i, 20) for i in range(5)]
    assert [week.sittings for week in plans.weeks(few)] == [tuple(few[:2]), tuple(few[2:4]), tuple(few[4:])]
    assert plans.days(few) == ([few], {})
    many = [Lesson(f"{i:02}", 40 - i, 0) for i in range(21)]
    assert plans.weeks(many)[-1].read_at_home == (many[20],)
    even = [Lesson(f"{i:02}", 30, 0) for i in range(22)]
    assert [len(week.read_at_home) for week in plans.weeks(even)] == [1, 1, *[0] * 8]
    with pytest.raises(ValueError, match="lesson 03 takes 51 minutes to its pause, but a sitting has only 50"):
        plans.weeks([Lesson("03", 51, 0)])


@pytest.mark.parametrize(("path", "cells"), LESSONS, ids=[path.stem for path, _ in LESSONS])
def test_a_lesson_has_its_question_three_to_discuss_its_mistakes_and_its_exam(path, cells, page):
    own = page.split(f"### {pages.title(path)}\n")[1].split("\n### ")[0]
    asked = exam.questions()[path.name[:2]]
    assert pages.question(cells) in own and len(instructor.discussion(cells)) == 3
    assert all(each in own for each in (*instructor.discussion(cells), asked.asked, asked.answer))
    ids = [found[1] for found in pace.exercises(cells)]
    assert ids and all(f"- {id} · " in own for id in ids)
    assert own.count("\n  - ") == sum(len(exercises.load(id).mistakes) for id in ids)
    # In the words of the check, which may begin with a name: "x is missing".
    assert all(said in own for id in ids for said in exercises.load(id).mistakes.values())
    assert "{" not in asked.answer and "lambda" not in own


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (("C", 12.3456), "C, 12.35"),
        ((2**100, ..., 0), "1.268e+30, …, 0"),
        (2097151, "2097151"),
        (10**12 - 1, "999999999999"),
        (10**12, "1e+12"),
        (True, "True"),
    ],
)
def test_a_wrong_decision_can_be_read(answer, shown):
    assert instructor._shown(answer) == shown


def test_days_that_are_too_few_leave_the_rest_of_the_page(monkeypatch):
    monkeypatch.setattr(plans, "DAYS", 1)
    text = instructor.page(LESSONS)
    assert (
        "## 1 days\n\nThere is no such plan: lessons 00, 06, " in text and "which do not fit into 1 days of 360" in text
    )
    assert "Left out:" not in text and text.count("**Exam**") == len(LESSONS)


def test_teaching_counts_the_lessons_and_the_sittings():
    text = (Path(__file__).parents[2] / "TEACHING.md").read_text(encoding="utf-8")
    counted = f"There are {len(LESSONS)} lessons and {2 * plans.WEEKS} sittings"
    assert counted in text, f"TEACHING.md should say, of the ten weeks: {counted}"


def test_the_number_of_weeks_is_that_of_the_plan(monkeypatch):
    monkeypatch.setattr(plans, "WEEKS", ENOUGH + 3)
    text = instructor.page(LESSONS)
    assert f"## {ENOUGH} weeks" in text and "shortest lessons" not in text


def test_a_lesson_without_a_question_in_the_exam_has_the_rest(monkeypatch):
    kept = {number: question for number, question in exam.questions().items() if number != "02"}
    monkeypatch.setattr(exam, "questions", lambda: kept)
    text = instructor.page(LESSONS)
    assert text.count("**Exam**") == len(LESSONS) - 1 == text.count("**Answer**")
    assert text.count("**Discuss**") == len(LESSONS) and "## 02" not in instructor.exam_sheet(LESSONS)


def test_the_command_says_where_it_has_written(monkeypatch, tmp_path, capsys, page):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_a.ipynb").touch()
    monkeypatch.setattr(instructor, "every", lambda folder: LESSONS)
    assert main(["lessons", "instructor"]) == 0 and instructor.FILE.read_text(encoding="utf-8") == page
    sheet = instructor.FILE.with_name("exam.md")
    said = f"build/instructor/instructor.md is written, and the exam without its answers: {sheet}.\n"
    assert capsys.readouterr().out == said
    questions, text = exam.questions(), sheet.read_text(encoding="utf-8")
    assert len(questions) == len(LESSONS)
    for number, question in questions.items():
        assert text.count(question.asked) == 1 and question.answer not in text, number
    assert main(["lessons", "instructor"]) == 0


def test_what_a_lesson_needs_are_earlier_lessons_that_it_names():
    needs = {path.name[:2]: instructor.needed(path.name[:2], cells) for path, cells in LESSONS}
    assert needs["00"] == [] and {"08", "11"} <= set(needs["14"])
    assert all(each < number for number, named in needs.items() for each in named)


def test_a_lesson_does_not_need_itself_nor_what_follows():
    cells = [{"cell_type": "markdown", "source": "As lessons 02, 03 and 07 say, and lesson 04; lesson 5 is no number."}]
    cells += [
        {"cell_type": "code", "source": "# lesson 01"},
        {"cell_type": "markdown", "source": "## Further\n\nSee lesson 00."},
    ]
    assert instructor.needed("04", cells) == ["02", "03"]
    assert instructor.discussion(cells) == []


def test_no_notebook_holds_an_exam_question():
    texts = "\n".join(source(cell) for _, cells in LESSONS for cell in cells)
    assert not any(question.asked.splitlines()[0] in texts for question in exam.questions().values())


def test_a_lesson_says_what_it_builds_on():
    titles = {path.name[:2]: pages.title(path) for path, _ in LESSONS}
    for path, cells in LESSONS:
        number = path.name[:2]
        _, about = islice(instructor._lesson(path, cells, titles, exam.questions()[number]), 2)
        named = ", ".join(titles[each] for each in instructor.needed(number, cells))
        assert about.endswith(f". It builds on: {named or 'nothing'}.")
