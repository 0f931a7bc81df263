"""The proof that verification verifies: a stored notebook is changed in one place, and verification must see it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import toy_lesson as toy
from toy_lesson import cell

from cs336kit.course.structure import problems

ROOT = Path(__file__).parents[2]
# One run of 29 notebooks, each with a kernel of its own, precedes the first verdict: a loaded machine takes minutes.
pytestmark = pytest.mark.timeout(1800)


def stdout(name, text):
    """The cell printed something else."""

    def change(n):
        cell(n, name).outputs[0].text = text

    return change


def shown(name, mime, old, new):
    """The cell showed something else."""

    def change(n):
        data = cell(n, name).outputs[0].data
        assert old in data[mime]
        data[mime] = data[mime].replace(old, new, 1)

    return change


def moved(points):
    """The curve of the figure begins that much further to the right."""

    def change(n):
        svg = cell(n, "figure").outputs[0].data["image/svg+xml"]
        x = re.search(r"M (\d+\.\d+)", svg)[1]
        shown("figure", "image/svg+xml", x, str(float(x) + points))(n)

    return change


def outputs(name, *new, also=()):
    """The cell has these outputs, and those of its own that are kept."""

    def change(n):
        kept = [cell(n, name).outputs[i] for i in also]
        cell(n, name).outputs = [*kept, *new]

    return change


def tags(name, *new, then=lambda n: None):
    """The cell has other tags, and something else is changed too."""

    def change(n):
        cell(n, name).metadata["tags"] = list(new)
        then(n)

    return change


def source(name, old, new, then=lambda n: None):
    """The cell has another text, and something else is changed too."""

    def change(n):
        assert old in cell(n, name).source
        cell(n, name).source = cell(n, name).source.replace(old, new, 1)
        then(n)

    return change


def count(name, number, then=lambda n: None):
    """The cell has another execution count, and something else is changed too."""

    def change(n):
        cell(n, name).execution_count = number
        then(n)

    return change


def swapped_cells(n):
    a, b = n.cells.index(cell(n, "text")), n.cells.index(cell(n, "number"))
    n.cells[a], n.cells[b] = n.cells[b], n.cells[a]


def deleted_verdict(n):
    n.cells.remove(cell(n, "verdict"))
    for number, c in enumerate([c for c in n.cells if c.cell_type == "code"], start=1):
        c.execution_count = number


def widget_id(n):
    view = {"model_id": "0123", "version_major": 2}
    cell(n, "table").outputs[0].data["application/vnd.jupyter.widget-view+json"] = view


def stream(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


WRONG = stdout("text", "gradients 7\n")
ERROR = nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
TAMPERED = {
    "text": WRONG,
    "last_digit": shown("number", "text/plain", "0.3333333333333333", "0.3333333333333334"),
    "table_html": shown("table", "text/html", "448", "240"),
    "table_text": shown("table", "text/plain", "448", "240"),
    "figure_moved": moved(3),
    "figure_recoloured": shown("figure", "image/svg+xml", "#0072b2", "#d55e00"),
    "missing_output": outputs("number"),
    "extra_output": outputs("number", stream("one more\n"), also=[0]),
    "never_run": count("number", None, then=outputs("number")),
    "stale_count": count("number", 17),
    "swapped_cells": swapped_cells,
    "wrong_exception": stdout("trap", "ValueError: division by zero\n"),
    "other_type": outputs("trap", ERROR),
    "stderr": outputs("text", stream("warning\n", "stderr"), also=[0]),
    "deleted_verdict": deleted_verdict,
    "untagged_verdict": tags("verdict"),
    "measured_without_reason": tags("time", "measured"),
    "leaked_path": stdout("text", "gradients 6 in /home/somebody/notes\n"),
    "solution_fails": source("solution", "2 * x", "3 * x"),
    "ignored_by_tag": tags("text", "nbval-ignore-output", then=WRONG),
    "skipped_by_comment": source("text", "print", "# NBVAL_SKIP\nprint", then=WRONG),
    "beyond_tolerance": stdout("approximate", "loss 0.1334\n"),
}
COSMETIC = {
    "untouched": lambda n: None,
    "address": shown("address", "text/plain", "0x", "0x7"),
    "widget_id": widget_id,
    "other_time": stdout("time", "12.5\n"),
    "figure_nudged": moved(0.01),
    "within_tolerance": stdout("approximate", "loss 0.1235\n"),
    "split_stream": outputs("text", stream("grad"), stream("ients 6\n")),
}


def verify(folder, *options):
    """What verification prints about the notebooks of a folder: one pytest, as `make test` runs it."""
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q", "-rA", *options]
    command += ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"]
    command += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={folder}", str(folder)]
    paths = os.pathsep.join([str(ROOT), str(folder)])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return toy.write(tmp_path_factory.mktemp("toy") / "99_toy.ipynb")


@pytest.fixture(scope="module")
def verified(notebook, tmp_path_factory):
    """The verdicts on all changed notebooks."""
    folder = tmp_path_factory.mktemp("tampered")
    for name, change in {**TAMPERED, **COSMETIC}.items():
        nbformat.write(toy.changed(notebook, change), folder / f"98_{name}.ipynb")
    return verify(folder)


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_is_seen(verified, name):
    assert re.search(rf"^FAILED .*98_{name}\.ipynb::", verified, flags=re.M)


@pytest.mark.parametrize("name", COSMETIC)
def test_cosmetic_changes_are_not(verified, name):
    assert not re.search(rf"^FAILED .*98_{name}\.ipynb::", verified, flags=re.M)
    assert len(re.findall(rf"^PASSED .*98_{name}\.ipynb::", verified, flags=re.M)) == len(toy.CELLS) - 1


def test_a_failure_tells_what_a_maintainer_needs(verified):
    part = verified[verified.index("98_last_digit.ipynb, cell [2]") :][:600]
    assert "-0.3333333333333334" in part and "+0.3333333333333333" in part
    assert "make refresh NB=98" in part


def test_a_leaked_path_is_seen_in_prose_too(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("See /home/somebody/notes for more.")])
    assert any("path of a machine: /home/somebody" in problem for problem in problems(notebook, "98_x.ipynb"))


def test_gpu_cells_are_skipped_without_cuda_and_run_with_it(verified, notebook, tmp_path):
    assert "needs a CUDA device, and there is none" in verified
    nbformat.write(notebook, tmp_path / "99_toy.ipynb")
    (tmp_path / "with_cuda.py").write_text("import torch\ntorch.cuda.is_available = lambda: True\n")
    shown = verify(tmp_path, "-p", "with_cuda")
    assert "failed" not in shown and len(re.findall(r"^PASSED ", shown, flags=re.M)) == len(toy.CELLS)
