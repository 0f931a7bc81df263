from types import SimpleNamespace

import nbformat
import pytest
import toy_lesson as toy

from cs336kit.cli import main
from cs336kit.course.lessons import find
from cs336kit.course.refresh import refresh
from cs336kit.course.verify import LessonCell


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebooks") / "99_toy.ipynb"
    toy.write(path)
    return path


def test_a_second_refresh_changes_nothing(stored):
    before = stored.read_bytes()
    assert refresh(stored) is False
    assert stored.read_bytes() == before


def test_fresh_measures_again_and_nothing_else(stored, tmp_path):
    copy = tmp_path / stored.name
    old = nbformat.read(stored, as_version=4)
    # No cell that imports the kit, and torch with it: of what is not measured they are kept as the others are.
    old.cells = [cell for cell in old.cells if "teach" not in cell.source]
    nbformat.write(old, copy)
    assert refresh(copy, fresh=True) is True
    new = nbformat.read(copy, as_version=4)
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
    """A folder with lessons 02, which fails, and 03, which does not."""
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


def test_a_lesson_has_a_number_a_name_and_a_path(clone):
    broken, sound = find([])
    for name in ("2", "02", "02_broken", "notebooks/02_broken.ipynb"):
        assert find([name]) == [broken]
    assert find(["3", "2"]) == [sound, broken]


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
    with pytest.raises(pytest.skip.Exception, match="needs torch>=99, and this is torch 2"):
        LessonCell.runtest(SimpleNamespace(cell=cell))


def test_metadata_is_the_course_s_own(stored):
    notebook = nbformat.read(stored, as_version=4)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert toy.cell(notebook, "solution").metadata.jupyter.source_hidden is True
    assert all(cell.metadata.slideshow.slide_type for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
