import math

import numpy
import pytest
import torch

from cs336kit.predict import Breakdown
from cs336kit.teach import compare

pytestmark = pytest.mark.torch


def ratios(table):
    """Quantity → ``exact`` or measured ÷ predicted, as the table shows it."""
    return {row[0]: row[-1] for row in table.rows}


def test_equal_values_are_exact_and_others_a_ratio():
    table = compare(("a", 4, 4, "bytes"), ("b", 10, 11, "bytes"))
    assert ratios(table) == {"a": "exact", "b": "1.1000"}
    assert ratios(compare(("a", 4, 4.0))) == {"a": "exact"}


def test_what_no_float_can_hold_differs():
    assert ratios(compare(("a", 10**400, 5), ("b", 5, 10**400))) == {"a": "differs", "b": "differs"}
    assert ratios(compare(("a", 10**400, 10**400))) == {"a": "exact"}


def test_text_is_aligned_and_deterministic():
    rows = (("parameters", 124_439_808, 124_439_808), ("ratio", 0.5, 0.25))
    assert repr(compare(*rows)) == (
        "quantity      predicted      measured    ratio\n"
        "parameters   124,439,808   124,439,808    exact\n"
        "ratio                0.5          0.25   0.5000"
    ).replace("quantity      ", "quantity       ")
    assert compare(*rows)._repr_html_() == compare(*rows)._repr_html_()


@pytest.mark.parametrize(
    ("predicted", "measured", "ratio"),
    [
        (124_439_808, 124_439_809, "1.00000001"),
        (100_000, 99_997, "0.99997"),
        (10_000, 10_001, "1.0001"),
        (2**60, 2**60 + 1, "differs"),  # closer than a float can say
    ],
)
def test_a_ratio_near_one_has_the_digits_that_show_the_difference(predicted, measured, ratio):
    assert ratios(compare(("p", predicted, measured)))["p"] == ratio


@pytest.mark.parametrize(
    ("predicted", "measured", "ratio"),
    [
        (math.nan, math.nan, "exact"),
        (math.nan, 3.0, "differs"),
        (3.0, math.nan, "differs"),
        (math.nan, 3, "differs"),
        ((math.nan, 1), (2.0, 1), "differs"),
        (math.inf, math.inf, "exact"),
        (math.inf, 3.0, "differs"),
        (0, 3, "differs"),
        (True, True, "exact"),
        (True, 1, "differs"),
        (1, True, "differs"),
        ((2, 3), torch.Size([2, 3]), "exact"),
        ((2, 3), (2, 4), "differs"),
        ((2, 3), (3, 3), "differs"),
        ((2,), (2, 3), "differs"),
        ("bf16", "fp16", "differs"),
        (torch.float32, torch.float32, "exact"),
        (1.5, torch.tensor(1.5), "exact"),
        (3, numpy.int64(3), "exact"),
    ],
)
def test_kinds_of_values(predicted, measured, ratio):
    assert ratios(compare(("x", predicted, measured)))["x"] == ratio


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


def test_breakdowns_are_compared_by_component_and_in_total():
    predicted = Breakdown({"norms": 10, "mlp": 40, "loss": 5}, unit="bytes")
    measured = Breakdown({"mlp": 40, "norms": 11, "copies": 4}, unit="bytes")
    table = compare(predicted, measured, how="counted")
    assert table.headers == ("quantity", "predicted", "counted", "unit", "ratio")
    assert table.rows == (
        ("norms", "10", "11", "bytes", "1.1000"),
        ("mlp", "40", "40", "bytes", "exact"),
        ("loss", "5", "–", "bytes", "differs"),
        ("copies", "–", "4", "bytes", "differs"),
        ("total", "55", "55", "bytes", "exact"),
    )
    assert {*ratios(compare(predicted, predicted)).values()} == {"exact"}


def test_a_component_of_zero_that_one_side_lacks_is_not_exact():
    one, other = Breakdown({"a": 1, "b": 0}, unit="FLOPs"), Breakdown({"a": 1}, unit="FLOPs")
    assert ratios(compare(one, other))["b"] == "differs"


def test_breakdowns_need_one_unit_and_one_another():
    parts = Breakdown({"norms": 10}, unit="bytes")
    with pytest.raises(ValueError, match="bytes cannot be compared with FLOPs"):
        compare(parts, Breakdown({"norms": 10}, unit="FLOPs"))
    for rows in ((parts,), (parts, 10), (parts, parts, parts), (("a", 1, 1), parts)):
        with pytest.raises(ValueError, match="compared with one other Breakdown"):
            compare(*rows)


def test_the_heading_says_where_the_second_number_comes_from():
    assert compare(("a", 1, 1), how="datasheet").headers == ("quantity", "predicted", "datasheet", "ratio")
    shown = compare(("b", 2.0, 2.5, "s"), how="counted")
    assert shown.headers == ("quantity", "predicted", "counted", "unit", "ratio")
    with pytest.raises(ValueError, match="how='guessed' is not known.*measured, counted"):
        compare(("a", 1, 1), how="guessed")
