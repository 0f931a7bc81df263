"""A whole course in nbgrader's own commands: release, hand in, autograde, feedback, and the points that its gradebook holds."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook

from cs336kit.course.assignment import write
from cs336kit.course.lessons import read

ROOT = Path(__file__).parents[2]
[LESSON] = (ROOT / "notebooks").glob("07_*.ipynb")
NAME = LESSON.stem
#: The first three exercises of the lesson, and what they give.
POINTS = {"points-07-1": 5, "points-07-2": 15, "points-07-3": 8}
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
LOOPS = """from cs336kit.teach.exercises import running

running.LIMIT = 2


def timed(machine, warmup, repeats):
    while True:
        pass
"""
ENDLESS = "while True:\n    pass"
WRITES = "def smallest_batch(ridge, d, p):\n    open({!r}, 'w').write('I was here')\n"
NO_BYTES = "def smallest_batch(ridge, d, p):\n    return max(1, int(ridge * p // 2))\n"

pytestmark = pytest.mark.timeout(1200)  # five kernels, one after another


def nbgrader(course, *arguments):
    """Run one of nbgrader's commands in the folder of the course."""
    command = [sys.executable, "-m", "nbgrader", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=course, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def without_its_text(folder):
    """The lesson with its imports and its first three exercises alone, which is quicker to run."""
    cells, short = read(LESSON), []
    for place, cell in enumerate(cells):
        if "solution" in cell["metadata"].get("tags", []):
            short += cells[place - 2 : place + 1]
    (folder / LESSON.name).write_text(json.dumps({"cells": [*cells[:2], *short[:9]]}))
    return ["".join(cell["source"]) for cell in short[2:9:3]]


def handed_in(course, student, *answers, first=(), change=lambda notebook: None):
    """A submission: the stubs of the released notebook, replaced by these answers, and cells before all others; changed."""
    notebook = nbformat.read(course / "release" / NAME / LESSON.name, as_version=4)
    stubs = [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", [])]
    for stub, answer in zip(stubs, answers, strict=False):
        stub.source = answer
    notebook.cells[:0] = map(nbformat.v4.new_code_cell, first)
    change(notebook)
    folder = course / "submitted" / student / NAME
    folder.mkdir(parents=True)
    nbformat.write(notebook, folder / LESSON.name)


def torn(notebook):
    """The first task without the cell that gives its points, the second one gone, the third one's stub copied; from Colab."""
    gone = ("points-07-1", "answer-07-2", "points-07-2")
    named = [(cell.metadata.get("nbgrader", {}).get("grade_id"), cell) for cell in notebook.cells]
    notebook.cells = [cell for id, cell in named if id not in gone]
    notebook.cells.append(copy.deepcopy(dict(named)["answer-07-3"]))
    notebook.nbformat_minor = 0
    notebook.metadata.update(colab={"provenance": []}, widgets={"application/vnd.jupyter.widget-state+json": {}})
    for cell in notebook.cells:
        cell.metadata.id = cell.pop("id")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course after grading, with one student of every kind."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "notebooks").mkdir()
    solutions = without_its_text(folder / "notebooks")
    list(write(["07"], folder / "notebooks", folder))
    with (folder / "nbgrader_config.py").open("a") as config:
        config.write(f"c.ExecutePreprocessor.timeout_func = lambda cell: 1 if cell.source == {ENDLESS!r} else 60\n")
    nbgrader(folder, "generate_assignment", NAME)

    named = zip(solutions, ("timed", "smallest_batch", "answer"), strict=True)
    right = [re.sub(r"\bsolution\b", name, text[: text.index("teach.")]) for text, name in named]
    handed_in(folder, "right", *right)
    handed_in(folder, "half", FASTEST, NO_BYTES, 'answer = ("B", 1.0, "A")')
    handed_in(folder, "empty")
    # One kernel for all that could do harm: none of it may keep what comes after it from its points.
    writes, own = WRITES.format(str(folder / "note.txt")), "open('note.txt', 'w').write('mine')"
    handed_in(folder, "harms", LOOPS, writes, right[2], first=(ENDLESS, own))
    handed_in(folder, "torn", *right, change=torn)
    nbgrader(folder, "autograde", NAME)
    nbgrader(folder, "generate_feedback", NAME)
    return folder


@pytest.fixture
def points(course):
    """The points of a student, by exercise, as the gradebook has them."""

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
    assert points("right") == [*POINTS.values()]


def test_half_right_answers_get_a_part_and_the_feedback_names_the_mistake(course, points):
    timed, batch, decision = points("half")
    assert 0 < timed < 5 and 0 <= batch < 15 and decision == round(8 * 2 / 3, 2)
    page = feedback(course, "half")
    assert "this is the fastest call; the task asks for the median." in page
    assert "fewer bytes do shorten it: what limits this layer is reading its weights." in page


def test_the_stubs_get_nothing(course, points):
    assert points("empty") == [0, 0, 0] and "07.1 waiting" in feedback(course, "empty")


def test_deleted_and_copied_cells_cost_no_points_of_other_tasks(points):
    assert points("torn") == [5, 0, 8]


def test_what_loops_is_stopped_and_the_other_points_are_kept(course, points):
    assert points("harms") == [0, 0, 8]
    page = feedback(course, "harms")
    assert "did not return within 2 seconds" in page and "KeyboardInterrupt" in page


def test_what_writes_a_file_in_an_answer_is_stopped_and_a_cell_writes_into_its_own_folder(course, points):
    assert points("harms") == [0, 0, 8] and "an answer may not do that here" in feedback(course, "harms")
    # nbgrader copies what lies beside the notebook into the feedback.
    own = {f"autograded/harms/{NAME}/note.txt", f"feedback/harms/{NAME}/note.txt"}
    assert {str(path.relative_to(course)) for path in course.rglob("note.txt")} == own
    parts = {"notebooks", "source", "release", "submitted", "autograded", "feedback", "gradebook.db"}
    assert {path.name for path in course.iterdir()} - {".nbgrader.log", "nbgrader_config.py"} == parts
