"""A whole course in nbgrader's own commands: release, hand in, autograde, feedback, and the points that its gradebook holds."""

import contextlib
import copy
import json
import os
import re
from pathlib import Path
from unittest import mock

import nbformat
import pytest

from cs336course.assignment import write
from cs336course.lessons import read

ROOT = Path(__file__).parents[2]
[LESSON] = (ROOT / "notebooks").glob("07_*.ipynb")
NAME = LESSON.stem
#: The exercises of the lesson, and what they give.
POINTS = {"points-07-1": 15, "points-07-2": 8, "points-07-3": 8, "points-07-4": 5, "points-07-5": 10}
FASTEST = """def timed(machine, warmup, repeats):
    for _ in range(warmup):
        machine.launch()
    times = []
    for _ in range(repeats):
        machine.wait()
        start = machine.clock()
        machine.launch()
        machine.wait()
        times.append(machine.clock() - start)
    return min(times)
"""
#: An answer that never ends, for whose end nobody need wait as long as for a slow one; nor for that of such a cell.
LOOPS = """from cs336kit.teach.exercises import sandbox

sandbox.LIMIT = 2


def timed(machine, warmup, repeats):
    while True:
        pass
"""
ENDLESS = "while True:\n    pass"
WRITES = "def smallest_batch(ridge, d, p):\n    open({!r}, 'w').write('I was here')\n"
#: What of a cell is shown, from here on: its last expression, or nothing.
SHOWS = "get_ipython().ast_node_interactivity = {!r}\n"

pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(1200),  # two kernels, one after another
    pytest.mark.filterwarnings("ignore:Object of type <Submitted"),  # nbgrader's own, of its gradebook
]


def nbgrader(course, *arguments):
    """Run one of nbgrader's commands in the folder of the course, in this process, as its own tests do.

    Its imports take two seconds: they are done once for all commands, and in no process that has none to run.
    """
    from nbgrader.apps.nbgraderapp import NbGraderApp

    with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)), contextlib.chdir(course):
        try:
            NbGraderApp.launch_instance([*arguments])  # which ends with SystemExit where anything fails
        finally:
            NbGraderApp.instance().reset()


def without_its_text(folder):
    """The lesson with its imports and its exercises alone, which is quicker to run."""
    cells, short = read(LESSON), []
    for place, cell in enumerate(cells):
        if "solution" in cell["metadata"].get("tags", []):
            short += cells[place - 2 : place + 1]
    (folder / LESSON.name).write_text(json.dumps({"cells": [*cells[:2], *short]}))
    return ["".join(cell["source"]) for cell in short[2::3]]


def handed_in(course, student, *answers, first=(), change=lambda notebook: None, encoding="utf-8"):
    """A submission: the stubs of the released notebook, replaced by these answers, and cells before all others; changed."""
    notebook = nbformat.read(course / "release" / NAME / LESSON.name, as_version=4)
    stubs = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])]
    for stub, answer in zip(stubs, answers, strict=True):
        stub.source = answer or stub.source
    notebook.cells[:0] = map(nbformat.v4.new_code_cell, first)
    change(notebook)
    folder = course / "submitted" / student / NAME
    folder.mkdir(parents=True)
    (folder / LESSON.name).write_text(nbformat.writes(notebook), encoding=encoding)


def torn(notebook):
    """The first task gone, the second one's stub copied, the last one without the cell that gives its points; from Colab."""
    gone = ("points-07-4", "answer-07-1", "points-07-1")
    named = [(cell.metadata.get("nbgrader", {}).get("grade_id"), cell) for cell in notebook.cells]
    notebook.cells = [cell for id, cell in named if id not in gone]
    notebook.cells.append(copy.deepcopy(dict(named)["answer-07-2"]))
    notebook.nbformat_minor = 0
    notebook.metadata.update(colab={"provenance": []}, widgets={"application/vnd.jupyter.widget-state+json": {}})
    for cell in notebook.cells:
        cell.metadata.id = cell.pop("id")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course after grading.

    Each student has a kernel, and torch in it, for seconds: there are two, and each has answers of several kinds.
    """
    folder = tmp_path_factory.mktemp("course")
    (folder / "notebooks").mkdir()
    solutions = without_its_text(folder / "notebooks")
    list(write(["07"], folder / "notebooks", folder))
    with (folder / "nbgrader_config.py").open("a") as config:
        config.write(f"c.ExecutePreprocessor.timeout_func = lambda cell: 1 if cell.source == {ENDLESS!r} else 60\n")
        # Nor for what a kernel does at its end.
        config.write("c.ExecutePreprocessor.shutdown_kernel = 'immediate'\n")
    nbgrader(folder, "generate_assignment", NAME)

    named = zip(solutions, ("smallest_batch", "answer", "chain_seconds", "timed", "utilization"), strict=True)
    right = [re.sub(r"\bsolution\b", name, text[: text.index("teach.")]) for text, name in named]
    # One kernel for all that could do harm: none of it may keep what comes after it from its points.
    writes, own = WRITES.format(str(folder / "note.txt")), "open('note.txt', 'w').write('mine')"
    # nbgrader gives all points where none are shown.
    half = SHOWS.format("last_expr") + 'answer = ("B", 1.0, "A")'
    handed_in(folder, "harms", writes + SHOWS.format("none"), half, right[2], LOOPS, right[4], first=(ENDLESS, own))
    handed_in(folder, "torn", right[0], right[1], None, FASTEST, None, change=torn, encoding="utf-8-sig")
    nbgrader(folder, "autograde", NAME)
    nbgrader(folder, "generate_feedback", NAME)
    return folder


@pytest.fixture
def points(course):
    """The points of a student, by exercise, as the gradebook has them."""
    from nbgrader.api import Gradebook

    def of(student):
        with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
            grades = book.find_submission_notebook(NAME, NAME, student).grades
            assert {grade.name: grade.max_score for grade in grades} == POINTS
            assert not any(grade.needs_manual_grade for grade in grades)
            return [score for _, score in sorted((grade.name, grade.auto_score) for grade in grades)]

    return of


def feedback(course, student):
    return (course / "feedback" / student / NAME / f"{NAME}.html").read_text()


def test_what_is_released_has_no_solution(course):
    text = (course / "release" / NAME / LESSON.name).read_text()
    assert "SOLUTION" not in text and "return ..." in text and "YOUR CODE" not in text


def test_the_right_answers_get_all_points(points):
    assert points("torn")[1] == points("harms")[2] == 8 and points("harms")[4] == 10


def test_half_right_answers_get_a_part_and_the_feedback_names_the_mistake(course, points):
    assert 0 < points("torn")[3] < 5 and points("harms")[1] == round(8 * 2 / 3, 2)
    assert "this is the fastest call; the task asks for the median." in feedback(course, "torn")
    assert "fewer bytes do shorten the time, because this layer is limited by reading its weights." in feedback(
        course, "harms"
    )


def test_a_stub_gets_nothing(course, points):
    assert points("torn")[2] == 0 and "07.3 waiting" in feedback(course, "torn")


def test_deleted_and_copied_cells_cost_no_points_of_other_tasks(points):
    gone, copied, stub, timed, _ = points("torn")
    assert timed > 0 and copied == 8 and gone == stub == 0


def test_what_loops_is_stopped_and_the_other_points_are_kept(course, points):
    _, *before, loops, after = points("harms")
    assert loops == 0 and all((*before, after))
    page = feedback(course, "harms")
    assert "did not return within 2 seconds" in page and "KeyboardInterrupt" in page


def test_what_writes_a_file_in_an_answer_is_stopped_and_a_cell_writes_into_its_own_folder(course, points):
    writes, *others, _, _ = points("harms")
    assert writes == 0 and all(others) and "an answer may not do that here" in feedback(course, "harms")
    # nbgrader copies what lies beside the notebook into the feedback.
    own = {f"autograded/harms/{NAME}/note.txt", f"feedback/harms/{NAME}/note.txt"}
    assert {str(path.relative_to(course)) for path in course.rglob("note.txt")} == own
    parts = {"notebooks", "source", "release", "submitted", "autograded", "feedback", "gradebook.db"}
    assert {path.name for path in course.iterdir()} - {".nbgrader.log", "nbgrader_config.py"} == parts
