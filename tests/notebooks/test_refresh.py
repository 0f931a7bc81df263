import nbformat
import pytest
import toy_lesson as toy

from cs336kit.course import refresh as storing


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("notebooks") / "99_toy.ipynb"
    toy.write(path)
    return path


def test_a_second_refresh_changes_nothing(stored):
    before = stored.read_bytes()
    assert storing.refresh(stored) is False
    assert stored.read_bytes() == before


def test_fresh_measures_again_and_nothing_else(stored, tmp_path):
    copy = tmp_path / stored.name
    copy.write_bytes(stored.read_bytes())
    assert storing.refresh(copy, fresh=True) is True
    old, new = (nbformat.read(path, as_version=4) for path in (stored, copy))
    changed = [a.source for a, b in zip(old.cells, new.cells, strict=True) if a != b]
    assert changed == [toy.cell(old, "time").source]


def test_a_changed_measured_cell_is_measured_again(stored, tmp_path):
    copy = tmp_path / stored.name
    notebook = nbformat.read(stored, as_version=4)
    toy.cell(notebook, "time").source = "import time\nprint('new', time.time())"
    nbformat.write(notebook, copy)
    storing.refresh(copy)
    cell = toy.cell(nbformat.read(copy, as_version=4), "time")
    assert cell.outputs[0].text.startswith("new")


def test_a_failing_cell_stores_nothing_and_says_so(stored, tmp_path, capsys, monkeypatch):
    path = tmp_path / "97_toy.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    monkeypatch.setattr(storing, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(storing.find, "__defaults__", (tmp_path,))
    assert storing.main(["97"]) == 1
    assert path.read_bytes() == before
    assert "not stored, because a cell failed" in capsys.readouterr().out


def test_an_unknown_lesson_lists_the_known_ones(stored):
    with pytest.raises(ValueError, match="no lesson '42'.*99_toy"):
        storing.find(["42"], stored.parent)
    assert storing.find(["99"], stored.parent) == [stored] == storing.find([], stored.parent)


def test_metadata_is_the_course_s_own(stored):
    notebook = nbformat.read(stored, as_version=4)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert toy.cell(notebook, "solution").metadata.jupyter.source_hidden is True
    assert all(cell.metadata.slideshow.slide_type for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
