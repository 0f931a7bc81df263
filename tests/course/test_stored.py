"""What a refresh stores and keeps and what a verification asks of a cell, with a kernel that a test plays."""

import copy
import os
import shutil
import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import jupyter_client.connect
import nbformat
import nbval.kernel
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbval.plugin import IPyNbCell, NbCellError

import cs336kit
from cs336course import cells as kind
from cs336course import kernel, refresh, verify
from cs336course.lessons import METADATA

TITLE = new_markdown_cell("# 09 · A toy\n\n**Why?**")


def shows(text):
    return [new_output("execute_result", {"text/plain": text}, execution_count=7)]


def stored_as(monkeypatch, tmp_path, stored, new, fresh=False, gpu=False):
    """The code cell that is stored after one with these outputs has shown new ones, and whether the file changed."""
    path = tmp_path / "notebooks" / "09_toy.ipynb"
    path.parent.mkdir(exist_ok=True)
    notebook = refresh.normalize(new_notebook(cells=copy.deepcopy([TITLE, stored])))
    if "run" in stored.metadata:
        notebook.cells[1].metadata["run"] = stored.metadata["run"]
    nbformat.write(notebook, path)

    def execute(notebook, folder):
        assert folder == path.parent
        notebook.cells[1].outputs = shows(new)

    monkeypatch.setattr(refresh, "_execute", execute)
    monkeypatch.setattr(kind, "cuda", lambda: gpu)
    changed = refresh.refresh(path, fresh)
    cell = nbformat.read(path, as_version=4).cells[1]
    assert cell.execution_count == 1 and all(output.execution_count == 1 for output in cell.outputs)
    assert refresh.rewrite(path) is False
    return cell, changed


def measured(outputs, count=1):
    cell = new_code_cell("x", metadata={"tags": ["measured:time"]}, outputs=outputs, execution_count=count)
    cell.metadata["run"] = kind.run_digest(cell)
    return cell


@pytest.mark.parametrize(
    ("stored", "new", "how", "shown"),
    [
        (new_code_cell("x", outputs=shows("4"), execution_count=1), "5", {}, "5"),
        (new_code_cell("x", outputs=shows("<a at 0x7f00aa112233>"), execution_count=1), "<a at 0x7f00aa445566>", {},
         "<a at 0x7f00aa112233>"),
        # Outputs that no run has counted are nobody's.
        (new_code_cell("x", outputs=shows("<a at 0x7f00aa112233>")), "<a at 0x7f00aa445566>", {}, "<a at 0x7f00aa445566>"),
        (measured(shows("2 ms")), "3 ms", {}, "2 ms"),
        (measured(shows("2 ms")), "3 ms", {"fresh": True}, "3 ms"),
        (measured(shows("2 ms"), None), "3 ms", {}, "3 ms"),
        (new_code_cell("x", metadata={"tags": ["measured:time"]}, outputs=shows("2 ms"), execution_count=1), "3 ms", {}, "3 ms"),
        (new_code_cell("x", metadata={"tags": ["gpu"]}, outputs=shows("no GPU"), execution_count=1), "fast", {"gpu": True},
         "no GPU"),
        (new_code_cell("x", metadata={"tags": ["gpu"]}, outputs=shows("no GPU"), execution_count=1), "none", {}, "none"),
        # Another processor's digits; a difference beyond the tolerance is a new output.
        (new_code_cell("x", metadata={"tags": ["approx:1e-3"]}, outputs=shows("loss 2.000"), execution_count=1), "loss 2.001", {},
         "loss 2.000"),
        (new_code_cell("x", metadata={"tags": ["approx:1e-3"]}, outputs=shows("loss 2.000"), execution_count=1), "loss 2.003", {},
         "loss 2.003"),
        (new_code_cell("x", metadata={"tags": ["needs:torch>=99"]}, outputs=shows("4"), execution_count=1), "5", {}, "4"),
    ],
)  # fmt: skip
def test_what_is_kept_and_what_is_stored_anew(monkeypatch, tmp_path, stored, new, how, shown):
    cell, changed = stored_as(monkeypatch, tmp_path, stored, new, **how)
    assert cell.outputs[0].data["text/plain"] == shown and changed
    assert kind.measured(cell) == kind.from_a_run(cell)


def test_what_cannot_run_here_stays_as_it_is_though_no_run_has_left_it(monkeypatch, tmp_path):
    tags = {"tags": ["measured:time", "needs:torch>=99"]}
    stored = new_code_cell("x", metadata=tags, outputs=shows("2 ms"), execution_count=1)
    cell, _ = stored_as(monkeypatch, tmp_path, stored, "3 ms")
    assert cell.outputs[0].data["text/plain"] == "2 ms" and not kind.from_a_run(cell)


def test_a_store_says_what_became_of_each_lesson(monkeypatch, tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        notebook = refresh.normalize(new_notebook(cells=[TITLE, new_code_cell(f"x = {number}")]))
        nbformat.write(notebook, tmp_path / "notebooks" / f"0{number}_toy.ipynb")

    def played(path, fresh):
        if path.name.startswith("02"):
            raise CellExecutionError("what it said", "ValueError", "why")
        return path.name.startswith("01") or fresh

    monkeypatch.setattr(refresh, "refresh", played)
    assert refresh.store(["1", "3"]) == 1, "both break rules"
    first, *told = capsys.readouterr().out.splitlines()
    assert first.startswith("01_toy.ipynb: stored (0 s)") and any(
        "  the execution counts are not" in line for line in told
    )
    assert any(line.startswith("03_toy.ipynb: unchanged (") for line in told)
    # Every lesson's links are written anew, also of those that were not asked for.
    assert told[-4:-1] == [f"0{number}_toy.ipynb: times and links were updated" for number in (1, 2, 3)]
    assert told[-1].startswith("rules that are listed above are broken in 01_toy.ipynb, 03_toy.ipynb: mend the lesson")
    assert refresh.store(["2"], fresh=True) == 1
    assert capsys.readouterr().out == "02_toy.ipynb: not stored, because a cell failed\nwhat it said\n"


def test_a_kernel_is_alone_and_told_what_to_leave_out(monkeypatch, tmp_path):
    seen = []

    class Client:
        def __init__(self, notebook, resources, **settings):
            self.notebook, self.told = notebook, (resources, settings)

        def execute(self, env):
            seen.append((env, self.told, [kind.tags(cell) for cell in self.notebook.cells]))
            self.notebook.metadata["language_info"] = {"version": "3.99"}
            output = new_output("display_data", {"text/plain": "4", refresh.WIDGET: {}})
            self.notebook.cells[2].outputs = [output | {"transient": {"display_id": "1"}}]

    monkeypatch.setattr("nbclient.NotebookClient", Client)
    monkeypatch.setenv("JPY_SESSION_NAME", "somebody's")
    needs = new_code_cell("y", metadata={"tags": ["needs:torch>=99"]})
    notebook = new_notebook(cells=[TITLE, needs, new_code_cell("x")])
    refresh._execute(notebook, tmp_path)
    ((environment, (resources, settings), tags),) = seen
    assert {name: environment.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "JPY_SESSION_NAME")} == {
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "JPY_SESSION_NAME": None,
    }  # fmt: skip
    assert resources == {"metadata": {"path": str(tmp_path)}} and settings["coalesce_streams"]
    assert not settings["record_timing"] and not settings["store_widget_state"]
    # A cell that this machine cannot run is left out, and nobody finds the mark of that later.
    assert tags == [[], ["needs:torch>=99", settings["skip_cells_with_tag"]], []]
    assert kind.tags(notebook.cells[1]) == ["needs:torch>=99"] and notebook.metadata == METADATA
    assert notebook.cells[2].outputs[0] == {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "4"}}


def test_notebooks_are_stored_alike():
    cells = [
        new_markdown_cell("# A", metadata={"x": 1}),
        new_code_cell("  \n"),
        new_code_cell("1", metadata={"tags": ["gpu"]}),
    ]
    notebook = refresh.normalize(new_notebook(cells=cells, metadata={"y": 2}))
    assert (notebook.nbformat, notebook.nbformat_minor, notebook.metadata) == (4, 5, METADATA)
    assert [cell.metadata for cell in notebook.cells] == [{}, {"tags": ["gpu"]}]
    assert [cell.id for cell in notebook.cells] == kind.source_ids(notebook.cells)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (new_code_cell("x", execution_count=3), None),
        (new_code_cell("x", execution_count=2), "its execution count is 2, not 3; store it"),
        (new_code_cell("x"), "this cell was never run; store it"),
        (new_code_cell("x", execution_count=3, metadata={"tags": ["wrong"]}), "this cell has the tag 'wrong'"),
        (measured([], 3), "the next code cell must be its verdict"),
    ],
)
def test_a_cell_is_judged_before_it_runs(cell, says):
    notebook = SimpleNamespace(nb=SimpleNamespace(cells=[cell]))
    found = verify.LessonCell._standing(
        SimpleNamespace(cell=cell, expected_count=3, _remedy="store it", parent=notebook)
    )
    assert found is None if says is None else says in found


@pytest.mark.parametrize(
    ("tags", "gpu", "compared"),
    [([], False, True), (["gpu"], False, True), (["gpu"], True, False), (["measured:time"], False, False)],
)
def test_which_cells_are_compared(monkeypatch, tags, gpu, compared):
    ran = []
    monkeypatch.setattr(IPyNbCell, "runtest", lambda cell: ran.append(dict(cell.options)))
    monkeypatch.setattr(verify.LessonCell, "_standing", lambda cell: None)
    monkeypatch.setattr(kind, "cuda", lambda: gpu)
    cell = verify.LessonCell.__new__(verify.LessonCell)
    cell.cell, cell.options = new_code_cell("x", metadata={"tags": tags}), {}
    cell.config = SimpleNamespace(option=SimpleNamespace(nbval_cell_timeout=2000))
    cell.runtest()
    assert ran == [{"check": compared, "skip": False, "check_exception": False}]
    # A hang ends in time, and the slowest machine is none.
    assert 300 <= cell.config.option.nbval_cell_timeout <= 900


def occupy(monkeypatch, taken):
    """Somebody else takes what a kernel was to listen on, between its choice and its start."""
    write = jupyter_client.connect.write_connection_file

    def written(*args, **settings):
        name, chosen = write(*args, **settings)
        if chosen["transport"] == "tcp":
            taken.append(socket.create_server((chosen["ip"], chosen["shell_port"])))
        return name, chosen

    monkeypatch.setattr(jupyter_client.connect, "write_connection_file", written)


@pytest.mark.parametrize("way", ["verify", "refresh"])
def test_nobody_takes_the_ports_of_a_kernel(way, monkeypatch, tmp_path):
    """A verification failed once because a port that was free had gone when the kernel opened it."""
    taken: list[socket.socket] = []
    occupy(monkeypatch, taken)
    # A short name: that of `tmp_path` is too long for a socket.
    folder = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", folder)
    if way == "refresh":
        notebook = new_notebook(cells=[TITLE, new_code_cell("1 + 2")])
        refresh._execute(notebook, tmp_path)
        assert notebook.cells[1].outputs[0].data == {"text/plain": "3"}
    else:
        running = nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME)
        assert running.is_alive()
        running.stop()
    assert taken == []
    assert list(Path(folder).glob("lesson-*")) == []
    shutil.rmtree(folder)


@pytest.mark.parametrize("way", ["verify", "refresh"])
def test_a_lesson_meets_the_kit_beside_it(way, monkeypatch, tmp_path):
    """Not one that is installed, nor none, as on a machine of which only torch and Jupyter were asked."""
    (tmp_path / "cs336kit.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    asks = "import cs336kit\nprint(cs336kit.__file__)"
    if way == "refresh":
        notebook = new_notebook(cells=[TITLE, new_code_cell(asks)])
        refresh._execute(notebook, tmp_path)
        found = notebook.cells[1].outputs[0].text
    else:
        running = nbval.kernel.RunningKernel(nbval.kernel.CURRENT_ENV_KERNEL_NAME, str(tmp_path))
        asked = running.execute_cell_input(asks)
        said = iter(lambda: running.get_message(stream="iopub", timeout=60), None)
        mine = (m["content"] for m in said if m["parent_header"].get("msg_id") == asked)
        found = next(content["text"] for content in mine if "text" in content)
        running.stop()
    assert found.strip() == cs336kit.__file__


@pytest.mark.parametrize(("system", "folder"), [("nt", "short"), ("posix", "long" * 30)])
def test_without_sockets_that_are_files_a_kernel_has_ports(system, folder, monkeypatch):
    monkeypatch.setattr(kernel, "os", SimpleNamespace(name=system, fsencode=os.fsencode))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
    assert kernel.address() == {}


def test_the_remedy_names_the_lesson():
    cell = SimpleNamespace(path=Path("notebooks/09_toy.ipynb"), nodeid="x")
    assert verify.LessonCell._remedy.fget(cell).endswith("make refresh NB=09")
    assert verify.LessonCell.reportinfo(cell) == (cell.path, 0, "x")


def test_a_difference_is_kept_for_the_report():
    cell = SimpleNamespace(cell=new_code_cell("x"), _remedy="store it", _drawn=lambda *outputs: [])
    assert verify.LessonCell.compare_outputs(cell, shows("4"), shows("4")) and cell.comparison_traceback == []
    assert not verify.LessonCell.compare_outputs(cell, shows("5"), shows("4"))
    assert "text/plain differs" in cell.comparison_traceback[0] and cell.comparison_traceback[1] == "store it"
    assert cell.shown == shows("5")


def drawn(mime, height):
    svg = f'<svg xmlns="http://www.w3.org/2000/svg"><path d="M 1 {height}"/></svg>'
    data = {mime: svg, "text/plain": "Figure: a point."}
    return new_output("display_data", data | ({"text/html": f"<div>{svg}</div>"} if mime != "text/html" else {}))


@pytest.mark.parametrize(("mime", "ending"), [("image/svg+xml", "svg"), ("text/html", "html")])
def test_a_figure_that_differs_is_two_pictures_and_a_line(tmp_path, mime, ending):
    config = SimpleNamespace(rootpath=tmp_path)
    cell = SimpleNamespace(cell=new_code_cell("x"), _remedy="store it", path=Path("09_toy.ipynb"), expected_count=3)
    cell.config, cell._drawn = config, lambda *outputs: verify.LessonCell._drawn(cell, *outputs)
    same, stored, new = drawn(mime, 1), drawn(mime, 5), drawn(mime, 9)
    assert not verify.LessonCell.compare_outputs(cell, [same, new], [same, stored])
    files = [f"build/figures/09_toy-cell-3-figure-1-{which}.{ending}" for which in ("stored", "new")]
    assert cell.comparison_traceback == [f"{mime} (figure) differs", f"look at {' and '.join(files)}", "store it"]
    assert ["".join((tmp_path / file).read_text()) for file in files] == [stored.data[mime], new.data[mime]]
    # One that is missing has no second picture, and where none can be written, that is what is said.
    assert not verify.LessonCell.compare_outputs(cell, [same], [same, stored])
    assert cell.comparison_traceback[1] == f"look at {files[0]}"
    cell.config = SimpleNamespace(rootpath=tmp_path / files[0])
    assert not verify.LessonCell.compare_outputs(cell, [same, new], [same, stored])
    assert cell.comparison_traceback[1].endswith("to be looked at: Not a directory")


def test_cells_are_named_by_their_place_in_the_order_of_execution(monkeypatch):
    made = lambda parent, **own: SimpleNamespace(parent=parent, **own)  # noqa: E731
    monkeypatch.setattr(verify.LessonCell, "from_parent", made)
    found = [SimpleNamespace(cell=new_code_cell(text), options={}, parent="lesson") for text in ("a", "", "b")]
    assert [(cell.name, cell.cell_num, cell.expected_count) for cell in verify.adopt(found)][::2] == [
        ("cell [1]", 1, 1), ("cell [2]", 2, 2),
    ]  # fmt: skip


def test_a_failure_shows_the_cell_what_differs_and_which_sentences_to_read():
    said = "It takes 448 bytes," + " a" * 60
    cells = [new_code_cell("print(448)", outputs=[new_output("stream", text="448\n")]), new_markdown_cell(f"{said}.")]
    lesson = SimpleNamespace(nb=SimpleNamespace(cells=cells))
    cell = SimpleNamespace(cell=cells[0], shown=[new_output("stream", text="449\n")], parent=lesson, name="cell [1]")
    cell.path = Path("notebooks/09_toy.ipynb")
    for traceback, why in (("\x1b[31mCell In[7], line 1\x1b[0m", "Cell, line 1"), (None, "")):
        error = NbCellError(1, "it differs", "print(448)\n", traceback)
        told = verify.LessonCell.repr_failure(cell, SimpleNamespace(value=error)).splitlines()
        assert told[:4] == ["09_toy.ipynb, cell [1]: it differs", "", "    print(448)", ""] and told[4] == why
        assert told[5] == "Is what the lesson says about this still true?"
        read = [line.removeprefix("> ").strip() for line in told[6:]]
        # 21 letters, and 39 times two: the next word would end behind column 100.
        assert " ".join(read) == f"{said}." and len(told[6]) == 99
