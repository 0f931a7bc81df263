import dataclasses

import pytest

from benchmarks import published
from benchmarks.published import IF_NOTHING_OVERLAPS, TABLE, Row, rows

pytestmark = pytest.mark.proof

EVERY = rows()


@pytest.mark.parametrize("row", EVERY, ids=lambda row: f"{row.source}: {row.ran}")
def test_what_was_measured_is_what_is_predicted(row):
    assert row.holds, f"a published number is not where the answer puts it:\n{row}"


def test_rows_are_asked_once_have_a_source_and_say_why_they_differ():
    assert {row.source for row in EVERY} == set(TABLE["sources"])
    assert all(source.keys() == {"address", "date"} for source in TABLE["sources"].values())
    assert all(bool(row.plan) != bool(row.serve) for row in EVERY)
    far = [row for row in EVERY if row.within and abs(row.predicted[0] / row.published - 1) > 0.1]
    assert far and all(row.why for row in far)


def test_batches_that_were_run_are_those_whose_throughput_is_predicted():
    asked = [row for row in EVERY if "batch" in row.serve and row.quantity == "tokens/s of each GPU"]
    assert asked and all(row.answer.sustained.batch == row.serve["batch"] for row in asked)


def test_measured_runs_lie_on_both_sides_of_what_takes_time_if_nothing_overlaps():
    apart = [
        (row, IF_NOTHING_OVERLAPS[row.quantity](row.answer)) for row in EVERY if row.quantity in IF_NOTHING_OVERLAPS
    ]
    assert {"slower", "quicker"} == {
        "slower" if (value > row.published) == row.quantity.startswith("tokens/s") else "quicker"
        for row, value in apart
    }
    assert all(f"{value:,.4g}" in str(row).splitlines()[-1] for row, value in apart)


@pytest.mark.parametrize(
    ("quantity", "number", "within", "verdict"),
    [
        ("GiB of weights", 14.957, 1e-4, "14.957            14.96           1.000  within 0.01 % hold"),
        ("GiB of weights", 14.96, 1e-4, "within 0.01 % DO NOT HOLD"),
        ("tokens/s of a sequence", 300, None, "bounds DO NOT HOLD"),
        ("tokens/s of a sequence", 200, None, "bounds hold"),
        # Bounds are no number to be near to.
        ("tokens/s of a sequence", 200, 0.5, "within 50 % DO NOT HOLD"),
    ],
)
def test_a_row_that_does_not_hold_says_so(monkeypatch, capsys, quantity, number, within, verdict):
    asked = {"model": "llama-3-8b", "batch": 1}
    row = Row("a source", "what was run", quantity, number, serve=asked, within=within, why="Because.")
    assert verdict in str(row) and "serve: model='llama-3-8b', batch=1" in str(row) and "Because." in str(row)
    monkeypatch.setattr(published, "rows", lambda *words: [row])
    assert published.main([]) == (not row.holds)
    assert f"{int(row.holds)} of 1 rows hold" in capsys.readouterr().out


def test_words_choose_rows():
    assert {row.source for row in rows("torchtune", "DeepSeek-V3")} == {"torchtune", "megatron-bridge"}
    assert dataclasses.asdict(rows("QLoRA")[0])["plan"]["base"] == "nf4"
