import pytest

from cs336kit.course import cells


def cell(*tags, source="x"):
    return {"cell_type": "code", "source": source, "metadata": {"tags": list(tags)}}


@pytest.mark.parametrize(
    "tag", ["exercise", "measured:time", "claim:stride-4x4", "approx:1e-3", "approx:0.5", "needs:torch>=2.13", "gpu"]
)
def test_known_tags(tag):
    assert not cells.unknown_tags(cell(tag))


@pytest.mark.parametrize(
    "tag", ["nbval-skip", "raises-exception", "measured", "approx:much", "needs:torch=2", "Exercise", "claim:"]
)
def test_unknown_tags(tag):
    assert cells.unknown_tags(cell(tag)) == [tag]


def test_needs_are_compared_as_versions(monkeypatch):
    monkeypatch.setattr(cells.metadata, "version", lambda package: "2.9.1+cpu")
    assert "torch 2.9.1+cpu is installed" in cells.reason_to_skip(cell("needs:torch>=2.13"))
    assert cells.reason_to_skip(cell("needs:torch>=2.9")) is None
    assert cells.reason_to_skip(cell("needs:torch<2.10")) is None
    assert cells.reason_to_skip(cell("needs:torch<2.9"))


def test_gpu_cells_are_skipped_with_a_reason(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cells.reason_to_skip(cell("gpu")) == "needs a CUDA device, and there is none"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cells.reason_to_skip(cell("gpu")) is None


def test_ids_follow_the_text_and_are_unique():
    ids = cells.source_ids([cell(), cell(), cell(source="y")])
    assert len(set(ids)) == 3
    assert ids == cells.source_ids([cell("gpu"), cell(), cell(source="y")])
