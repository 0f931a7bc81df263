"""Every rule of the anatomy says no to something: a lesson that keeps all rules is changed in one place."""

import copy
from pathlib import Path

import nbformat
import pytest

from cs336kit.course import cells as kind
from cs336kit.course import flow
from cs336kit.course.structure import problems

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
#: A path in the folder of the lessons, under which there is none: what depends on the other lessons is left out.
PATH = NOTEBOOKS / "04_absent.ipynb"


@pytest.fixture(scope="module")
def lesson():
    """A lesson with every kind of cell."""
    return nbformat.read(NOTEBOOKS / "04_tensors_and_devices.ipynb", as_version=4)


def code(notebook, tag, number=0):
    return [c for c in notebook.cells if c.cell_type == "code" and any(t.startswith(tag) for t in kind.tags(c))][number]


def prose(notebook, start):
    return next(c for c in notebook.cells if c.cell_type == "markdown" and c.source.startswith(start))


def following(notebook, cell):
    later = notebook.cells[notebook.cells.index(cell) + 1 :]
    return next(c for c in later if c.cell_type == "code")


def plain(notebook):
    """A compared cell, and the next one."""
    first = next(c for c in notebook.cells if kind.is_code(c) and not kind.tags(c) and c.outputs)
    return first, following(notebook, first)


def exempted(n):
    first, then = plain(n)
    first.metadata["tags"], then.metadata["tags"] = ["measured:time"], ["verdict"]


def exempted_with_a_verdict_on_nothing(n):
    plain(n)[1].update(source="print('all is well')", outputs=plain(n)[0].outputs)
    exempted(n)


def exempted_with_a_verdict_on_it(n):
    first, then = plain(n)
    first.source, then.source = "shown = 3\nprint(shown)", "print('more' if shown > 2 else 'less')"
    exempted(n)
    first.metadata["run"] = kind.run_digest(first)
    then.outputs = first.outputs


def falsified(n):
    cell = code(n, "measured")
    cell.outputs[0] = nbformat.v4.new_output("stream", name="stdout", text="9 times\n")


def solution(text):
    """The solution is this text instead; what it prints is what it did."""

    def change(n):
        code(n, "solution").source = f"### BEGIN SOLUTION\n{text}\n### END SOLUTION"

    return change


CHECKED = 'teach.exercises.check_solution("04.1", solution)'
LIES = {
    "gpu: nothing on a GPU": (
        lambda n: code(n, "gpu").update(source="if teach.on_gpu():\n    pass"),
        "must be one block 'if teach.on_gpu():'",
    ),
    "gpu: the cell below the block": (
        lambda n: code(n, "gpu").update(source="if teach.on_gpu():\n    pass\nprint(6 * 7)"),
        "must be one block",
    ),
    "gpu: another condition": (
        lambda n: code(n, "gpu").update(source="if False:\n    print(teach.on_gpu())"),
        "must be one block",
    ),
    "gpu: an else": (
        lambda n: code(n, "gpu").update(source="if teach.on_gpu():\n    print(1)\nelse:\n    print(2)"),
        "must be one block",
    ),
    "skipped everywhere": (
        lambda n: plain(n)[0].metadata.update(tags=["needs:torch>=99"]),
        "in constraints.txt: it would be skipped everywhere",
    ),
    "skipped for a package that nobody has": (
        lambda n: plain(n)[0].metadata.update(tags=["needs:nonesuch>=1"]),
        "skipped everywhere",
    ),
    "exempt: compared cells": (exempted_with_a_verdict_on_nothing, "its verdict uses nothing that it sets"),
    "exempt: no clock": (exempted_with_a_verdict_on_it, "reads no clock"),
    "exempt: falsified": (falsified, "not left by a run"),
    "exempt: too many": (
        lambda n: [c.metadata.update(tags=["measured:time"]) for c in n.cells if not kind.tags(c)],
        "exempt from comparison; at most",
    ),
    "tolerance": (lambda n: plain(n)[0].metadata.update(tags=["approx:1e9"]), "a tolerance of 1e+09"),
    "claim": (lambda n: plain(n)[0].metadata.update(tags=["claim:napkin-144-days"]), "the tag 'claim:napkin-144-days'"),
    "widgets in the metadata": (lambda n: n.metadata.update(widgets={"state": {}}), "not the course's own"),
    "solution: checks the reference": (
        solution(f'solution = teach.exercises.core.load("04.1").reference\n{CHECKED}'),
        "reaches teach.exercises.core",
    ),
    "solution: imports the reference": (
        solution(f"from cs336kit.teach.exercises import lesson_04\nsolution = lesson_04.best_piece\n{CHECKED}"),
        "never a right answer",
    ),
    "solution: from an alias": (
        lambda n: plain(n)[0].update(source="answers = teach.exercises"),
        "reaches teach.exercises:",
    ),
    "solution: checked in a comment": (
        solution(f"solution = 1\nteach.exercises.check_solution('04.1', teach)  # {CHECKED}"),
        "should end with teach.exercises.check_solution('04.1', solution)",
    ),
    "solution: unmarked": (
        lambda n: code(n, "solution").update(source=f"solution = 1\n{CHECKED}"),
        "lacks its ### BEGIN SOLUTION",
    ),
    "an edited cell": (lambda n: plain(n)[0].update(source="1 + 1"), "edited after its outputs were stored"),
    "no question": (lambda n: n.cells[0].update(source="# 04 · Title\n\nNo question."), "in bold"),
    "a commented command": (lambda n: plain(n)[0].update(source="# !ls"), "was commented out"),
    "an error": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="warning")),
        "something on stderr",
    ),
    "a bitmap": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("display_data", {"image/png": "aa"})),
        "stores a bitmap",
    ),
    "a figure without alt text": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg></svg>"})),
        "without alt text of 40",
    ),
    "a symbol": (lambda n: n.cells[2].update(source="5 GFLOPS"), "write FLOPs"),
    "a path": (lambda n: n.cells[2].update(source="See /home/me/x."), "path of a machine"),
    "an exercise that does not wait": (lambda n: code(n, "exercise").update(outputs=[]), "show that it is waiting"),
}


def test_the_lesson_itself_keeps_every_rule(lesson):
    assert problems(lesson, PATH) == []


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_seen(lesson, lie):
    change, said = LIES[lie]
    changed = copy.deepcopy(lesson)
    change(changed)
    assert said in "\n".join(problems(changed, PATH))


@pytest.mark.parametrize(
    ("verdict", "uses"),
    [("print(took)", True), ("say()", True), ("twice()", True), ("print(other)", False), ("took = 3", False)],
)
def test_a_verdict_is_about_what_the_cell_sets(verdict, uses):
    before = ["other = 1\n\ndef say():\n    print(runs)\n\ndef twice():\n    say()"]
    assert flow.depends(verdict, "took = 3\nruns['a'] = 1", before) == uses


@pytest.mark.parametrize(
    ("cell", "timed"),
    [
        ("print(took)", True),
        ("measure.seconds(f)", True),
        ("fastest(f)", True),
        ("print(shape)", False),
        ("time = 3", False),
    ],
)
def test_a_time_comes_from_a_clock(cell, timed):
    before = [
        "import time\nshape = 3",
        "def fastest(f):\n    start = time.perf_counter()\n    f()\n    return time.perf_counter() - start",
        "took = fastest(print)",
        "%matplotlib inline\n!ls",
    ]
    assert flow.reads_a_clock(cell, before) == timed
