import math
from fractions import Fraction

import numpy
import pytest

from cs336kit.predict import checks

pytestmark = pytest.mark.torch

NOT_NUMBERS = [True, False, "3", None, [1], 1j]
NOT_FINITE = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, 0, -1, 2.0, 2.5])
def test_positive_int_refuses(value):
    with pytest.raises(ValueError, match="batch must be a positive whole number"):
        checks.positive_int("batch", value)


def test_positive_int_accepts_python_and_numpy_integers():
    assert checks.positive_int("batch", 3) == 3
    assert type(checks.positive_int("batch", numpy.int32(3))) is int


def test_a_whole_float_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"got 2\.0 of type float\. Write int\(batch\)"):
        checks.positive_int("batch", 2.0)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, -1, 0.0])
def test_non_negative_int_refuses(value):
    with pytest.raises(ValueError, match="offset must be a whole number"):
        checks.non_negative_int("offset", value)


def test_non_negative_int_accepts_zero():
    assert checks.non_negative_int("offset", 0) == 0


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, 0, -0.5])
def test_positive_number_refuses(value):
    with pytest.raises(ValueError, match="tokens must be a finite number above 0"):
        checks.positive_number("tokens", value)


def test_positive_number_keeps_ints_exact():
    assert type(checks.positive_number("tokens", 10**30)) is int
    assert checks.positive_number("tokens", 15e12) == 15e12
    assert type(checks.positive_number("tokens", numpy.float32(0.5))) is float


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, 0, -1, 0.0, 2.5, -3.0])
def test_count_refuses(value):
    with pytest.raises(ValueError, match="parameters must be a positive whole number, such as"):
        checks.count("parameters", value)


def test_count_accepts_scientific_notation():
    assert checks.count("parameters", 70e9) == 70 * 10**9
    assert type(checks.count("parameters", 70e9)) is int


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, 0, -0.1, 1.01, 50])
def test_fraction_refuses(value):
    with pytest.raises(ValueError, match="mfu must be a fraction above 0 and at most 1"):
        checks.fraction("mfu", value)


def test_fraction_names_the_percentage():
    with pytest.raises(ValueError, match="If 50 is a percentage, divide it by 100"):
        checks.fraction("mfu", 50)
    for value in (0, -5, 101):
        with pytest.raises(ValueError) as error:
            checks.fraction("mfu", value)
        assert "percentage" not in str(error.value)


def test_a_hundred_is_a_percentage():
    with pytest.raises(ValueError, match="If 100 is a percentage"):
        checks.fraction("mfu", 100)
    with pytest.raises(ValueError, match=r"from 0 to 1, got -0.5\.$"):
        checks.fraction("dropout", -0.5, zero=True)


def test_numbers_of_numpy_have_the_same_limits():
    assert checks.positive_int("batch", numpy.int8(1)) == 1 == checks.count("tokens", numpy.int8(1))
    with pytest.raises(ValueError, match=r"batch must be a positive whole number \(int\), got .*0"):
        checks.positive_int("batch", numpy.int8(0))
    with pytest.raises(ValueError, match="a number that no float can hold"):
        checks.positive_number("tokens", Fraction(10**400))
    with pytest.raises(ValueError, match=r"of type float\.$"):
        checks.positive_int("batch", 2.5)


def test_at_most_and_several():
    assert checks.at_most("count", 100, 100) == 100
    with pytest.raises(ValueError, match=r"count must be at most 10\*\*2, got 1000"):
        checks.at_most("count", 1000, 100)
    assert checks.several("names", "one") == ("one",) and checks.several("names", ["a", "b"]) == ("a", "b")
    with pytest.raises(ValueError, match="sizes must be numbers in a row, such as a tuple, got 3"):
        checks.several("sizes", 3, "numbers")
    for value in (0, "no", None):
        with pytest.raises(ValueError, match="sharded must be True or False"):
            checks.boolean("sharded", value)


def test_fraction_accepts_its_ends():
    assert checks.fraction("mfu", 1) == 1.0
    assert checks.fraction("dropout", 0, zero=True) == 0.0


def test_known_returns_the_entry():
    assert checks.known("format", "bf16", {"fp32": 4, "bf16": 2}) == 2


def test_known_lists_and_suggests():
    with pytest.raises(ValueError) as error:
        checks.known("format", "BF-16", {"fp32": 4, "bf16": 2})
    assert str(error.value) == "unknown format 'BF-16'. Did you mean 'bf16'? Known: fp32, bf16."


@pytest.mark.parametrize("name", [None, 7, [], {}, "zzz", ""])
def test_known_refuses_anything_else(name):
    with pytest.raises(ValueError, match="Known: fp32, bf16"):
        checks.known("format", name, {"fp32": 4, "bf16": 2})


def test_a_value_is_shown_on_one_line_of_at_most_80_characters():
    for value in ("x" * 999, ["x" * 999] * 9, numpy.random.rand(999), -(10**9999), {1: "x" * 999}):
        text = checks.shown(value)
        assert 10 < len(text) <= 80 and "\n" not in text
    assert len(checks.shown(["x" * 999] * 9)) == 80


def test_of_a_number_that_is_too_long_the_digits_are_counted():
    assert checks.shown(2**240) == "a number of about 73 digits"
    assert checks.shown(10**1000 - 1) == checks.shown(1 - 10**1000) == "a number of about 1000 digits"


def test_a_short_value_is_shown_as_it_is():
    for value in ("three", "x" * 78, 1.5, (1, 2), None, 10**60, 2**240 - 1, -3, numpy.float64(0.5)):
        assert checks.shown(value) == repr(value)


def test_where_a_value_begins_to_be_cut():
    # Up to 240 bits a whole number is written out, which 73 digits hold; beyond it, how many digits it has.
    assert checks.shown(2**240 - 1) == repr(2**240 - 1)
    assert checks.shown(2**240) == "a number of about 73 digits" == checks.shown(-(2**240))
    assert checks.shown(10**99) == "a number of about 99 digits"
    for value, length in (("x" * 78, 80), (["x" * 36, "y" * 36], 80)):
        assert checks.shown(value) == repr(value) and len(repr(value)) == length
    longer = ["x" * 36, "y" * 37]
    assert checks.shown(longer) == repr(longer)[:77] + "..."


def test_what_cannot_be_written_down_step_by_step_or_as_a_float():
    assert checks.steps("layers", 10**6) == 10**6
    with pytest.raises(ValueError, match=r"layers must be at most 10\*\*6, got 1000001"):
        checks.steps("layers", 10**6 + 1)
    with pytest.raises(ValueError, match="width must be at most 64, got 65"):
        checks.at_most("width", 65, 64)
    with pytest.raises(ValueError, match="no float can hold"), checks.finite_results():
        float(10**400)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, *NOT_FINITE, -1, -0.5])
def test_non_negative_number_refuses(value):
    with pytest.raises(ValueError, match="latency must be a finite number of at least 0"):
        checks.non_negative_number("latency", value)
    assert checks.non_negative_number("latency", 0) == 0
