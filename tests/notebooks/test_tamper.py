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


def text(n):
    cell(n, "text").outputs[0].text = "gradients 7\n"


def last_digit(n):
    cell(n, "number").outputs[0].data["text/plain"] = "0.3333333333333334"


def table_html(n):
    data = cell(n, "table").outputs[0].data
    data["text/html"] = data["text/html"].replace("448", "240", 1)


def table_text(n):
    data = cell(n, "table").outputs[0].data
    data["text/plain"] = data["text/plain"].replace("448", "240", 1)


def figure_moved(n):
    data = cell(n, "figure").outputs[0].data
    x = re.search(r"M (\d+\.\d+)", data["image/svg+xml"])[1]
    data["image/svg+xml"] = data["image/svg+xml"].replace(x, str(float(x) + 3), 1)


def figure_recoloured(n):
    data = cell(n, "figure").outputs[0].data
    data["image/svg+xml"] = data["image/svg+xml"].replace("#0072b2", "#d55e00", 1)


def missing_output(n):
    cell(n, "number").outputs = []


def extra_output(n):
    cell(n, "number").outputs.append(nbformat.v4.new_output("stream", name="stdout", text="one more\n"))


def never_run(n):
    cell(n, "number").outputs, cell(n, "number").execution_count = [], None


def swapped_cells(n):
    a, b = n.cells.index(cell(n, "text")), n.cells.index(cell(n, "number"))
    n.cells[a], n.cells[b] = n.cells[b], n.cells[a]


def wrong_exception(n):
    cell(n, "trap").outputs[0].text = "ValueError: division by zero\n"


def deleted_verdict(n):
    n.cells.remove(cell(n, "verdict"))
    for count, c in enumerate([c for c in n.cells if c.cell_type == "code"], start=1):
        c.execution_count = count


def untagged_verdict(n):
    cell(n, "verdict").metadata["tags"] = []


def measured_without_reason(n):
    cell(n, "time").metadata["tags"] = ["measured"]


def leaked_path(n):
    cell(n, "text").outputs[0].text = "gradients 6 in /home/somebody/notes\n"


def solution_fails(n):
    cell(n, "solution").source = cell(n, "solution").source.replace("2 * x", "3 * x")


def stderr(n):
    cell(n, "text").outputs.append(nbformat.v4.new_output("stream", name="stderr", text="warning\n"))


def stale_count(n):
    cell(n, "number").execution_count = 17


def ignored_by_tag(n):
    cell(n, "text").metadata["tags"] = ["nbval-ignore-output"]
    text(n)


def skipped_by_comment(n):
    cell(n, "text").source = "# NBVAL_SKIP\n" + cell(n, "text").source
    text(n)


def beyond_tolerance(n):
    cell(n, "approximate").outputs[0].text = "loss 0.1334\n"


def other_type(n):
    cell(n, "trap").outputs = [
        nbformat.v4.new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
    ]


def address(n):
    cell(n, "address").outputs[0].data["text/plain"] = "<object at 0x7fffdeadbeef>"


def widget_id(n):
    cell(n, "table").outputs[0].data["application/vnd.jupyter.widget-view+json"] = {
        "model_id": "0123",
        "version_major": 2,
    }


def other_time(n):
    cell(n, "time").outputs[0].text = "12.5\n"


def figure_nudged(n):
    data = cell(n, "figure").outputs[0].data
    x = re.search(r"M (\d+\.\d+)", data["image/svg+xml"])[1]
    data["image/svg+xml"] = data["image/svg+xml"].replace(x, str(float(x) + 0.01), 1)


def within_tolerance(n):
    cell(n, "approximate").outputs[0].text = "loss 0.1235\n"


def split_stream(n):
    cell(n, "text").outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=part) for part in ("grad", "ients 6\n")
    ]


def untouched(n):
    pass


TAMPERED = (
    *(
        text,
        last_digit,
        table_html,
        table_text,
        figure_moved,
        figure_recoloured,
        missing_output,
        extra_output,
        never_run,
    ),
    *(swapped_cells, wrong_exception, deleted_verdict, untagged_verdict, measured_without_reason, leaked_path),
    *(solution_fails, stderr, stale_count, ignored_by_tag, skipped_by_comment, beyond_tolerance, other_type),
)
COSMETIC = (untouched, address, widget_id, other_time, figure_nudged, within_tolerance, split_stream)


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
    for change in (*TAMPERED, *COSMETIC):
        nbformat.write(toy.changed(notebook, change), folder / f"98_{change.__name__}.ipynb")
    return verify(folder)


def failed(verified, change):
    return re.findall(rf"^FAILED .*98_{change.__name__}\.ipynb::.*$", verified, flags=re.M)


@pytest.mark.parametrize("change", TAMPERED, ids=lambda change: change.__name__)
def test_tampering_is_seen(verified, change):
    assert failed(verified, change)


@pytest.mark.parametrize("change", COSMETIC, ids=lambda change: change.__name__)
def test_cosmetic_changes_are_not(verified, change):
    assert not failed(verified, change)
    assert len(re.findall(rf"^PASSED .*98_{change.__name__}\.ipynb::", verified, flags=re.M)) == len(toy.CELLS) - 1


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
