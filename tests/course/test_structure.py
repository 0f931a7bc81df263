"""Every rule of the anatomy says no to something: a lesson that keeps all rules is changed in one place."""

import copy
from pathlib import Path

import nbformat
import pytest

from cs336course import cells as kind
from cs336course import exempt, flow
from cs336course.structure import problems

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


def prose_below(notebook):
    """The first prose below the title; in a fork, a cell that installs the kit may come first."""
    return next(c for c in notebook.cells[1:] if c.cell_type == "markdown")


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


def solution(text, end="\n### END SOLUTION"):
    """The solution is this text instead; what it prints is what it did."""

    def change(n):
        code(n, "solution").source = f"### BEGIN SOLUTION\n{text}{end}"

    return change


def imports(notebook):
    return next(c for c in notebook.cells if kind.is_code(c) and "page" not in kind.tags(c))


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
    "exempt: no reason": (
        lambda n: plain(n)[0].metadata.update(tags=["measured"]),
        "is tagged measured without a reason",
    ),
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
    "solution: nothing but a word of the task": (
        solution(f'solution = "04.1"\n### END SOLUTION\n{CHECKED}', end=""),
        "students would get an answer: all of the solution of 04.1 is shown",
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
    "a failure": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])),
        "stores an error",
    ),
    "a symbol in what is shown": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("stream", text="5 GFLOPS")),
        "write FLOPs",
    ),
    "no title": (lambda n: n.cells[0].update(source="# Tensors\n\n**Why?**"), "begins with '# NN · Title'"),
    "a solution that does not pass": (lambda n: code(n, "solution").update(outputs=[]), "solution), and pass"),
    "a solution without an end": (solution(f"solution = 1\n{CHECKED}", end=""), "lacks its ### BEGIN SOLUTION or"),
    "a bitmap": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("display_data", {"image/png": "aa"})),
        "stores a bitmap",
    ),
    "a photograph": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("display_data", {"image/jpeg": "aa"})),
        "stores a bitmap",
    ),
    "a figure without alt text": (
        lambda n: plain(n)[0].outputs.append(nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg></svg>"})),
        "without alt text of 40",
    ),
    "a symbol": (lambda n: prose_below(n).update(source="5 GFLOPS"), "write FLOPs"),
    "a path": (lambda n: prose_below(n).update(source="See /home/me/x."), "path of somebody's machine"),
    "an exercise that does not wait": (lambda n: code(n, "exercise").update(outputs=[]), "show that it is waiting"),
    "nbval's markers": (
        lambda n: plain(n)[0].update(source="# NBVAL_IGNORE_OUTPUT\n1 + 1"),
        "one of nbval's own markers",
    ),
    "an image without alt text": (
        lambda n: prose_below(n).update(source="![ ](x.svg)"),
        "has an image without alt text",
    ),
    "an image of few words": (lambda n: prose_below(n).update(source='<img src="x" alt="A line">'), "without alt text"),
    "a word": (
        lambda n: prose_below(n).update(source="Obviously so."),
        "says 'Obviously': what is obvious need not be said",
    ),
    "a name that no reader knows": (
        lambda n: prose_below(n).update(source="As the notes say."),
        "says 'the notes': a reader has seen no notes",
    ),
    "a shout": (lambda n: prose_below(n).update(source="It fits!"), "no exclamation marks"),
    "more than imports": (lambda n: imports(n).update(source="import torch\nx = 1"), "does more than import"),
    "an order of its own": (lambda n: plain(n)[0].update(execution_count=99), "the execution counts are not 1 to"),
    "no card": (
        lambda n: [c.update(source=c.source.replace("**The card**", "The card")) for c in n.cells],
        "a lesson ends with '## What you can say now', and **The card** is there or below",
    ),
    "no last section": (
        lambda n: prose(n, "## What you can say now").update(source="## The end"),
        "'## What you can say now', and **Discuss** is there",
    ),
    "nothing built": (
        lambda n: [c.update(source=c.source.replace("· build it", "· think")) for c in n.cells],
        "no exercise's heading says '· build it'",
    ),
    "nothing decided": (
        lambda n: [c.update(source=c.source.replace("· decide", "· think")) for c in n.cells],
        "no exercise's heading says '· decide'",
    ),
    "exercises in one section": (
        lambda n: [c.update(source=c.source.replace("## ", "### ", 1)) for c in n.cells if c.source.startswith("## ")],
        "all exercises are in one section",
    ),
    "a prediction of more lines": (
        lambda n: code(n, "prediction").update(source="x = 1\nguess = ..."),
        "should be one line: guess = ...",
    ),
    "a prediction that is made": (
        lambda n: code(n, "prediction").update(source="guess = 12"),
        "should be one line: guess",
    ),
    "a prediction without its answer": (
        lambda n: code(n, "answer").metadata.update(tags=[]),
        "the next code cell should be its answer",
    ),
    "more predictions than answers": (
        lambda n: n.cells.remove(code(n, "answer")),
        "there are 6 predictions and 5 answers",
    ),
    "an answer that reveals nothing": (
        lambda n: code(n, "answer").update(source="print(guess)"),
        "does not call teach.reveal(guess, ...)",
    ),
    "an answer that stands open": (
        lambda n: code(n, "answer").outputs[0].data.update({"text/html": "<table><tr><td>42</td></tr></table>"}),
        "stores an answer that stands open",
    ),
    "an answer with more than its output": (
        lambda n: code(n, "answer").outputs.append(nbformat.v4.new_output("stream", text="42")),
        "shows more than its answer",
    ),
    "an exercise without a solution": (
        lambda n: n.cells.remove(code(n, "solution")),
        "there are 4 exercises and 3 solutions",
    ),
    "an exercise without a heading": (
        lambda n: prose(n, "### Exercise 04.1 ").update(source="### A task"),
        "exercise 1 has no heading '### Exercise 04.1 …'",
    ),
    "a heading without its minutes": (
        lambda n: prose(n, "### Exercise 04.1 ").update(source="### Exercise 04.1 build it: a thing"),
        "the heading of 04.1 is not of the form '### Exercise 04.1 ★★ 10 min · build it: what'",
    ),
    "a task that asks nothing": (
        lambda n: prose(n, "### Exercise 04.1 ").update(
            source="### Exercise 04.1 ★ 10 min · build it: a box\n\nWrite `f(x)`: …\n"
        ),
        "is the task of 04.1 as `exercise new` wrote it",
    ),
    "a task without a title": (
        lambda n: prose(n, "### Exercise 04.1 ").update(source="### Exercise 04.1 ★ 10 min · Title\n\nWrite `f(x)`."),
        "is the task of 04.1 as `exercise new` wrote it",
    ),
    "a prediction that is far off": (
        lambda n: plain(n)[0].update(
            source="teach.compare(row)",
            outputs=[
                nbformat.v4.new_output("stream", text="quantity  predicted  ratio\nbytes            48  85.3333\n")
            ],
        ),
        "compares what is 85.3333 times what was predicted",
    ),
    "another exercise's check": (
        lambda n: code(n, "exercise").update(source='teach.exercises.check("04.2", answer)'),
        "should check exercise 04.1 and show that it is waiting",
    ),
    "a solution that takes a name": (
        solution(f"import math as other\nfrom os import path\nx: int = 1\n\n\nclass Box: ...\n\n\n{CHECKED}"),
        "overwrites names of the reader: Box, other, path, x; it may only set `solution`",
    ),
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
    ("change", "said"),
    [
        (
            lambda n: next(c for c in n.cells if "page" in c.metadata.get("tags", [])).update(source="[Map](x.ipynb)"),
            "its line of times, its links or its map are out of date",
        ),
        (lambda n: n.cells[0].update(source=n.cells[0].source.replace(" minutes", "9 minutes")), "its line of times"),
        (
            lambda n: n.cells[0].update(source=n.cells[0].source.replace("and devices", "on devices")),
            "its heading is not '# 04 · Tensors and devices'",
        ),
        (lambda n: prose_below(n).metadata.slideshow.update(slide_type="skip"), "has the wrong slide role or fold"),
        (lambda n: code(n, "solution").metadata.pop("jupyter"), "has the wrong slide role or fold: run"),
        (lambda n: code(n, "answer").metadata.slideshow.pop("title"), "which has no title"),
    ],
)
def test_what_is_generated_is_up_to_date(lesson, change, said):
    changed = copy.deepcopy(lesson)
    change(changed)
    assert said in "\n".join(problems(changed, NOTEBOOKS / "04_tensors_and_devices.ipynb"))


def cells_of(source, tag="", outputs=0):
    """A function that makes so many code cells."""
    figure = nbformat.v4.new_output("display_data", {"image/svg+xml": "<svg></svg>"})
    metadata = {"tags": [tag] if tag else []}
    return lambda n: [
        nbformat.v4.new_code_cell(source, metadata=metadata, outputs=[figure] * outputs) for _ in range(n)
    ]


def texts_of(source):
    return lambda n: [nbformat.v4.new_markdown_cell(source) for _ in range(n)]


_CELLS = "there are {n} code cells apart from exercises, drills, guesses and asides; 0 to 26 are allowed"
_OTHERS = ("prediction", "exercise", "drill", "solution")
#: What a lesson may have: what makes a lesson with n of it, the least and the most, and the sentence about more.
LIMITS = {
    "lines": (lambda n: cells_of("\n".join(["x"] * n))(1), 0, 20, "has {n} lines; 20 is the most"),
    "columns": (lambda n: cells_of("x" * n)(1), 0, 88, "has a line of {n} columns; 88 is the most"),
    "words": (lambda n: texts_of("word " * n)(1), 0, 150, "has {n} words; 150 is the most: begin a new cell"),
    "minutes": (texts_of("word " * 200), 0, 60, "reading takes {n} minutes; 60 is the most"),
    "cells": (cells_of("1"), 0, 26, _CELLS),
    "cells beside others": (
        lambda n: [*cells_of("1")(n), *(c for tag in _OTHERS for c in cells_of("1", tag)(5))],
        0, 26, _CELLS,
    ),
    "predictions": (cells_of("guess = ...", "prediction"), 4, 7, "there are {n} predictions; 4 to 7 are allowed"),
    "exercises": (cells_of("1", "exercise"), 4, 6, "there are {n} exercises; 4 to 6 are allowed"),
    "traps": (texts_of("> **Trap.** Beware."), 0, 4, "there are {n} traps; 0 to 4 are allowed"),
    "figures": (cells_of("1", outputs=1), 0, 5, "there are {n} figures; 0 to 5 are allowed"),
    "slides below a heading": (
        lambda n: [*cells_of("import torch")(1), *texts_of("## 1 · A")(1), *cells_of("\n".join(["x"] * n))(1)],
        0, 15, "puts {n} lines of code on a slide; 15 is the most",
    ),
    "slides": (
        lambda n: [*cells_of("import torch")(1), *cells_of("\n".join(["x"] * n))(1)],
        0, 15, "puts {n} lines of code on a slide; 15 is the most",
    ),
}  # fmt: skip


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_are_where_they_are_said_to_be(limit):
    make, least, most, said = LIMITS[limit]
    for n, allowed in ((least - 1, False), (least, True), (most, True), (most + 1, False)):
        if n >= 0:
            first = nbformat.v4.new_markdown_cell("# 04 · A toy\n\n**Why?**")
            found = problems(nbformat.v4.new_notebook(cells=[first, *make(n)]), PATH)
            assert any(said.format(n=n) in problem for problem in found) != allowed, (n, found)


@pytest.mark.parametrize(
    ("minutes", "after", "said"),
    [
        ((7, 13), "## 2 · B", ""), ((13, 7), "## 2 · B", ""),
        ((6, 14), "## 2 · B", "the pause comes after 6 of 20 minutes; 35% to 65% of them are allowed"),
        ((14, 6), "## 2 · B", "the pause comes after 14 of 20 minutes"),
        ((10, 10), "More.", "is a pause in the middle of a section"),
        ((10, 5, 5), "## 2 · B", "there are 2 cells that begin with **Pause.**; a lesson has one"),
        ((20,), "## 2 · B", "there are 0 cells that begin with **Pause.**; a lesson has one"),
    ],
)  # fmt: skip
def test_a_lesson_has_a_pause_near_its_middle_where_a_section_ends(minutes, after, said):
    parts = [[text for n in range(many) for text in texts_of("word " * 200)(1)] for many in minutes]
    cells = texts_of("# 04 · A toy\n\n**Why?**")(1) + parts[0]
    for part in parts[1:]:
        cells += [*texts_of("**Pause.** You can say why.")(1), *texts_of(after)(1), *part]
    found = [problem for problem in problems(nbformat.v4.new_notebook(cells=cells), PATH) if "ause" in problem]
    assert [said in problem for problem in found] == [True] * bool(said), found


def test_a_figure_says_in_forty_characters_what_is_to_be_seen():
    for n, allowed in ((39, False), (40, True)):
        shown = nbformat.v4.new_output("display_data", {"image/svg+xml": f"<svg><title>{'x' * n}</title></svg>"})
        cells = [*texts_of("# 04 · A toy")(1), nbformat.v4.new_code_cell("1", outputs=[shown])]
        found = problems(nbformat.v4.new_notebook(cells=cells), PATH)
        assert any("without alt text of 40" in problem for problem in found) != allowed


@pytest.mark.parametrize("said, so", [
    ("the figure above", True), ("the table above", False), ("the table below", True), ("the picture below", False),
])  # fmt: skip
def test_what_a_text_points_to_is_the_nearest_output_on_that_side(said, so):
    """A table and a figure stand above the text and below it, in this order."""
    shown = [{"text/html": "<table></table>"}, {"image/svg+xml": f"<svg><title>{'x' * 40}</title></svg>"}] * 2
    cells = [nbformat.v4.new_code_cell("1", outputs=[nbformat.v4.new_output("display_data", data)]) for data in shown]
    cells.insert(2, nbformat.v4.new_markdown_cell(f"Look at {said}."))
    found = problems(nbformat.v4.new_notebook(cells=[*texts_of("# 04 · A toy")(1), *cells]), PATH)
    assert any(f"speaks of {said}, and there the next output is none" in problem for problem in found) != so


@pytest.mark.parametrize(
    "ratio, near", [("0.79", False), ("0.81", True), ("1.24", True), ("1.26", False), ("-1.00", False)]
)
def test_what_is_compared_is_within_a_quarter_either_way(ratio, near):
    table = f"what   predicted   measured   ratio\nbytes read    100    {ratio}\n"
    output = nbformat.v4.new_output("stream", text=table)
    cells = [*texts_of("# 04 · A toy")(1), nbformat.v4.new_code_cell("teach.compare(a, b)", outputs=[output])]
    found = "\n".join(problems(nbformat.v4.new_notebook(cells=cells), PATH))
    assert (f"compares what is {ratio} times what was predicted: bytes read" in found) != near


def test_one_in_ten_outputs_may_be_exempt():
    for n, allowed in ((10, True), (9, False)):
        cells = cells_of("1", "measured:time", outputs=1)(1) + cells_of("1", outputs=1)(n - 1)
        found = problems(nbformat.v4.new_notebook(cells=[*texts_of("# 04 · A toy")(1), *cells]), PATH)
        assert any(f"1 of {n} cells with output are exempt" in problem for problem in found) != allowed


@pytest.mark.parametrize(
    ("verdict", "uses"),
    [
        ("print(took)", True),
        ("say()", True),
        ("twice()", True),
        ("idle()", False),
        ("print(other)", False),
        ("took = 3", False),
    ],
)
def test_a_verdict_is_about_what_the_cell_sets(verdict, uses):
    before = ["other = 1\n\ndef say():\n    print(runs)\n\ndef twice():\n    say()\n\ndef idle(): ..."]
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


def test_what_a_cell_binds():
    assert flow.changed(flow.parse("import os.path, numpy as np\nfrom math import pi as p")) == {"os", "np", "p"}
    assert flow.changed(flow.parse("a.b[0] = 1\nc.append(2)\nf()()\ndef g(): ...")) == {"a", "c", "g"}


def measurement(*tags, shown=1):
    """A measured cell, words about it, and its verdict, with these tags and so many outputs."""
    output = nbformat.v4.new_output("stream", text="3\n")
    cell = nbformat.v4.new_code_cell(
        "import time\ntook = time.time()", metadata={"tags": ["measured:time"]}, outputs=[output]
    )
    cell.metadata["run"] = kind.run_digest(cell)
    verdict = nbformat.v4.new_code_cell("print(took > 0)", metadata={"tags": [*tags]}, outputs=[output] * shown)
    return [cell, *texts_of("It took a while.")(1), verdict]


def test_a_measured_cell_needs_a_compared_verdict_that_says_something():
    right = measurement("verdict")
    assert exempt.measured_problem(right, right[0]) is None and exempt.measured_problem(right, right[2]) is None
    other = nbformat.v4.new_code_cell("1", metadata={"tags": ["measured:memory"]})
    assert exempt.measured_problem([*right, other], right[0]) is None
    for cells in (
        measurement(),
        measurement("verdict", "measured:memory"),
        measurement("verdict", shown=0),
        right[:2],
        [right[0], *cells_of("1", outputs=1)(1), right[2]],
        [right[2], right[0]],
    ):
        measured = next(filter(kind.measured, cells))
        assert "must be its verdict, compared, with output" in exempt.measured_problem(cells, measured)


def test_what_no_rule_means():
    """Prose may be wide, a solution long, an exercise too, and so may be what is generated; code may say anything."""
    many = "\n".join(["x"] * 25)
    cells = [*texts_of("# 04 · A toy")(1), *cells_of("import torch")(1), *texts_of("and " * 30)(1)]
    cells += [*cells_of(many, "solution")(1), *cells_of(many, "exercise")(1), *cells_of("'![](x)'")(1)]
    cells += [
        nbformat.v4.new_markdown_cell("word " * 151, metadata={"tags": ["page"]}),
        *texts_of("# %ls is a command, `the notes` and `n!` and `a != b` are code, $n! = 1$")(1),
    ]
    found = "\n".join(problems(nbformat.v4.new_notebook(cells=cells), PATH))
    assert "the execution counts" in found and "has 25 lines" in found and found.count("has 25 lines") == 1
    for said in (
        "columns; 88",
        "lines of code on a slide",
        "words; 150",
        "commented out",
        "alt text",
        "exclamation",
        "has seen no notes",
    ):
        assert said not in found


def test_commands_that_only_a_notebook_knows_are_no_imports_and_no_names():
    cells = [*texts_of("# 04 · A toy")(1), *cells_of("%matplotlib inline\nimport torch")(1)]
    cells += [*cells_of("x", "exercise")(1), *cells_of("!ls\nmine = 1", "solution")(1)]
    found = "\n".join(problems(nbformat.v4.new_notebook(cells=cells), PATH))
    assert "the first code cell does more than import" in found and "overwrites names of the reader: mine" in found


@pytest.mark.parametrize("head, line", [("def solution(x):\n    ", "    return ..."), ("", "solution = ...")])
def test_an_unfinished_solution_is_not_found_in_every_stub(lesson, head, line):
    changed = copy.deepcopy(lesson)
    code(changed, "solution").source = f"{head}### BEGIN SOLUTION\n{line}\n### END SOLUTION\n{CHECKED}"
    found = "\n".join(problems(changed, PATH))
    assert "students would get" not in found and "its id no longer fits its text" in found
