"""The bit explorer: its static twin, and its controls when they are used."""

import math

import pytest

from cs336kit.predict import FORMATS, NumberFormat
from cs336kit.teach import explorers

pytestmark = pytest.mark.torch


def test_the_text_twin_shows_fields_formula_and_spacing():
    lines = repr(explorers.bits(0.1, "fp16")).splitlines()
    assert lines[0] == "fp16  sign 0  exponent 01011  fraction 1001100110"
    assert lines[1] == "(1 + 614/1024) × 2^(11 - 15) = 0.0999755859375"
    assert lines[2].endswith("(2^-14)")
    assert lines[3] == "0.1 becomes this value in fp16" and len(repr(explorers.bits(0.5)).splitlines()) == 3


@pytest.mark.parametrize("name", [name for name in FORMATS if isinstance(FORMATS[name], NumberFormat)])
def test_formulas_make_the_value(name):
    for value in (1.0, 0.3, 1e-6, 2.0):
        explorer = explorers.bits(value, name)
        left, right = explorer.formula().split("   ")[0].replace("^", "**").replace("×", "*").split(" = ")
        assert eval(left) == float(right) == explorer.value == FORMATS[name].round(value)
        assert "".join(bits for _, bits in explorer.fields()) == f"{explorer.code:0{FORMATS[name].bits}b}"


def test_what_is_no_number_says_why():
    assert explorers.bits(math.nan, "fp8_e4m3").formula() == "reserved code → NaN"
    assert explorers.bits(-math.inf, "fp16").formula() == "all-ones exponent → -inf"
    assert explorers.bits(math.inf, "fp16").neighbours() == "no neighbors"
    assert "subnormal" in explorers.bits(-1e-6, "fp16").formula()
    with pytest.raises(ValueError, match="choose fp4_e2m1 instead"):
        explorers.bits(1.0, "mxfp4")
    with pytest.raises(ValueError, match="unknown number format"):
        explorers.bits(1.0, "fp7")


@pytest.mark.parametrize("name", ["fp4_e2m1", "fp8_e4m3", "fp8_e5m2", "e8m0"])
def test_next_above_and_below_visit_every_value_in_order(name):
    values = sorted(set(FORMATS[name].values()))
    explorer = explorers.bits(values[0], name)
    for way, wanted in ((1, values), (-1, values[::-1])):
        for value in wanted[1:]:
            explorer.code = explorer.neighbour(way)
            assert explorer.value == value
    outermost = explorers.bits(-math.inf if FORMATS[name].infinities else values[0], name)
    with pytest.raises(ValueError, match=f"is the smallest value of {name}"):
        outermost.neighbour(-1)


def test_html_has_a_box_per_bit():
    page = explorers.bits(0.1, "bf16")._repr_html_()
    assert page.count("<span") == 16
    assert all(word in page for word in ("sign", "exponent", "fraction", "bf16"))


def test_controls_move_together():
    explorer = explorers.bits(0.1, "fp16")
    choice, number, pattern, _, step, note, picture = explorer.widget().children
    choice.value = "fp8_e4m3"
    assert (explorer.value, pattern.value) == (0.1015625, "0.0011.101")
    pattern.value = "0.1111.110"
    assert (number.value, explorer.value) == ("448.0", 448.0)
    step.children[1].click()
    assert number.value == "448.0" and "448.0 is the largest value of fp8_e4m3" in note.value
    number.value = "nan"
    step.children[0].click()
    assert "NaN has no neighbors" in note.value
    number.value = "-3.3"
    assert (number.value, explorer.value) == ("-3.3", -3.25) and "-3.3 becomes this value in fp8_e4m3" in picture.value
    step.children[1].click()
    assert number.value == "-3.0" and note.value == '<div role="status"></div>'
    step.children[0].click()
    for box, text, sentence in ((number, "three", "is not a number"), (pattern, "0101", "has 8 bits")):
        box.value = text
        assert sentence in note.value
        assert explorer.value == -3.25 and (number.value, pattern.value) == ("-3.25", "1.1000.101")


def test_the_value_of_the_reader_is_kept_when_the_format_changes():
    explorer = explorers.bits(0.1, "fp8_e4m3")
    choice, number, *_ = explorer.widget().children
    choice.value = "fp64"
    assert explorer.value == 0.1 and number.value == "0.1"
    number.value = "0.3"
    for name in ("fp4_e2m1", "bf16", "fp64"):
        choice.value = name
        assert number.value == "0.3" and explorer.value == FORMATS[name].round(0.3)


def test_a_bit_flips_when_it_is_clicked():
    explorer = explorers.bits(1.0, "fp16")
    choice, number, _, fields, *_ = explorer.widget().children
    sign, exponent, fraction = (field.children[1].children for field in fields.children)
    assert [len(field) for field in (sign, exponent, fraction)] == [1, 5, 10]
    sign[0].click()
    fraction[0].click()
    assert (explorer.value, number.value, sign[0].description, fraction[0].description) == (-1.5, "-1.5", "1", "1")
    assert "sign" in sign[0].tooltip and "exponent" in exponent[0].tooltip
    choice.value = "e8m0"  # has no sign
    assert math.isnan(explorer.value) and number.value == "-1.5" and len(fields.children) == 1
    choice.value = "fp16"
    fields.children[0].children[1].children[0].click()
    choice.value = "fp8_e5m2"
    assert [len(field.children[1].children) for field in fields.children] == [1, 5, 2]
    fields.children[2].children[1].children[-1].click()
    assert explorer.value == 1.75
