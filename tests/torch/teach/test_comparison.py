import math

import numpy
import pytest
import torch

from cs336kit.teach import compare, comparison, ledger


@pytest.fixture(autouse=True)
def empty_ledger(monkeypatch):
    monkeypatch.setattr(comparison, "_ledger", {})


def test_equal_values_are_exact_and_others_a_ratio():
    table = compare(("a", 4, 4, "bytes"), ("b", 10, 11, "bytes"))
    assert table.ratios == {"a": "exact", "b": "1.1000"}
    assert not table.exact
    assert compare(("a", 4, 4.0)).exact


def test_text_is_aligned_and_deterministic():
    rows = (("parameters", 124_439_808, 124_439_808), ("ratio", 0.5, 0.25))
    assert repr(compare(*rows)) == (
        "quantity      predicted      measured    ratio\n"
        "parameters   124,439,808   124,439,808    exact\n"
        "ratio                0.5          0.25   0.5000"
    ).replace("quantity      ", "quantity       ")
    assert compare(*rows)._repr_html_() == compare(*rows)._repr_html_()


def test_a_ratio_that_rounds_to_one_still_shows_the_difference():
    assert compare(("p", 124_439_808, 124_439_809)).ratios["p"] == "1+8.0e-09"


@pytest.mark.parametrize(
    ("predicted", "measured", "ratio"),
    [
        (math.nan, math.nan, "exact"),
        (math.inf, math.inf, "exact"),
        (math.inf, 3.0, "differs"),
        (0, 3, "differs"),
        (True, True, "exact"),
        (True, 1, "differs"),
        ((2, 3), torch.Size([2, 3]), "exact"),
        ("bf16", "fp16", "differs"),
        (torch.float32, torch.float32, "exact"),
        (1.5, torch.tensor(1.5), "exact"),
        (3, numpy.int64(3), "exact"),
    ],
)
def test_kinds_of_values(predicted, measured, ratio):
    assert compare(("x", predicted, measured)).ratios["x"] == ratio


def test_units_are_known_and_never_mixed():
    with pytest.raises(ValueError, match="unknown unit 'Gb'"):
        compare(("x", 1, 1, "Gb"))
    with pytest.raises(ValueError, match="mixes decimal and binary bytes"):
        compare(("x", 1, 1, "GB"), ("y", 1, 1, "GiB"))


@pytest.mark.parametrize("row", [("x", 1), ("x", 1, 2, "s", 5), "abc", 7])
def test_a_row_has_three_or_four_parts(row):
    with pytest.raises(ValueError, match="a row is"):
        compare(row)


def test_compare_needs_a_row():
    with pytest.raises(ValueError, match="at least one row"):
        compare()


def test_tensors_with_elements_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"torch\.equal"):
        compare(("x", torch.ones(2), torch.ones(2)))


def test_the_ledger_keeps_rows_once_and_in_order():
    for _ in range(2):
        compare(("a", 1, 1, "GB"))
        compare(("b", 2, 3, "GiB"))
        compare(("seconds", 1.0, 1.1, "s"), keep=False)
    assert list(ledger().ratios) == ["a", "b"]


def test_an_empty_ledger_says_what_to_do():
    with pytest.raises(ValueError, match="run the cells above"):
        ledger()
