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

from cs336course.cells import identify
from cs336course.outputs import WIDGET
from cs336course.structure import problems

ROOT = Path(__file__).parents[2]
# Two runs of a notebook precede the first verdict: a loaded machine takes minutes.
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


def itself(c):
    """Nothing in the cell: what is beside it is changed."""


ERROR = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
#: What is changed in a cell of the toy lesson, or beside it, and is seen in that cell.
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
    ("figure", "recolored"): shown("image/svg+xml", "#0072b2", "#d55e00"),
    ("trap", "other exception"): stdout("ValueError: division by zero\n"),
    ("trap", "other type"): outputs(ERROR),
    ("solution", "fails"): lambda c: c.update(source=c.source.replace("2 * x", "3 * x")),
    ("approximate", "beyond tolerance"): stdout("loss 0.1334\n"),
    ("time", "unreasoned"): tagged("measured"),
    ("time", "verdict untagged"): itself,
    ("time", "verdict deleted"): itself,
    ("text", "swapped"): itself,
    ("number", "swapped"): itself,
}
#: What may differ in a cell, and is no failure.
COSMETIC = {
    ("address", "other address"): shown("text/plain", " at 0x", " at 0x7"),
    ("figure", "nudged"): moved(0.01),
    ("approximate", "within tolerance"): stdout("loss 0.1235\n"),
    ("text", "split stream"): outputs(stream("grad"), stream("ients 6\n")),
}
CHANGES = {**TAMPERED, **COSMETIC, ("verdict", "of time, verdict untagged"): tagged()}
#: The cells of one notebook, in order: those of the toy lesson, and behind them a copy of one for each change.
PLACES = [(kind, "untouched") for kind, *_ in toy.CELLS]
for _kind, _name in {**TAMPERED, **COSMETIC}:
    PLACES.append((_kind, _name))
    if _kind == "time" and _name != "verdict deleted":
        PLACES.append(("verdict", f"of time, {_name}"))


def numbered(n):
    for number, c in enumerate([c for c in n.cells if c.cell_type == "code"], start=1):
        c.execution_count = number


def tampered(notebook):
    """One notebook with every change: each is judged by its own cell, and one kernel runs all of them."""
    code = [copy.deepcopy(cell(notebook, kind)) for kind, _ in PLACES]
    changed = copy.deepcopy(notebook)
    changed.cells = [changed.cells[0], *code]
    identify(changed.cells)
    numbered(changed)
    for place, c in zip(PLACES, code, strict=True):
        CHANGES.get(place, itself)(c)
    a, b = (PLACES.index((kind, "swapped")) + 1 for kind in ("text", "number"))
    changed.cells[a], changed.cells[b] = changed.cells[b], changed.cells[a]
    return changed


def verify(folder, cuda=False):
    """What verification prints about the notebooks of a folder, on a terminal of ASCII: one pytest, as `make test` runs it."""
    # All that verification asks torch for, whose import takes seconds.
    torch = f"Named(cuda=Named(is_available=lambda: {cuda}))"
    (folder / "a_torch.py").write_text(
        f"import sys\nfrom types import SimpleNamespace as Named\n\nsys.modules['torch'] = {torch}\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "a_torch", "-p", "conftest", "-p", "no:cacheprovider", "-q", "-rA"]
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
    """What verification prints about the changed notebook."""
    folder = tmp_path_factory.mktemp("tampered")
    nbformat.write(tampered(notebook), folder / "98_tampered.ipynb")
    return verify(folder)


@pytest.fixture(scope="module")
def verdicts(report):
    """PASSED or FAILED of every changed cell, and of the cells beside them, which were left alone."""
    found = re.findall(r"^(\w+) \S*98_tampered\.ipynb::cell \[(\d+)\]", report, flags=re.M)
    by_number = {int(number): verdict for verdict, number in found}
    return {place: by_number[number] for number, place in enumerate(PLACES, start=1)}


@pytest.mark.parametrize("change", TAMPERED, ids=" ".join)
def test_tampering_with_a_cell_is_seen_in_it(verdicts, change):
    assert verdicts[change] == "FAILED"


def test_nothing_else_is_a_failure(verdicts):
    assert {change for change, verdict in verdicts.items() if verdict != "PASSED"} == set(TAMPERED)
    assert set(COSMETIC) < set(verdicts)


def failure(report, *change):
    """The part of a report that is about one change."""
    start = report.index(f"98_tampered.ipynb, cell [{PLACES.index(change) + 1}]")
    return report[start : report.index("\n____", start)]


def test_a_failure_tells_what_a_maintainer_needs(report):
    part = failure(report, "number", "last digit")
    assert re.search(r"^0\.3333333333333334 +\| 0\.3333333333333333$", part, flags=re.M)
    assert "    1 / 3\n" in part and "make refresh NB=98" in part
    assert part.endswith("what the lesson says about this still true?\n> One cell of every kind.\n")


def test_a_failure_fits_the_terminal_and_shows_no_markup(report):
    part = failure(report, "table", "html")
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
    for number in re.findall(r"^FAILED \S*98_tampered\.ipynb::cell \[(\d+)\]", report, flags=re.M):
        assert f"98_tampered.ipynb, cell [{number}]" in report


def test_a_leaked_path_is_seen_in_prose_too(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("See /home/somebody/notes for more.")])
    assert any(
        "path of somebody's machine: /home/somebody" in problem for problem in problems(notebook, Path("98_x.ipynb"))
    )


@pytest.mark.proof
def test_where_there_is_cuda_a_gpu_cell_runs_and_is_not_compared(notebook, tmp_path):
    notebook = copy.deepcopy(notebook)
    runs, fails, other = (copy.deepcopy(cell(notebook, "text")) for _ in range(3))
    notebook.cells = [notebook.cells[0], cell(notebook, "text"), runs, fails, other]
    for c in (runs, fails, other):
        stdout("what a machine without CUDA says\n")(c)
    for c in (runs, fails):
        c.metadata["tags"] = ["gpu"]
    fails.source = "1 / 0"
    numbered(notebook)
    nbformat.write(notebook, tmp_path / "99_toy.ipynb")
    shown = verify(tmp_path, cuda=True)
    assert re.findall(r"^([A-Z]+) \S*cell \[(\d)\]", shown, flags=re.M) == [
        ("PASSED", "1"), ("PASSED", "2"), ("FAILED", "3"), ("FAILED", "4"),
    ]  # fmt: skip
