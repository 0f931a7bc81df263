"""Assignments of nbgrader: every exercise gives its minutes as points, and nothing that was handed out or changed is lost."""

import copy
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.nbgraderformat import reads
from nbgrader.plugins import FileNameCollectorPlugin
from nbgrader.utils import determine_grade, is_grade, is_locked, is_solution, is_task
from traitlets.config import PyFileConfigLoader

from cs336course import cells as kind
from cs336course.assignment import CONFIG, FOLDER, POINTS, graded, marks, write
from cs336course.lessons import every
from cs336course.pace import exercises
from cs336course.student import leaks, without_answers
from cs336course.submitted import Mended, Scored, Table, unmarked
from cs336kit.command import main
from cs336kit.journal import OFF
from cs336kit.teach.exercises import load

ROOT = Path(__file__).parents[2]
LESSONS = dict(every(ROOT / "notebooks"))


def asked(cells):
    """The minutes of a lesson's exercises."""
    return sum(int(found[3]) for found in exercises(cells))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_exercise_is_graded_for_its_minutes_by_a_locked_cell_below_it(path):
    cells, points = graded(without_answers(LESSONS[path], []))
    assert points == asked(LESSONS[path]) and leaks(cells, LESSONS[path]) == []
    text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    notebook = reads(text, as_version=4)  # nbgrader's own reader refuses metadata that it does not know
    nbformat.validate(notebook)
    stubs = [i for i, cell in enumerate(notebook.cells) if is_solution(cell)]
    assert [i + 1 for i in stubs] == [i for i, cell in enumerate(notebook.cells) if is_grade(cell)]
    assert len(stubs) == sum("exercise" in kind.tags(cell) for cell in notebook.cells) > 0
    for place in stubs:
        stub, check = notebook.cells[place], notebook.cells[place + 1]
        given = re.fullmatch(
            r"from .* import grade\n\ngrade\('(.*)', globals\(\)\.(get|pop)\('(\w+)', None\), of=(\d+), name='\3'\)",
            check.source,
        )
        assert f'check("{given[1]}", {given[3]})' in stub.source and int(given[4]) == check.metadata.nbgrader.points
        # Of several decisions with one name, none is graded in the place of the next; functions stay for who uses them.
        assert (given[2] == "pop") == load(given[1]).decision
        assert is_locked(check) and not is_locked(stub) and not is_task(check) and not is_task(stub)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with two lessons of the course."""
    monkeypatch.chdir(tmp_path)
    Path("notebooks").mkdir()
    for path in [*LESSONS][:2]:
        (Path("notebooks") / path.name).write_bytes(path.read_bytes())
    return [path.stem for path in [*LESSONS][:2]]


def test_the_command_says_what_to_do_next_and_can_be_repeated(clone, capsys):
    for _ in range(2):
        assert main(["lessons", "assignment"]) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[0] == f"{clone[0]}: {asked(next(iter(LESSONS.values())))} points" and len(said) == 3
        assert said[-1].endswith(f"Next, in my/course/: nbgrader generate_assignment {clone[0]}")
    assert {path.name for path in FOLDER.iterdir()} == {"source", CONFIG}
    # A lesson alone in its folder links to no other.
    assert ".ipynb)" not in (FOLDER / "source" / clone[1] / f"{clone[1]}.ipynb").read_text()


def test_nbgrader_reads_what_it_has_to_know(clone, monkeypatch):
    list(write(["0"]))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    told = PyFileConfigLoader(CONFIG, path=str(FOLDER)).load_config()
    autograde = told.pop("Autograde")
    sanitize = autograde.sanitize_preprocessors.get_value(Autograde.sanitize_preprocessors.default())
    assert [getattr(one, "__name__", one) for one in sanitize] == [
        "ClearOutput", "DeduplicateIds", "OverwriteKernelspec", "cs336course.submitted.Mended", "OverwriteCells",
        "CheckCellMetadata",
    ]  # fmt: skip
    steps = autograde.autograde_preprocessors.get_value(Autograde.autograde_preprocessors.default())
    assert [getattr(one, "__name__", one) for one in steps[:3]] == [
        "Execute", "cs336course.submitted.Scored", "IgnorePattern",
    ]  # fmt: skip
    assert autograde.pre_convert_hook == "cs336course.submitted.unmarked"
    collected = FileNameCollectorPlugin(config=told).collect(
        "downloaded/03/extracted/all/Ada Lovelace_12345_assignsubmission_file/03_strides_and_views.ipynb"
    )
    assert collected == {"student_id": "Ada Lovelace", "file_id": "03_strides_and_views.ipynb"}
    del told["FileNameCollectorPlugin"]
    assert told == {
        "CourseDirectory": {"course_id": "course"},
        "ClearSolutions": {"enabled": False},
        "ExportApp": {"plugin_class": "cs336course.submitted.Table"},
        "ExecutePreprocessor": {"extra_arguments": ["--log-level=ERROR"], "timeout": 120},
    }
    assert os.environ["PATH"].startswith(os.path.dirname(sys.executable) + os.pathsep)
    assert os.environ["CS336KIT_GUESSES"] == OFF and os.environ["OMP_NUM_THREADS"] == "1"


def result(text):
    return new_output("execute_result", {"text/plain": text})


STDERR = new_output("stream", name="stderr", text="a warning")


@pytest.mark.parametrize(
    ("outputs", "points"),
    [
        ([result("3.67")], 3.67),
        ([result("0.0")], 0),
        ([STDERR, result("6.0")], 6),
        ([], 0),
        ([STDERR], 0),
        ([result("-5")], 0),
        ([result("nan")], 0),
        ([result("1e6")], 0),
        ([result("'all'")], 0),
        ([result("6.0"), result("6.0")], 0),
        ([new_output("execute_result", {"text/html": "6.0"})], 0),
        ([new_output("error", ename="KeyboardInterrupt")], 0),
    ],
)
def test_what_shows_no_points_gives_none(outputs, points):
    cell = new_code_cell(outputs=copy.deepcopy(outputs), metadata={"nbgrader": marks(f"{POINTS}03.1", points=6)})
    Scored().preprocess_cell(cell, {}, 0)
    assert determine_grade(cell) == (points, 6)


@pytest.mark.parametrize(("shown", "wrong"), [("0.0", False), ("6.0", False), ("6.1", True), ("-0.1", True)])
def test_only_what_shows_no_points_gets_an_error(shown, wrong):
    """Who has tried and got 0 is told by the check why, and not that the cell shows no number."""
    cell = new_code_cell(outputs=[result(shown)], metadata={"nbgrader": marks(f"{POINTS}03.1", points=6)})
    Scored().preprocess_cell(cell, {}, 0)
    errors = [output.evalue for output in cell.outputs if output.output_type == "error"]
    assert errors == ["This cell shows no number from 0 to 6, so it gives no points."] * wrong


def test_a_lecturer_s_own_cells_are_graded_as_nbgrader_does():
    cell = new_code_cell("assert True", metadata={"nbgrader": marks("mine", points=6)})
    Scored().preprocess_cell(cell, {}, 0)
    assert determine_grade(cell) == (6, 6)


def test_cells_of_another_assignment_or_another_nbgrader_become_the_student_s_own(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # nbgrader calls alembic
    url = f"sqlite:///{tmp_path}/gradebook.db"
    with Gradebook(url) as book:
        book.add_assignment("03")
        book.add_notebook("03_a", "03")
        for number, points in ((1, 6), (2, 9)):
            book.add_solution_cell(f"answer-03-{number}", "03_a", "03")
            book.add_source_cell(f"answer-03-{number}", "03_a", "03", cell_type="code")
            book.add_grade_cell(f"points-03-{number}", "03_a", "03", max_score=points, cell_type="code")
            book.add_source_cell(f"points-03-{number}", "03_a", "03", cell_type="code")
    own = marks("answer-03.1", solution=True), marks("points-03.1", points=6)
    copied = marks("answer-04.1", solution=True), marks("points-04.1", points=5)
    old, new = (
        {**marks(f"{name}-03.2"), "schema_version": version} for name, version in (("answer", 1), ("points", 9))
    )
    cells = [new_code_cell(metadata={"nbgrader": data}) for data in (*own, *copied, old, new)]
    told = {"db_url": url, "notebook": "03_a", "assignment": "03"}
    notebook, _ = Mended().preprocess(nbformat.v4.new_notebook(cells=cells), {"nbgrader": told})
    kept = [cell.metadata.get("nbgrader") for cell in notebook.cells]
    assert kept == [*own, None, None, None, None, marks("points-03.2", points=9)]


def test_the_table_names_whom_a_killed_run_has_left_without_points(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # nbgrader calls alembic
    told = []
    table = Table(to=str(tmp_path / "grades.csv"), log=SimpleNamespace(info=lambda *_: None, warning=told.append))
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        book.add_assignment("03")
        book.add_notebook("03_a", "03")
        book.add_grade_cell("points-03-1", "03_a", "03", max_score=6, cell_type="code")
        book.add_grade_cell("essay", "03_a", "03", max_score=6, cell_type="markdown")  # a lecturer's own, read by them
        for student, points in (("ada", 6), ("Bob B.", None), ("cyd", 0)):
            book.add_student(student)
            # What nbgrader makes before the cells run, and what it fills in behind them.
            book.add_submission("03", student)
            book.find_grade("points-03-1", "03_a", "03", student).auto_score = points
        book.add_student("dan")  # has handed in nothing
        table.export(book)
    assert told == ["Bob B. has 0, but was not graded: nbgrader autograde 03 --student 'Bob B.' --force"]
    scores = [line.split(",")[-2] for line in (tmp_path / "grades.csv").read_text().splitlines()]
    assert scores == ["score", "6.0", "0.0", "0.0", "0.0"]


def test_a_byte_order_mark_is_taken_away(tmp_path):
    marked, other = tmp_path / "03_a.ipynb", tmp_path / "03_b.ipynb"
    marked.write_text("{}", encoding="utf-8-sig")
    other.write_bytes(b"\xff")
    unmarked(assignment="03", student="ada", notebooks=[str(marked), str(other)])
    assert (marked.read_bytes(), other.read_bytes()) == (b"{}", b"\xff")


def change_the_lesson(stem):
    path = Path(f"notebooks/{stem}.ipynb")
    path.write_text(path.read_text().replace("Napkin math", "Napkins"))


def refused(capsys, *arguments):
    assert main(["lessons", "assignment", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_an_untouched_source_follows_its_lesson_and_the_settings_stay(clone, capsys):
    main(["lessons", "assignment", "0"])
    (FOLDER / CONFIG).write_text("# mine")
    change_the_lesson(clone[0])
    assert main(["lessons", "assignment", "0"]) == 0
    assert "Napkins" in (FOLDER / "source" / clone[0] / f"{clone[0]}.ipynb").read_text()
    assert (FOLDER / CONFIG).read_text() == "# mine"


@pytest.mark.parametrize("place", ["release/{}", "submitted/ada/{}"])
def test_what_is_handed_out_stays_as_it_is(clone, capsys, place):
    list(write(["0"]))
    there = FOLDER / place.format(clone[0])
    there.mkdir(parents=True)
    assert main(["lessons", "assignment"]) == 0, "the same again changes nothing"
    capsys.readouterr()
    source = FOLDER / "source" / clone[0] / f"{clone[0]}.ipynb"
    before = source.read_bytes()
    change_the_lesson(clone[0])
    said = refused(capsys)
    assert said.startswith(f"{clone[0]} is handed out already") and str(there) in said
    assert source.read_bytes() == before


def test_a_lecturer_s_changes_are_never_overwritten(clone, capsys):
    list(write(["0"]))
    source = FOLDER / "source" / clone[0] / f"{clone[0]}.ipynb"
    source.write_text(source.read_text().replace("Napkin math", "My napkins"))
    before = source.read_bytes()
    assert "has somebody's work" in refused(capsys, "0") and source.read_bytes() == before


def test_bad_inputs_are_a_sentence_and_nothing_is_written(clone, capsys):
    assert "no lesson '42'" in refused(capsys, "42") and not FOLDER.exists()
    Path("a file").touch()
    assert refused(capsys, "0", "--into", "a file").endswith("cannot be read or written: Not a directory.\n")
