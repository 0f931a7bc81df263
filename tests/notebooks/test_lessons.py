"""The anatomy of every lesson, and that there is no notebook beside the lessons."""

import re
import subprocess
from pathlib import Path

import nbformat
import pytest

from cs336course import verify
from cs336course.readme import BEGIN, END, between
from cs336course.structure import problems

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


@pytest.fixture(scope="module")
def notebooks():
    return {path: nbformat.read(path, as_version=4) for path in LESSONS}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_anatomy(path, notebooks):
    found = problems(notebooks[path], path)
    assert not found, "\n".join([path.name, *found])


def test_the_last_lesson_looks_up_guesses_under_the_names_that_their_questions_have(notebooks):
    def code(path):
        return "\n".join(cell.source for cell in notebooks[path].cells if cell.cell_type == "code")

    asked = re.search(r"^asked = \((.*)\)$", code(LESSONS[-1]), flags=re.M)
    questions = re.findall(r'"(.*?)"', asked[1])
    assert len(questions) == 2 and all(f'of="{question}"' in code(LESSONS[0]) for question in questions)
    assert 'of="the run, once more", computed=answer)' in code(LESSONS[-1])


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


def test_verifying_a_lesson_looks_at_its_cells_its_numbers_and_its_anatomy(monkeypatch):
    monkeypatch.chdir(ROOT)
    found = []

    def collected(command):
        done = subprocess.run([*command, "--collect-only"], capture_output=True, text=True, encoding="utf-8")
        found.extend(line for line in done.stdout.splitlines() if "::" in line)
        return done.returncode

    monkeypatch.setattr(verify.subprocess, "call", collected)
    assert verify.verify(["5", "02"]) == 0
    tests = {line.split("/")[-1] for line in found if "test_" in line}
    stems = "02_rounding", "05_einops"
    assert {f"test_lessons.py::test_anatomy[{stem}]" for stem in stems} <= tests
    assert {f"test_prose.py::test_every_number_is_tied_or_listed[{stem}]" for stem in stems} <= tests
    assert {f"test_prose.py::test_shares_formulas_and_years_are_listed_and_true[{stem}]" for stem in stems} <= tests
    assert "test_prose.py::test_constants_are_needed_and_true[02]" in tests and len(tests) <= 8
    cells = {line.split("::")[0] for line in found if "ipynb" in line}
    assert cells == {f"notebooks/{stem}.ipynb" for stem in stems}
