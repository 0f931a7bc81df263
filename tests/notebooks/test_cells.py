import pytest

from cs336kit.course import cells


def cell(*tags, source="x"):
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}}


@pytest.mark.parametrize("tag", ["exercise", "measured:time", "approx:1e-3", "needs:torch>=2.13", "gpu"])
def test_known_tags(tag):
    assert not cells.unknown_tags(cell(tag))


@pytest.mark.parametrize(
    "tag",
    ["nbval-skip", "raises-exception", "measured", "approx:much", "needs:torch=2", "Exercise", "claim:stride-4x4"],
)
def test_unknown_tags(tag):
    assert cells.unknown_tags(cell(tag)) == [tag]


def test_needs_are_compared_as_versions(monkeypatch):
    monkeypatch.setattr(cells.metadata, "version", lambda package: "2.9.1+cpu")
    assert "and this is torch 2.9.1+cpu" in cells.unmet_need(cell("needs:torch>=2.13"))
    assert cells.unmet_need(cell("needs:torch>=2.9")) is None
    assert cells.unmet_need(cell("needs:torch<2.10")) is None
    assert cells.unmet_need(cell("needs:torch<2.9"))


@pytest.mark.parametrize(("width", "allowed"), [("1e-2", True), ("0.011", False), ("1e9", False)])
def test_a_tolerance_has_a_cap(width, allowed):
    assert (cells.tag_problem(cell(f"approx:{width}")) is None) == allowed


def test_gpu_cells_are_live_where_there_is_a_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cells.live(cell("gpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cells.live(cell("gpu")) and not cells.live(cell())


def test_ids_follow_the_text_and_are_unique():
    ids = cells.source_ids([cell(), cell(), cell(source="y")])
    assert len(set(ids)) == 3
    assert ids == cells.source_ids([cell("gpu"), cell(), cell(source="y")])


def test_a_cell_is_named_by_its_number_and_fifty_characters():
    assert cells.where({"source": "x" * 60, "execution_count": 7}) == f"cell 7 ({'x' * 50!r})"
    assert cells.where({"cell_type": "markdown", "source": ["\n", "one\n", "two"]}) == "cell of text ('one')"
