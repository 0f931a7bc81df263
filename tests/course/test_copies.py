"""The reader's copies: made once, followed while untouched, never overwritten."""

import json
import os
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from nbformat.sign import NotebookNotary

from cs336course.copies import COPIES, MANIFEST, content
from cs336course.readme import BEGIN, END, OPENED, OPENS
from cs336kit import files as _replacing
from cs336kit.command import main
from cs336kit.files import write_whole

FIGURE = "<svg>\n<path/>\n</svg>\n"


def lesson(name, text="1 + 1"):
    """Write a lesson with one code cell, and a figure among its outputs."""
    shown = nbformat.v4.new_output("display_data", {"image/svg+xml": FIGURE, "text/plain": "Figure: a path"})
    cells = [
        nbformat.v4.new_markdown_cell(f"# {name[:2]} · A toy\n\nA promise."),
        nbformat.v4.new_code_cell(text, execution_count=1, outputs=[shown], metadata={"tags": ["exercise"]}),
    ]
    path = Path("notebooks") / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def as_jupyterlab_saves(path, change=lambda notebook: None):
    """The file after JupyterLab opened it: kernel, trust and folding in the metadata, other lines, other indentation."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.update(kernelspec={"display_name": "Python 3 (ipykernel)", "name": "python3"}, toc={"show": True})
    for cell in notebook.cells:
        cell.metadata.update(trusted=True, collapsed=True)
    change(notebook)
    path.write_text(json.dumps(notebook, indent=4, sort_keys=True), encoding="utf-8")


def edited(notebook):
    notebook.cells[1].source = "1 + 2"


def ran(notebook):
    notebook.cells[1].execution_count = 7


def showed(notebook):
    notebook.cells[1].outputs[0].data["text/plain"] = "Figure: another path"


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A folder with two lessons, and a folder of one's own for Jupyter's signatures."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    Path("notebooks").mkdir()
    return lesson("00_first"), lesson("01_second")


@pytest.fixture
def said(capsys):
    """What the command tells the reader."""

    def copy(*names):
        assert main(["lessons", "copy", *names]) == 0
        return capsys.readouterr().out

    return copy


def test_the_first_copies_are_the_lessons_and_trusted(clone, said):
    assert "Copied into my/: 00_first.ipynb, 01_second.ipynb." in said()
    for path in clone:
        mine = COPIES / path.name
        assert mine.read_bytes() == path.read_bytes()
        assert NotebookNotary().check_signature(nbformat.read(mine, as_version=4))
    assert said() == ""


def test_many_copies_are_named_by_the_first_and_the_last(clone, said):
    lesson("02_third")
    assert "Copied into my/: 00_first.ipynb to 02_third.ipynb. These" in said()


def test_a_file_that_cannot_be_written_is_named_itself(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_whole(tmp_path / "absent" / "a.json", b"")
    assert caught.value.filename == str(tmp_path / "absent" / "a.json")


def test_two_that_write_a_file_at_once_do_not_hinder_each_other(tmp_path, monkeypatch):
    path, replace = tmp_path / "a.json", os.replace

    def after_another(beside, into):
        monkeypatch.setattr(os, "replace", replace)
        write_whole(path, b"the other's")
        replace(beside, into)

    monkeypatch.setattr(os, "replace", after_another)
    write_whole(path, b"mine")
    assert path.read_bytes() == b"mine" and list(tmp_path.iterdir()) == [path]


def test_a_write_that_is_stopped_leaves_nothing_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a.json", b"")
    assert list(tmp_path.iterdir()) == []


def test_one_lesson_by_its_number(clone, said):
    assert "01_second.ipynb" in said("1") and not (COPIES / "00_first.ipynb").exists()
    assert "Copied into my/: 00_first.ipynb." in said()


@pytest.mark.parametrize("change", [edited, ran, showed])
def test_opening_and_saving_is_no_work_and_editing_or_running_is(clone, said, change):
    said()
    mine = COPIES / "01_second.ipynb"
    before = content(mine)
    as_jupyterlab_saves(mine)
    assert mine.read_bytes() != clone[1].read_bytes() and content(mine) == before
    as_jupyterlab_saves(mine, change)
    assert content(mine) != before


def test_an_untouched_copy_follows_its_lesson(clone, said):
    said()
    as_jupyterlab_saves(COPIES / "01_second.ipynb")
    new = lesson("01_second", "a new cell")
    assert said() == "Updated in my/, because you had not worked in them yet: 01_second.ipynb.\n"
    assert (COPIES / new.name).read_bytes() == new.read_bytes()


def test_a_copy_with_work_is_kept_and_the_reader_is_told(clone, said):
    said()
    mine = COPIES / "01_second.ipynb"
    as_jupyterlab_saves(mine, edited)
    kept = mine.read_bytes()
    assert said() == "", "the lesson has not changed, so there is nothing to tell"
    new = lesson("01_second", "a new cell")
    for _ in range(2):
        told = said()
        assert "kept in my/ as you left them: 01_second.ipynb." in told and "rename yours" in told
        assert mine.read_bytes() == kept
    # What the sentence advises gives both.
    mine.rename(COPIES / "01_mine.ipynb")
    assert "Copied into my/: 01_second.ipynb." in said()
    assert mine.read_bytes() == new.read_bytes() and (COPIES / "01_mine.ipynb").read_bytes() == kept


def test_a_deleted_copy_is_made_again(clone, said):
    said()
    (COPIES / "00_first.ipynb").unlink()
    assert "Copied into my/: 00_first.ipynb." in said()


def test_the_copy_of_a_renamed_lesson_stays_and_the_reader_is_told_once(clone, said):
    said()
    clone[1].rename("notebooks/02_second.ipynb")
    told = said()
    assert "No longer in the course under these names: 01_second.ipynb. Your copies stay in my/." in told
    assert "Copied into my/: 02_second.ipynb." in told
    assert (COPIES / "01_second.ipynb").exists() and said() == ""


@pytest.mark.parametrize("manifest", [None, "{", "[]"])
def test_without_a_manifest_what_differs_is_the_reader_s(clone, said, manifest):
    said()
    mine = COPIES / "01_second.ipynb"
    as_jupyterlab_saves(mine, edited)
    kept = mine.read_bytes()
    (COPIES / MANIFEST).unlink() if manifest is None else (COPIES / MANIFEST).write_text(manifest)
    assert "kept in my/ as you left them: 01_second.ipynb." in said() and mine.read_bytes() == kept


def test_what_is_no_notebook_any_more_is_the_reader_s(clone, said):
    said()
    (COPIES / "00_first.ipynb").write_text("half a {")
    lesson("00_first", "a new cell")
    assert "kept" in said() and (COPIES / "00_first.ipynb").read_text() == "half a {"


def test_a_full_disk_is_a_sentence_and_leaves_no_half_of_a_copy(clone, said, capsys, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    COPIES.mkdir()

    def claimed(beside, path, otherwise=_replacing._claimed):
        if path.name != "01_second.ipynb":
            return otherwise(beside, path)
        beside.symlink_to("/dev/full")
        return os.open(os.devnull, os.O_RDONLY)

    with monkeypatch.context() as patch:
        patch.setattr(_replacing, "_claimed", claimed)
        assert main(["lessons", "copy"]) == 2
    assert capsys.readouterr().err == "my/01_second.ipynb cannot be read or written: No space left on device.\n"
    assert {path.name for path in COPIES.iterdir()} == {"00_first.ipynb"}
    # With space again, it goes on.
    assert "Copied into my/: 01_second.ipynb." in said()


def test_without_a_place_for_signatures_the_copies_are_made_and_the_reader_is_told(clone, said, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(NotebookNotary, "check_signature", full)
    assert "could not be marked as trusted (database or disk is full)" in said()
    assert (COPIES / "01_second.ipynb").exists()


def test_an_unknown_lesson_is_copied_nowhere(clone, capsys):
    assert main(["lessons", "copy", "42"]) == 2
    assert "no lesson '42' in notebooks" in capsys.readouterr().err and not COPIES.exists()


def test_the_table_of_the_readme_is_written_once_and_needs_its_marks(clone, capsys):
    readme = Path("README.md")
    readme.write_text(f"# A course\n{BEGIN}\nold\n{END}\n{OPENS}\n{OPENED}\nthe end\n", encoding="utf-8")
    for word in ("its table of lessons or its links were updated", "unchanged"):
        assert main(["lessons", "readme"]) == 0 and word in capsys.readouterr().out
    assert "01_second.ipynb" in readme.read_text() and readme.read_text().endswith(f"{OPENED}\nthe end\n")
    readme.write_text("# A course\n", encoding="utf-8")
    assert main(["lessons", "readme"]) == 2
    assert "README.md lacks the lines" in capsys.readouterr().err


def test_in_which_order_a_file_names_its_parts_is_no_work(clone):
    before = content(clone[0])
    notebook = json.loads(clone[0].read_text())
    for output in notebook["cells"][1]["outputs"]:
        output["data"] = dict(reversed(output["data"].items()))
    clone[0].write_text(json.dumps(notebook))
    assert content(clone[0]) == before
