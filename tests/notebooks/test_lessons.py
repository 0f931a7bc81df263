"""The anatomy of every lesson, and that there is no notebook beside the lessons."""

import subprocess
from pathlib import Path

import nbformat
import pytest

from cs336kit.course.lessons import BEGIN, END, between
from cs336kit.course.structure import problems

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def notebooks():
    return {path: nbformat.read(path, as_version=4) for path in LESSONS}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_anatomy(path, notebooks):
    found = problems(notebooks[path], path)
    assert not found, "\n".join([path.name, *found])


def test_the_table_of_lessons_is_replaced_and_nothing_else():
    assert between(f"a{BEGIN}old{END}b{BEGIN}c{END}d", BEGIN, END, "new") == f"a{BEGIN}\nnew\n{END}b{BEGIN}c{END}d"
    for lacking in (BEGIN, END):
        with pytest.raises(ValueError, match="README.md lacks the lines"):
            between(lacking, BEGIN, END, "new")


def test_lessons_are_numbered_without_gaps():
    assert [path.name[:2] for path in LESSONS] == [f"{i:02}" for i in range(len(LESSONS))]


def test_every_notebook_is_a_lesson():
    """Also in folders that pytest leaves out, and under names that nbval does not take for a notebook."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if there.returncode:
        pytest.skip("this is no clone: git does not know what belongs to it")
    found = {ROOT / line for line in there.stdout.splitlines() if line.lower().endswith(".ipynb")}
    assert found <= {*LESSONS}
