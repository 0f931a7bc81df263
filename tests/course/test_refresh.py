import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import nbformat
import psutil
import pytest
import toy_lesson as toy

from cs336course import pages, structure
from cs336course.lessons import METADATA, find
from cs336course.refresh import refresh
from cs336course.verify import LessonCell
from cs336kit.command import main


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebooks") / "99_toy.ipynb"
    toy.write(path, teach=False)
    return path


def test_a_second_refresh_changes_nothing(stored):
    before = stored.read_bytes()
    assert refresh(stored) is False
    assert stored.read_bytes() == before


def test_fresh_measures_again_and_nothing_else(stored, tmp_path):
    copy = tmp_path / stored.name
    copy.write_bytes(stored.read_bytes())
    assert refresh(copy, fresh=True) is True
    old, new = (nbformat.read(path, as_version=4) for path in (stored, copy))
    changed = [a.source for a, b in zip(old.cells, new.cells, strict=True) if a != b]
    assert changed == [toy.cell(old, "time").source]


def test_a_changed_measured_cell_is_measured_again(stored, tmp_path):
    copy = tmp_path / stored.name
    notebook = nbformat.read(stored, as_version=4)
    notebook.cells = [notebook.cells[0], toy.cell(notebook, "time"), toy.cell(notebook, "verdict")]
    notebook.cells[1].source = "import time\nprint('new', time.time())"
    nbformat.write(notebook, copy)
    refresh(copy)
    assert nbformat.read(copy, as_version=4).cells[1].outputs[0].text.startswith("new")


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with lessons 02, which fails, and 03, which does not, and no rules: a toy breaks many."""
    monkeypatch.setattr(structure, "problems", lambda notebook, path: [])
    (tmp_path / "notebooks").mkdir()
    for name, source in (("02_broken", "1 / 0"), ("03_sound", "1 + 1")):
        cells = [
            nbformat.v4.new_markdown_cell(f"# {name[:2]} · A toy\n\nA promise."),
            nbformat.v4.new_code_cell(source),
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "notebooks"


def test_a_failing_cell_stores_nothing_and_says_so(clone, capsys):
    before = (clone / "02_broken.ipynb").read_bytes()
    assert main(["lessons", "refresh", "2"]) == 1
    assert (clone / "02_broken.ipynb").read_bytes() == before
    assert "02_broken.ipynb: not stored, because a cell failed" in capsys.readouterr().out


def test_a_lesson_is_refreshed_by_the_command_and_then_unchanged(clone, capsys):
    for word in ("stored", "unchanged"):
        assert main(["lessons", "refresh", "03"]) == 0
        assert f"03_sound.ipynb: {word}" in capsys.readouterr().out


def test_a_lesson_that_breaks_rules_is_stored_and_the_command_fails(clone, capsys, monkeypatch):
    """`make refresh readme` went on, and a list of broken rules was easily overlooked."""
    (clone / "02_broken.ipynb").write_bytes((clone / "03_sound.ipynb").read_bytes())
    monkeypatch.setattr(structure, "problems", lambda notebook, path: ["cell [1] is wide"] * path.name.startswith("03"))
    for word in ("stored", "unchanged"):
        assert main(["lessons", "refresh"]) == 1
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith(f"02_broken.ipynb: {word}") and said[1].startswith(f"03_sound.ipynb: {word}")
        assert said[2] == "  cell [1] is wide"
        sentence = "rules that are listed above are broken in 03_sound.ipynb: mend the lesson, and refresh it again"
        assert said[-1] == sentence
    monkeypatch.undo()
    monkeypatch.chdir(clone.parent)
    assert main(["lessons", "refresh", "3"]) == 1, "so it does by the rules of the course"
    assert "  the first cell begins with '# NN · Title'" in capsys.readouterr().out


def test_a_lesson_has_a_number_a_name_and_a_path(clone):
    broken, sound = find([])
    for name in (
        "2",
        "02",
        "02_broken",
        "02_broken.ipynb",
        "notebooks/02_broken.ipynb",
        "./notebooks//02_broken.ipynb",
    ):
        assert find([name]) == [broken]
    assert find([str(clone / "02_broken.ipynb")]) == [broken]
    assert find(["3", "2"]) == [sound, broken]
    assert find(["3", "2", "03", "notebooks/03_sound.ipynb"]) == [sound, broken], "each is done once"


@pytest.mark.parametrize("action", ["list", "verify", "refresh"])
@pytest.mark.parametrize("name", ["42", "0", "2_", "02_", "", "*"])
def test_an_unknown_lesson_is_refused_with_the_known_ones(clone, capsys, action, name):
    assert main(["lessons", action, "3", name]) == 2
    said = capsys.readouterr()
    assert said.err == f"no lesson {name!r} in notebooks; there are 02_broken, 03_sound\n" and said.out == ""


def test_verification_by_number_runs_that_lesson_alone(clone, capfd):
    assert main(["lessons", "refresh", "3"]) == 0
    assert main(["lessons", "verify", "3"]) == 0
    assert "1 passed" in capfd.readouterr().out


def test_a_cell_that_needs_a_newer_torch_is_not_run_and_keeps_its_tag(clone):
    path = clone / "03_sound.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("1 / 0", metadata={"tags": ["needs:torch>=99"]}))
    nbformat.write(notebook, path)
    assert main(["lessons", "refresh", "3"]) == 0
    (cell,) = (c for c in nbformat.read(path, as_version=4).cells if c.source == "1 / 0")
    assert cell.metadata.tags == ["needs:torch>=99"] and cell.outputs == []
    said = r"^03_sound\.ipynb, cell \[2\] needs torch>=99, but this is torch 2"
    with pytest.raises(pytest.skip.Exception, match=said):
        LessonCell.runtest(SimpleNamespace(cell=cell, path=path, name="cell [2]"))


def test_metadata_is_the_course_s_own(stored):
    notebook = nbformat.read(stored, as_version=4)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert toy.cell(notebook, "solution").metadata.jupyter.source_hidden is True
    assert all(cell.metadata.slideshow.slide_type for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


def test_an_empty_cell_is_left_out(clone):
    path = clone / "03_sound.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1:1] = [nbformat.v4.new_code_cell(" \n")]
    notebook.cells.append(nbformat.v4.new_code_cell(""))
    nbformat.write(notebook, path)
    assert main(["lessons", "refresh", "3"]) == 0
    assert [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"] == ["1 + 1"]


def test_what_was_saved_while_a_lesson_ran_is_not_lost(clone, capsys):
    path = clone / "03_sound.ipynb"
    notebook = nbformat.read(path, as_version=4)
    # The author writes on in JupyterLab, and saves.
    notebook.cells[1].source = f"open({str(path)!r}, 'a').write('\\n\\n')"
    nbformat.write(notebook, path)
    before = path.read_text()
    assert main(["lessons", "refresh", "3"]) == 1
    assert path.read_text() == before + "\n\n"
    assert "03_sound.ipynb: not stored: notebooks/03_sound.ipynb was saved by somebody else" in capsys.readouterr().out


def test_what_was_saved_while_links_were_written_is_not_lost(clone, capsys, monkeypatch):
    path, write = clone / "02_broken.ipynb", pages.write

    def meanwhile(notebook, written, lessons):
        write(notebook, written, lessons)
        if written.name == path.name:
            path.write_bytes(path.read_bytes() + b"\n\n")

    before = path.read_bytes()
    monkeypatch.setattr(pages, "write", meanwhile)
    assert main(["lessons", "refresh", "3"]) == 2
    assert path.read_bytes() == before + b"\n\n"
    assert capsys.readouterr().err.startswith("notebooks/02_broken.ipynb was saved by somebody else in the meantime")


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"cells": [{"cell_type"',
        "<<<<<<< HEAD\n{}",
        '{"worksheets": [], "nbformat": 3}',
        '{"cells": []}',
        "[1]",
        '{"cells": [null]}',
        '{"cells": [{"cell_type": "code", "source": [1], "metadata": {}}]}',
    ],
)
def test_a_damaged_lesson_is_named_and_no_copy_is_made_of_it(clone, capsys, monkeypatch, tmp_path, text):
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    (clone / "02_broken.ipynb").unlink()
    path = clone / "03_sound.ipynb"
    path.write_text(text)
    for action in ("list", "copy", "student", "assignment", "instructor", "verify"):
        assert main(["lessons", action]) == 2
        assert capsys.readouterr().err.startswith("notebooks/03_sound.ipynb is not a notebook with cells")
    assert main(["lessons", "refresh", "3"]) == 2
    assert "03_sound.ipynb: not stored: notebooks/03_sound.ipynb is not a notebook" in capsys.readouterr().out
    assert path.read_text() == text and not (tmp_path / "my").exists()


def test_a_lesson_that_another_program_has_saved_is_stored_as_the_course_s(clone):
    path = clone / "03_sound.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.nbformat_minor = 0
    for cell in notebook.cells:
        del cell["id"]
        cell.metadata.update(colab={"base_uri": "x"}, id="a1", executionInfo={"status": "ok"})
    notebook.metadata.update(widgets={"application/vnd.jupyter.widget-state+json": {}}, colab={"provenance": []})
    text = json.dumps(notebook, indent=2).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert main(["lessons", "refresh", "3"]) == 0
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == METADATA and notebook.nbformat_minor == 5
    assert all({*cell.metadata} <= {"slideshow", "tags"} for cell in notebook.cells)
    assert b"\r" not in path.read_bytes()


def _kernel(command):
    """Whether a kernel of this process has been started."""
    with contextlib.suppress(psutil.Error):
        return any("ipykernel_launcher" in child.cmdline() for child in psutil.Process(command.pid).children())


@pytest.mark.skipif(os.name != "posix", reason="processes are interrupted otherwise")
@pytest.mark.parametrize("when", ["as the kernel starts", "as a cell runs"])
def test_ctrl_c_ends_the_whole_command(clone, tmp_path, when):
    for name in ("02_broken", "03_sound"):
        path = clone / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[1].source = f"open('{tmp_path}/{name}', 'w').close()\nimport time\ntime.sleep(60)"
        nbformat.write(notebook, path)
    command = subprocess.Popen(
        [sys.executable, "-m", "cs336kit", "lessons", "refresh"],
        stdout=-1,
        stderr=-1,
        text=True,
        start_new_session=True,
    )
    begun = (tmp_path / "02_broken").exists if when == "as a cell runs" else lambda: _kernel(command)
    while not begun() and command.poll() is None:
        time.sleep(0.01)
    os.killpg(command.pid, signal.SIGINT)
    try:
        out, err = command.communicate(timeout=60)
    finally:
        command.kill()
    # Before that, the kernel may say why it could not go on.
    assert (command.returncode, out, err.splitlines()[-1:]) == (130, "", ["Stopped."])
    assert when == "as a cell runs" or err == "Stopped.\n"
    assert not (tmp_path / "03_sound").exists()
