"""Lessons as assignments of nbgrader: ``cs336kit lessons assignment 07``; TEACHING.md says how they are handed out and graded.

The source of an assignment is the lesson for students (:mod:`cs336course.student`) with a locked cell below each stub,
which runs the course's own check, so that the feedback names the mistake. An exercise has a point for each of its minutes.
There is no solution in the folder, and so nothing for nbgrader to remove.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cs336course import cells as kind
from cs336course import student
from cs336course.cells import Cell
from cs336course.lessons import NOTEBOOKS, find
from cs336course.pace import EXERCISE
from cs336kit.files import write_whole

FOLDER = Path("my/course")
CONFIG = "nbgrader_config.py"
#: A decision is removed (pop), because others have the same name: if the next one is missing, it would be graded twice.
_GRADE = """from cs336kit.teach.exercises.grading import grade

grade({id!r}, globals().{take}({name!r}, None), of={points}, name={name!r})"""
#: The beginning of nbgrader's name for a cell that gives points.
POINTS = "points-"
#: Seconds for a cell apart from checks. A check gives up by itself, and no cell of a lesson takes this long.
_TIMEOUT = 120
_CONFIG = rf'''"""Settings for nbgrader, written once by `cs336kit lessons assignment`, and yours to change."""

import os
import sys

# nbgrader calls a command of this environment, which may not be activated.
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
c = get_config()
c.CourseDirectory.course_id = {{name!r}}
# The stubs are empty already.
c.ClearSolutions.enabled = False
# Only kernels of this machine talk to it, so it need not warn about that.
c.ExecutePreprocessor.extra_arguments = ["--log-level=ERROR"]
# A cell that runs longer is stopped, and the notebook continues with the next one.
c.ExecutePreprocessor.timeout = {_TIMEOUT}
# A student may have deleted or copied cells: this repairs them before nbgrader looks at their names.
c.Autograde.sanitize_preprocessors.insert(3, "cs336course.submitted.Mended")
# This also reads a file that begins with a byte order mark.
c.Autograde.pre_convert_hook = "cs336course.submitted.unmarked"
# After the cells have run: nbgrader would give all points to a cell that shows none; this gives it none.
c.Autograde.autograde_preprocessors.insert(1, "cs336course.submitted.Scored")
# nbgrader export also names those whom a killed nbgrader autograde has left without points, and whom the next one skips.
c.ExportApp.plugin_class = "cs336course.submitted.Table"
# How zip_collect finds the names of student and file. This is for Moodle's archives, and students with different names.
c.FileNameCollectorPlugin.named_regexp = (
    r".*/(?P<student_id>[^/]+?)_\d+_assignsubmission_file.*/(?P<file_id>[^/]+)"
)
# Keep students' guesses out of your own journal, and run everything in one thread.
os.environ.update(CS336KIT_GUESSES=os.devnull + "/none", OMP_NUM_THREADS="1")
'''


def graded(cells: Sequence[Cell]) -> tuple[list[Cell], int]:
    """The cells of a lesson for students, with a locked cell below each stub that gives its points; and the sum of points."""
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
        # A function may be used by its name further below.
        take = "get" if f"def {name}(" in text else "pop"
        text = _GRADE.format(id=id, take=take, name=name, points=points)
        found.append({"cell_type": "code", "execution_count": None, "metadata": lock, "outputs": [], "source": text})
        total += points
    kind.identify(found)
    return found, total


def marks(name: str, solution: bool = False, points: float | None = None) -> dict[str, Any]:
    """nbgrader's metadata for a cell: one to fill in, or a locked one that gives points."""
    marks: dict[str, Any] = {"grade": not solution, "solution": solution, "locked": not solution}
    marks |= {"task": False, "schema_version": 3, "grade_id": re.sub(r"\W", "-", name)}
    return marks if points is None else marks | {"points": points}


def write(names: list[str], folder: Path = NOTEBOOKS, into: Path = FOLDER) -> Iterator[str]:
    """Write the lessons with these numbers (all for none) as assignments; yields a line for each, and a sentence at the end.

    Raises ValueError before anything is written: for an unknown lesson, for one that shows an answer, for a source that
    somebody has changed, and for an assignment that is already released or submitted and would change. Raises OSError if
    the folder cannot be written.
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
                f"{path.stem} is handed out already, but the lesson has changed since: {there[0]} exists. "
                "Grade it first, or start a new course folder with --into."
            )
        made.append((path, source, data, cells, points))
    for path, source, data, cells, points in made:
        source.parent.mkdir(parents=True, exist_ok=True)
        write_whole(source, data)
        student.copy_images(cells, folder, source.parent)
        yield f"{path.stem}: {points} points"
    if not (into / CONFIG).exists():
        write_whole(into / CONFIG, _CONFIG.format(name=into.resolve().name))
    yield f"Written to {into}/source/. Next, in {into}/: nbgrader generate_assignment {made[0][0].stem}"
