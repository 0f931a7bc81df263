"""Lessons as assignments of nbgrader: ``cs336kit lessons assignment 07``; TEACHING.md says how they are handed out and graded.

The source of an assignment is the lesson for students (:mod:`cs336kit.course.student`) with one more cell below each stub. It
is locked, and runs the course's own check, so that the feedback names the mistake. An exercise has a point for each of its
minutes. There is no solution in the folder, and therefore nothing for nbgrader to cut out.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cs336kit.course import cells as kind
from cs336kit.course import student
from cs336kit.course.cells import Cell
from cs336kit.course.lessons import NOTEBOOKS, find, write_whole
from cs336kit.course.pages import EXERCISE

FOLDER = Path("my/course")
CONFIG = "nbgrader_config.py"
#: A decision is taken away (pop), because others have its name: where the next one is missing, it would be graded twice.
_GRADE = """from cs336kit.teach.exercises.grading import grade

grade({id!r}, globals().{take}({name!r}, None), of={points}, name={name!r})"""
#: How nbgrader's name of a cell that gives points begins.
POINTS = "points-"
#: Seconds for a cell outside of a check. A check gives up by itself, and no cell of a lesson takes as long as this.
_TIMEOUT = 120
_CONFIG = rf'''"""What nbgrader needs to know here; written once by `cs336kit lessons assignment`, and yours to change."""

import os
import sys

# nbgrader calls a command of this environment, which need not be activated.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
c = get_config()
c.CourseDirectory.course_id = {{name!r}}
# The stubs are empty already.
c.ClearSolutions.enabled = False
# Kernels of this machine alone talk to it, so nobody need be warned of that.
c.ExecutePreprocessor.extra_arguments = ["--log-level=ERROR"]
# What runs longer is stopped, and the notebook goes on with the next cell.
c.ExecutePreprocessor.timeout = {_TIMEOUT}
# A student may have deleted or copied cells: before nbgrader looks at their names, they are mended.
c.Autograde.sanitize_preprocessors.insert(3, "cs336kit.course.submitted.Mended")
# A file that begins with a byte order mark is read, too.
c.Autograde.pre_convert_hook = "cs336kit.course.submitted.unmarked"
# When the cells have run: where nbgrader would give all points to a cell that shows none, this gives none.
c.Autograde.autograde_preprocessors.insert(1, "cs336kit.course.submitted.Scored")
# Where zip_collect finds the student's and the file's name. This is for Moodle's archives, and students whose names differ.
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[^/]+?)_\d+_assignsubmission_file.*/(?P<file_id>[^/]+)"
)
# A student's guesses are not yours, and figures are not opened.
os.environ.update(CS336KIT_GUESSES=os.devnull + "/none", OMP_NUM_THREADS="1")
'''


def graded(cells: Sequence[Cell]) -> tuple[list[Cell], int]:
    """The cells of a lesson for students, with a locked cell below each stub that gives its points; and all points."""
    found: list[Cell] = []
    total = points = 0
    for cell in cells:
        text = kind.source(cell)
        if task := EXERCISE.match(text):
            points = int(task[3])
        stub = student.CHECK.search(text) if kind.is_code(cell) else None
        if not stub:
            found.append(cell)
            continue
        id, name = stub.groups()
        data = cell["metadata"] | {"nbgrader": marks(f"answer-{id}", solution=True)}
        found.append(cell | {"metadata": data})
        lock = {"tags": ["check"], "nbgrader": marks(f"{POINTS}{id}", points=points)}
        # What a function is called may be used further below.
        take = "get" if f"def {name}(" in text else "pop"
        text = _GRADE.format(id=id, take=take, name=name, points=points)
        found.append({"cell_type": "code", "execution_count": None, "metadata": lock, "outputs": [], "source": text})
        total += points
    kind.identify(found)
    return found, total


def marks(name: str, solution: bool = False, points: float | None = None) -> dict[str, Any]:
    """nbgrader's metadata of a cell: one to be filled in, or a locked one that gives points."""
    marks: dict[str, Any] = {"grade": not solution, "solution": solution, "locked": not solution}
    marks |= {"task": False, "schema_version": 3, "grade_id": re.sub(r"\W", "-", name)}
    return marks if points is None else marks | {"points": points}


def write(names: list[str], folder: Path = NOTEBOOKS, into: Path = FOLDER) -> Iterator[str]:
    """Write the lessons of these numbers (all for none) as assignments; yields a line for each, and a sentence at the end.

    Raises ValueError before anything is written: for an unknown lesson, for one that shows an answer, for a source that
    somebody has changed, and for an assignment that is released or handed in and would become another one. Raises OSError
    where the folder cannot be written.
    """
    made = []
    for path in find(names, folder):
        cells, points = graded(student.checked(path, [path.name]))
        source, data = into / "source" / path.stem / path.name, student.notebook(cells)
        student.refuse_work(source)
        out = [into / "release" / path.stem, *into.glob(f"submitted/*/{path.stem}")]
        if there := [
            str(place) for place in out if place.exists() and not (source.exists() and source.read_bytes() == data)
        ]:
            raise ValueError(
                f"{path.stem} is handed out already, and the lesson is another one now: {there[0]} is there. "
                "Grade it first, or begin a new course folder with --into."
            )
        made.append((path, source, data, cells, points))
    for path, source, data, cells, points in made:
        source.parent.mkdir(parents=True, exist_ok=True)
        write_whole(source, data)
        student.copy_images(cells, folder, source.parent)
        yield f"{path.stem}: {points} points"
    if not (into / CONFIG).exists():
        write_whole(into / CONFIG, _CONFIG.format(name=into.resolve().name).encode())
    yield f"Written into {into}/source/. Next, in {into}/: nbgrader generate_assignment {made[0][0].stem}"
