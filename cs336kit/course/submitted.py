"""What a student has handed in, made ready for nbgrader, which stumbles over cells that were cut out or copied."""

from typing import Any

from nbformat import from_dict
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from cs336kit.course.assignment import marks


class Mended(NbGraderPreprocessor):  # type: ignore[misc]
    """A step of autograding, before OverwriteCells (`nbgrader_config.py`); without it the whole notebook would count as 0.

    A cell that gives points and is gone comes back, empty, at the end, where OverwriteCells fills it (its own setting for
    that, `add_missing_cells`, fails where the task is gone, too). A copied cell becomes the student's own. The state of
    widgets is forgotten, because nbconvert cannot read what Colab leaves of it.
    """

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """The notebook, mended in place, and the resources as they were."""
        nb.metadata.pop("widgets", None)
        told, there = resources["nbgrader"], set()
        for cell in nb.cells:
            # DeduplicateIds leaves a copy without a name, which is then taken for a cell of an old nbgrader.
            if name := cell.metadata.get("nbgrader", {}).get("grade_id"):
                there.add(name)
            else:
                cell.metadata.pop("nbgrader", None)
        with Gradebook(told["db_url"]) as book:
            graded = book.find_notebook(told["notebook"], told["assignment"]).grade_cells
            missing = {cell.name: cell.max_score for cell in graded if cell.name not in there}
        for name, points in sorted(missing.items()):
            cell = {"cell_type": "code", "execution_count": None, "outputs": [], "source": ""}
            nb.cells.append(from_dict({**cell, "metadata": {"nbgrader": marks(name, points=points)}}))
        return nb, resources
