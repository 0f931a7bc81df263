from pathlib import Path

import pytest

from cs336course import cells
from cs336course.lessons import find, read


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
    assert "but this is torch 2.9.1+cpu" in cells.unmet_need(cell("needs:torch>=2.13"))
    assert cells.unmet_need(cell("needs:torch>=2.9")) is None
    assert cells.unmet_need(cell("needs:torch<2.10")) is None
    assert cells.unmet_need(cell("needs:torch<2.9"))
    # A build before a release has what the release has.
    monkeypatch.setattr(cells.metadata, "version", lambda package: "2.13.0.dev20260101+cu130")
    assert cells.unmet_need(cell("needs:torch>=2.13")) is None
    assert "but this is torch 2.13.0.dev20260101+cu130" in cells.unmet_need(cell("needs:torch<2.13"))


@pytest.mark.parametrize(("width", "allowed"), [("1e-2", True), ("0.011", False), ("1e9", False)])
def test_a_tolerance_has_a_cap(width, allowed):
    assert (cells.tag_problem(cell(f"approx:{width}")) is None) == allowed


def test_gpu_cells_are_live_where_there_is_a_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not cells.live(cell("gpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cells.live(cell("gpu")) and not cells.live(cell())


def test_ids_and_digests_of_a_stored_lesson_are_those_of_its_cells():
    stored = read(find(["4"], Path(__file__).parents[2] / "notebooks")[0])
    assert cells.source_ids(stored) == [cell["id"] for cell in stored]
    measured = [cell for cell in stored if cells.measured(cell)]
    assert measured and all(map(cells.from_a_run, measured))


def test_ids_follow_the_text_and_are_unique():
    ids = cells.source_ids(three := [cell(), cell(), cell(source="y")])
    assert len(set(ids)) == 3
    cells.identify(three)
    assert [one["id"] for one in three] == ids
    assert ids == cells.source_ids([cell("gpu"), cell(), cell(source="y")])


def test_a_cell_is_named_by_its_number_and_fifty_characters():
    assert cells.where({"source": "x" * 60, "execution_count": 7}) == f"cell 7 ({'x' * 50!r})"
    assert cells.where({"cell_type": "markdown", "source": ["\n", "one\n", "two"]}) == "cell of text ('one')"


def test_the_value_of_a_tag_is_all_behind_its_first_colon():
    assert cells.valued(cell("measured:a:b", "gpu", "measured:c"), "measured") == ["a:b", "c"]
    assert cells.measured(cell("gpu", "measured:time")) and not cells.measured(cell("gpu"))


def test_a_cell_of_code_is_one_with_something_in_it():
    assert cells.is_code(cell()) and not cells.is_code(cell(source=[" ", "\n"]))
    assert not cells.is_code({"cell_type": "markdown", "source": "x"})


@pytest.mark.parametrize(
    ("stored", "whole"),
    [
        (["a\n", "b"], "a\nb"),
        ({"x": {"y": ["a", "b"]}}, {"x": {"y": "ab"}}),
        ([], []),
        (["a", 1], ["a", 1]),
        ([{"x": ["a", "b"]}], [{"x": "ab"}]),
        (3, 3),
    ],
)
def test_a_text_is_the_same_whole_or_in_lines(stored, whole):
    assert cells.joined(stored) == whole


def test_the_digest_of_a_run_is_that_of_its_text_and_outputs_and_of_nothing_else():
    def digest(source="x", **changed):
        output = {"output_type": "execute_result", "data": {"text/plain": ["4\n", "5"]}, "execution_count": 1}
        return cells.run_digest({"source": source, "outputs": [output | changed]})

    assert digest() == digest(execution_count=2) == digest(["x"], data={"text/plain": "4\n5"})
    ordered = {"data": {}, "output_type": "x"}
    assert cells.run_digest({"source": "x", "outputs": [ordered]}) == cells.run_digest(
        {"source": "x", "outputs": [dict(reversed(ordered.items()))]}
    )
    assert len({digest(), digest("y"), digest(data={"text/plain": "4"}), digest(metadata={"alt": "a"})}) == 4
