"""The anatomy of every lesson."""

from pathlib import Path

import nbformat
import pytest

from cs336kit.course.structure import problems
from cs336kit.teach import claims

LESSONS = sorted((Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def notebooks():
    return {path: nbformat.read(path, as_version=4) for path in LESSONS}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_anatomy(path, notebooks):
    assert problems(notebooks[path], path) == []


def test_a_claim_that_the_ledger_lacks_is_noticed():
    cell = nbformat.v4.new_code_cell("1", metadata={"tags": ["claim:earth-flat", f"claim:{claims('napkin')[0].id}"]})
    found = [problem for problem in problems(nbformat.v4.new_notebook(cells=[cell]), LESSONS[0]) if "ledger" in problem]
    assert len(found) == 1 and "'earth-flat'" in found[0]


def test_lessons_are_numbered_without_gaps():
    assert [path.name[:2] for path in LESSONS] == [f"{i:02}" for i in range(len(LESSONS))]
