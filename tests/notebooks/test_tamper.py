"""The proof that verification verifies: a stored notebook is changed in one place, and verification must see it."""

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import toy_lesson as toy
from toy_lesson import cell

from cs336kit.course.outputs import WIDGET
from cs336kit.course.structure import problems

ROOT = Path(__file__).parents[2]
# One run of eight notebooks, each with a kernel of its own, precedes the first verdict: a loaded machine takes minutes.
pytestmark = pytest.mark.timeout(1800)


def stdout(text):
    """The cell printed something else."""
    return lambda c: c.outputs[0].update(text=text)


def shown(mime, old, new):
    """The cell showed something else."""

    def change(c):
        data = c.outputs[0].data
        assert old in data[mime]
        data[mime] = data[mime].replace(old, new, 1)

    return change


def moved(points):
    """The curve of the figure begins that much further to the right."""

    def change(c):
        x = re.search(r"M (\d+\.\d+)", c.outputs[0].data["image/svg+xml"])[1]
        shown("image/svg+xml", x, str(float(x) + points))(c)

    return change


def stream(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def outputs(*new):
    """The cell has these outputs instead of its own."""
    return lambda c: c.update(outputs=list(new))


def added(output):
    """The cell has one output more."""
    return lambda c: c.outputs.append(output)


def never_run(c):
    c.outputs, c.execution_count = [], None


def ignored_by_tag(c):
    c.metadata["tags"] = ["nbval-ignore-output"]
    stdout("gradients 7\n")(c)


def skipped_by_comment(c):
    c.source = "# NBVAL_SKIP\n" + c.source
    stdout("gradients 7\n")(c)


def widget_view(c):
    c.outputs[0].data[WIDGET] = {"model_id": "0123", "version_major": 2}


def other_alt_in_metadata(c):
    c.outputs[0].metadata["image/svg+xml"]["alt"] = "One line that falls from three at the left to one."


def tagged(*tags):
    return lambda c: c.metadata.update(tags=list(tags))


ERROR = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
#: What is changed in a cell of the toy lesson, and is seen in that cell.
TAMPERED = {
    ("text", "other text"): stdout("gradients 7\n"),
    ("text", "stderr"): added(stream("warning\n", "stderr")),
    ("text", "leaked path"): stdout("gradients 6 in /home/somebody/notes\n"),
    ("text", "ignored by tag"): ignored_by_tag,
    ("text", "skipped by comment"): skipped_by_comment,
    ("number", "last digit"): shown("text/plain", "0.3333333333333333", "0.3333333333333334"),
    ("number", "a tolerance without end"): tagged("approx:1e9"),
    ("number", "measured without a measurement"): tagged("measured:time"),
    ("number", "missing output"): outputs(),
    ("number", "extra output"): added(stream("one more\n")),
    ("number", "never run"): never_run,
    ("number", "stale count"): lambda c: c.update(execution_count=17),
    ("table", "html"): shown("text/html", "448", "240"),
    ("table", "text"): shown("text/plain", "448", "240"),
    ("table", "stored widget"): widget_view,
    ("figure", "moved"): moved(3),
    ("figure", "other number in its title"): shown("image/svg+xml", "share of 0.6", "share of 0.64"),
    ("figure", "other alt text"): other_alt_in_metadata,
    ("gpu", "other text"): stdout("It runs on a GPU.\n"),
    ("time", "other time"): stdout("12.5\n"),
    ("address", "other number"): shown("text/plain", "0x3f800000", "0x3f000000"),
    ("figure", "recoloured"): shown("image/svg+xml", "#0072b2", "#d55e00"),
    ("trap", "other exception"): stdout("ValueError: division by zero\n"),
    ("trap", "other type"): outputs(ERROR),
    ("solution", "fails"): lambda c: c.update(source=c.source.replace("2 * x", "3 * x")),
    ("approximate", "beyond tolerance"): stdout("loss 0.1334\n"),
}
#: What may differ in a cell, and is no failure.
COSMETIC = {
    ("address", "other address"): shown("text/plain", " at 0x", " at 0x7"),
    ("figure", "nudged"): moved(0.01),
    ("approximate", "within tolerance"): stdout("loss 0.1235\n"),
    ("text", "split stream"): outputs(stream("grad"), stream("ients 6\n")),
}


def swapped_cells(n):
    a, b = n.cells.index(cell(n, "text")), n.cells.index(cell(n, "number"))
    n.cells[a], n.cells[b] = n.cells[b], n.cells[a]


def numbered(n):
    for number, c in enumerate([c for c in n.cells if c.cell_type == "code"], start=1):
        c.execution_count = number


def deleted_verdict(n):
    n.cells.remove(cell(n, "verdict"))
    numbered(n)


#: What is changed between cells, and is seen somewhere in the notebook.
BETWEEN = {
    "swapped": swapped_cells,
    "deleted": deleted_verdict,
    "untagged": lambda n: cell(n, "verdict").metadata.update(tags=[]),
    "unreasoned": lambda n: cell(n, "time").metadata.update(tags=["measured"]),
}


def layers():
    """The changes of cells, dealt out so that a notebook has one in a cell at most: each is judged by its own cell.

    For each notebook, the names of changes by the number of the cell.
    """
    dealt = []
    for change in {**TAMPERED, **COSMETIC}:
        places = [place for place, (kind, *_) in enumerate(toy.CELLS, start=1) if kind == change[0]]
        free = ((layer, place) for layer in dealt for place in places if place not in layer)
        layer, place = next(free, ({}, places[0]))
        if not layer:
            dealt.append(layer)
        layer[place] = change
    return dealt


def verify(folder, *options):
    """What verification prints about the notebooks of a folder, on a terminal of ASCII: one pytest, as `make test` runs it."""
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q", "-rA", *options]
    command += ["--nbval", "--nbval-current-env"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", str(folder)]
    paths = os.pathsep.join([str(ROOT), str(folder)])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return toy.write(tmp_path_factory.mktemp("toy") / "99_toy.ipynb")


@pytest.fixture(scope="module")
def report(notebook, tmp_path_factory):
    """What verification prints about all changed notebooks."""
    folder = tmp_path_factory.mktemp("tampered")
    for number, layer in enumerate(layers()):
        changed = copy.deepcopy(notebook)
        code = [c for c in changed.cells if c.cell_type == "code"]
        for place, change in layer.items():
            {**TAMPERED, **COSMETIC}[change](code[place - 1])
        nbformat.write(changed, folder / f"98_{number}.ipynb")
    for name, change in {**BETWEEN, "untouched": lambda n: n}.items():
        changed = copy.deepcopy(notebook)
        # No cell that imports the kit, and torch with it: none of these changes is about one.
        changed.cells = [c for c in changed.cells if "teach" not in c.source]
        numbered(changed)
        change(changed)
        nbformat.write(changed, folder / f"97_{name}.ipynb")
    return verify(folder)


@pytest.fixture(scope="module")
def verdicts(report):
    """PASSED or FAILED of every changed cell, and of the cells beside them, which were left alone."""
    found = {
        (int(n), int(c)): verdict
        for verdict, n, c in re.findall(r"^(\w+) \S*98_(\d+)\.ipynb::cell \[(\d+)\]", report, flags=re.M)
    }
    return {
        layer.get(place, (name, f"untouched {number}, {place}")): found[number, place]
        for number, layer in enumerate(layers())
        for place, (name, *_) in enumerate(toy.CELLS, start=1)
    }


@pytest.mark.parametrize("change", TAMPERED, ids=" ".join)
def test_tampering_with_a_cell_is_seen_in_it(verdicts, change):
    assert verdicts[change] == "FAILED"


@pytest.mark.parametrize("name", BETWEEN)
def test_tampering_with_the_order_of_cells_is_seen(report, name):
    assert re.search(rf"^FAILED \S*97_{name}\.ipynb::", report, flags=re.M)


def test_nothing_else_is_a_failure(verdicts, report):
    assert {change for change, verdict in verdicts.items() if verdict != "PASSED"} == set(TAMPERED)
    assert set(COSMETIC) < set(verdicts)
    assert set(re.findall(r"^(\w+) \S*97_untouched\.ipynb::", report, flags=re.M)) == {"PASSED"}


def failure(report, path, cell):
    """The part of a report that is about one cell."""
    start = report.index(f"{path}.ipynb, cell [{cell}]")
    return report[start : report.index("\n____", start)]


def test_a_failure_tells_what_a_maintainer_needs(report):
    part = failure(report, "98_0", 2)
    assert re.search(r"^0\.3333333333333334 +\| 0\.3333333333333333$", part, flags=re.M)
    assert "    1 / 3\n" in part and "make refresh NB=98" in part
    assert part.endswith("what the lesson says about it?\n> One cell of every kind.\n")


def test_a_failure_fits_the_terminal_and_shows_no_markup(report):
    part = failure(report, "98_0", 3)
    assert re.search(r"^text/html differs$", part, flags=re.M) and re.search(
        r"^weights .*240.*\|.*448", part, flags=re.M
    )
    assert "</" not in part and "style" not in part
    assert max(map(len, part.splitlines())) <= 100


def test_a_failure_keeps_its_lines_on_a_terminal_of_ascii(report):
    assert re.search(r"^.*0x\\u2026.*$", report, flags=re.M) and "\\n" not in report


def test_a_cell_has_one_number_wherever_it_is_named(report):
    """The place of a cell, which JupyterLab shows in brackets: in the list, the heading, the report and the traceback."""
    assert not re.search(r"\bCell \d|In\[\d", report)
    for path, number in re.findall(r"^FAILED \S*(9[78]_\w+)\.ipynb::cell \[(\d+)\]", report, flags=re.M):
        assert f"{path}.ipynb, cell [{number}]" in report


def test_a_leaked_path_is_seen_in_prose_too(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("See /home/somebody/notes for more.")])
    assert any("path of a machine: /home/somebody" in problem for problem in problems(notebook, Path("98_x.ipynb")))


def test_where_there_is_cuda_a_gpu_cell_runs_and_is_not_compared(notebook, tmp_path):
    notebook = copy.deepcopy(notebook)
    stdout("what a machine without CUDA says\n")(cell(notebook, "gpu"))
    nbformat.write(notebook, tmp_path / "99_toy.ipynb")
    (tmp_path / "with_cuda.py").write_text("import torch\ntorch.cuda.is_available = lambda: True\n")
    shown = verify(tmp_path, "-p", "with_cuda")
    assert "failed" not in shown and len(re.findall(r"^PASSED ", shown, flags=re.M)) == len(toy.CELLS)
