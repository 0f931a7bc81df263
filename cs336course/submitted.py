"""Prepare what students submit for nbgrader, which cannot handle cells that were deleted or copied, or that show nothing, and
name those whom it has not graded.
"""

from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from shlex import quote
from typing import Any

from nbformat import from_dict
from nbformat.v4 import new_output
from nbgrader.api import Gradebook
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.plugins import CsvExportPlugin
from nbgrader.preprocessors import NbGraderPreprocessor

from cs336course.assignment import POINTS, marks
from cs336kit.files import write_whole


def unmarked(notebooks: Iterable[str], **_: object) -> None:
    """Remove the byte order mark that some editors write, with which nbgrader considers a notebook broken."""
    for path in map(Path, notebooks):
        if (data := path.read_bytes()).startswith(BOM_UTF8):
            write_whole(path, data.removeprefix(BOM_UTF8))


class Mended(NbGraderPreprocessor):  # type: ignore[misc]
    """A step of autograding, before OverwriteCells (`nbgrader_config.py`); without it the whole notebook would count as 0.

    A missing cell that gives points is added, empty, at the end, where OverwriteCells fills it (its own setting for that,
    `add_missing_cells`, fails if the task is missing, too). A copied cell becomes the student's own, from wherever it is. The
    state of widgets is dropped, because nbconvert cannot read what Colab leaves of it.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """The notebook, repaired in place, and the unchanged resources."""
        nb.metadata.pop("widgets", None)
        told, there = resources["nbgrader"], set()
        with Gradebook(told["db_url"]) as book:
            released = book.find_notebook(told["notebook"], told["assignment"])
            known = {cell.name for cell in released.source_cells}
            graded = {cell.name: cell.max_score for cell in released.grade_cells}
        for cell in nb.cells:
            data = cell.metadata.get("nbgrader", {})
            # DeduplicateIds leaves a copy without a name. One of another nbgrader would end the run for all students.
            if data.get("grade_id") in known and data.get("schema_version") == MetadataValidator.schema_version:
                there.add(data["grade_id"])
            else:
                cell.metadata.pop("nbgrader", None)
        for name, points in sorted(graded.items()):
            if name in there:
                continue
            cell = {"cell_type": "code", "execution_count": None, "outputs": [], "source": ""}
            nb.cells.append(from_dict({**cell, "metadata": {"nbgrader": marks(name, points=points)}}))
        return nb, resources


class Scored(NbGraderPreprocessor):  # type: ignore[misc]
    """A step of autograding, after Execute (`nbgrader_config.py`): a cell that shows no points gives none.

    nbgrader gives all of them if a cell shows nothing, no number, or one below 0. It gives none if anything, from
    whatever source, is on stderr, so that becomes a part of what the cell prints.
    """

    def preprocess_cell(self, cell: Any, resources: Any, index: int) -> tuple[Any, Any]:
        """The cell, with an error before its outputs unless it shows exactly one number from 0 to its points."""
        told = cell.metadata.get("nbgrader", {})
        if not told.get("grade_id", "").startswith(POINTS):
            return cell, resources
        shown = [output for output in cell.outputs if output.output_type == "execute_result"]
        for output in cell.outputs:
            if output.get("name") == "stderr":
                output.name = "stdout"
        try:
            [points] = [float(output.data["text/plain"]) for output in shown]
        except (KeyError, ValueError):
            points = -1
        if not 0 <= points <= told["points"]:
            why = f"This cell shows no number from 0 to {told['points']:g}, so it gives no points."
            cell.outputs.insert(0, new_output("error", ename="NoPoints", evalue=why, traceback=[f"NoPoints: {why}"]))
        return cell, resources


class Table(CsvExportPlugin):  # type: ignore[misc]
    """The table of `nbgrader export` (`nbgrader_config.py`), and a warning for everybody whose 0 in it means not graded.

    A killed `nbgrader autograde` leaves a submission without points, and the next one takes it for graded and skips it.
    """

    def export(self, gradebook: Gradebook) -> None:
        """Write the table, then name the submissions in which a cell of the course has no points, not even 0."""
        super().export(gradebook)
        for assignment in gradebook.assignments:
            for submission in assignment.submissions:
                grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
                if any(grade.name.startswith(POINTS) and grade.auto_score is None for grade in grades):
                    who, command = submission.student.id, f"nbgrader autograde {assignment.name}"
                    self.log.warning(f"{who} has 0, but was not graded: {command} --student {quote(who)} --force")
