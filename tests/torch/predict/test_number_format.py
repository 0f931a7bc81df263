"""Every property of a format against libraries that were written by others, and against all of its codes."""

import itertools
import math

import gfloat
import gfloat.formats
import ml_dtypes
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit.predict import FORMATS, NumberFormat

ML_DTYPES = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": numpy.float16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "e8m0": torch.float8_e8m0fnu,
}
GFLOAT = {
    "bf16": gfloat.formats.format_info_bfloat16,
    "fp16": gfloat.formats.format_info_binary16,
    "fp8_e4m3": gfloat.formats.format_info_ocp_e4m3,
    "fp8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "fp6_e2m3": gfloat.formats.format_info_ocp_e2m3,
    "fp6_e3m2": gfloat.formats.format_info_ocp_e3m2,
    "fp4_e2m1": gfloat.formats.format_info_ocp_e2m1,
    "e8m0": gfloat.formats.format_info_ocp_e8m0,
}


def decoded(number_format):
    return numpy.array([number_format.decode(code) for code in range(number_format.codes)])


def codes(number_format, dtype):
    return numpy.arange(number_format.codes, dtype=numpy.uint16 if number_format.bits > 8 else numpy.uint8).view(dtype)


def assert_same(ours, theirs):
    """Equal values, NaN where NaN, and the same sign of zero."""
    numpy.testing.assert_array_equal(ours, theirs)
    numbers = ~numpy.isnan(ours)
    numpy.testing.assert_array_equal(numpy.signbit(ours[numbers]), numpy.signbit(theirs[numbers]))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_all_codes_equal_ml_dtypes(name):
    with numpy.errstate(invalid="ignore"):  # widening a signaling NaN sets the processor's flag
        theirs = codes(FORMATS[name], ML_DTYPES[name]).astype(numpy.float64)
    assert_same(decoded(FORMATS[name]), theirs)


@pytest.mark.parametrize("name", TORCH)
def test_all_codes_equal_torch(name):
    raw = codes(FORMATS[name], numpy.int16 if FORMATS[name].bits > 8 else numpy.uint8)
    assert_same(decoded(FORMATS[name]), torch.from_numpy(raw).view(TORCH[name]).double().numpy())


@pytest.mark.parametrize("name", [name for name in GFLOAT if FORMATS[name].bits <= 8])
def test_all_codes_equal_gfloat(name):
    theirs = [gfloat.decode_float(GFLOAT[name], code).fval for code in range(FORMATS[name].codes)]
    assert_same(decoded(FORMATS[name]), numpy.array(theirs))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_all_16_bit_codes_equal_gfloat(name):
    theirs = gfloat.decode_ndarray(GFLOAT[name], numpy.arange(2**16))
    assert_same(decoded(FORMATS[name]), numpy.asarray(theirs, dtype=numpy.float64))


@pytest.mark.parametrize(
    ("rules", "dtype"),
    [
        ({"exponent_bits": 4, "fraction_bits": 3}, ml_dtypes.float8_e4m3),
        ({"exponent_bits": 3, "fraction_bits": 4}, ml_dtypes.float8_e3m4),
        (
            {"exponent_bits": 4, "fraction_bits": 3, "bias": 8, "infinities": False, "nan": "negative_zero"},
            ml_dtypes.float8_e4m3fnuz,
        ),
        (
            {"exponent_bits": 5, "fraction_bits": 2, "bias": 16, "infinities": False, "nan": "negative_zero"},
            ml_dtypes.float8_e5m2fnuz,
        ),
        (
            {"exponent_bits": 4, "fraction_bits": 3, "bias": 11, "infinities": False, "nan": "negative_zero"},
            ml_dtypes.float8_e4m3b11fnuz,
        ),
    ],
)
def test_the_flags_describe_formats_outside_the_table(rules, dtype):
    other = NumberFormat("other", **rules)
    assert_same(decoded(other), codes(other, dtype).astype(numpy.float64))
    info = ml_dtypes.finfo(dtype)
    assert (other.max, other.min_normal) == (float(info.max), float(info.smallest_normal))
    assert (other.min_subnormal, other.eps) == (float(info.smallest_subnormal), float(info.eps))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_counts_equal_a_count_over_the_codes(name):
    number_format = FORMATS[name]
    values = decoded(number_format)
    assert number_format.nan_codes == numpy.isnan(values).sum()
    assert number_format.infinite_codes == numpy.isinf(values).sum()
    assert number_format.finite_codes == numpy.isfinite(values).sum()
    finite = numpy.unique(values[numpy.isfinite(values)])
    assert number_format.finite_values == len(finite)
    assert number_format.values() == finite.tolist()
    assert number_format.max == finite.max()
    assert number_format.min_subnormal == finite[finite > 0].min()


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_range_equals_finfo(name):
    number_format, dtype = FORMATS[name], {**TORCH, "fp32": torch.float32, "fp64": torch.float64}[name]
    info = torch.finfo(dtype)
    assert (number_format.max, number_format.min_normal, number_format.eps) == (info.max, info.tiny, info.eps)
    assert number_format.bytes == torch.empty(0, dtype=dtype).element_size()


@pytest.mark.parametrize("x", [0.0, 1e-320, 1e-310, 0.1, 1.0, 3.0, -1e300])
def test_spacing_of_fp64_equals_python(x):
    assert FORMATS["fp64"].spacing(x) == math.ulp(x)


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_spacing_equals_the_distance_between_neighbors(name):
    values = FORMATS[name].values()
    positive = [x for x in values if x >= 0]
    for low, high in list(itertools.pairwise(positive))[::37]:
        assert FORMATS[name].spacing(low) == FORMATS[name].spacing(-low) == high - low


def test_tf32_is_19_bits_in_a_word_of_32():
    assert (FORMATS["tf32"].bits, FORMATS["tf32"].storage_bits, FORMATS["tf32"].bytes) == (19, 32, 4)


def test_whole_bytes_are_whole_numbers():
    sizes = {name: FORMATS[name].bytes for name in ("fp16", "fp32", "fp4_e2m1")}
    assert sizes == {"fp16": 2, "fp32": 4, "fp4_e2m1": 0.5} and type(sizes["fp16"]) is int
    assert NumberFormat("odd", exponent_bits=5, fraction_bits=3).bytes == 9 / 8


def test_the_worked_example_of_e4m3():
    e4m3 = FORMATS["fp8_e4m3"]
    as_ieee = e4m3.with_rules(infinities=True)
    assert (as_ieee.max, as_ieee.largest_code) == (240.0, "0.1110.111")
    assert (e4m3.max, e4m3.largest_code, e4m3.finite_values) == (448.0, "0.1111.110", 253)
    assert e4m3.decode("0.1111.110") == 448.0
    assert [code for code in range(256) if math.isnan(e4m3.decode(code))] == [0x7F, 0xFF]
    assert FORMATS["fp16"].largest_code == "0.11110.1111111111"
    assert e4m3.with_rules(nan="none").max == 480.0
    assert [e4m3.with_rules(nan=rule).nan_codes for rule in ("none", "negative_zero", "all_ones")] == [0, 1, 2]
    assert FORMATS["fp8_e5m2"].with_rules(infinities=False).max == 98304.0
    assert FORMATS["fp8_e5m2"].with_rules(infinities=False, nan="none").max == 1.75 * 2**16
    assert FORMATS["fp8_e5m2"].with_rules(subnormals=False).max == FORMATS["fp8_e5m2"].max == 1.75 * 2**15


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"exponent_bits": 0, "fraction_bits": 3}, "exponent_bits must be a positive whole number"),
        ({"exponent_bits": True, "fraction_bits": 3}, "exponent_bits must be a positive whole number"),
        ({"exponent_bits": 4, "fraction_bits": -1}, "fraction_bits must be a whole number"),
        ({"exponent_bits": 4, "fraction_bits": 3, "storage_bits": 7}, "8 bits do not fit"),
        ({"exponent_bits": 12, "fraction_bits": 3}, "do not fit into fp64"),
        ({"exponent_bits": 4, "fraction_bits": 53}, "do not fit into fp64"),
        ({"exponent_bits": 4, "fraction_bits": 3, "nan": "some"}, "known are ieee, all_ones"),
        ({"exponent_bits": 4, "fraction_bits": 3, "nan": "none"}, "infinities need nan='ieee'"),
        ({"exponent_bits": 4, "fraction_bits": 3, "infinities": False}, "give infinities=True"),
        ({"exponent_bits": 8, "fraction_bits": 0}, "a fraction bit"),
        # fp64's own bias is 1023.
        ({"exponent_bits": 11, "fraction_bits": 52, "bias": 1022}, "leave the range of fp64"),
        ({"exponent_bits": 11, "fraction_bits": 52, "bias": 1024}, "leave the range of fp64"),
    ],
)
def test_a_format_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        NumberFormat("odd", **arguments)


def test_codes_values_and_rules_that_do_not_exist_are_refused():
    e4m3 = FORMATS["fp8_e4m3"]
    for code in (-1, 256, True, 1.0):
        with pytest.raises(ValueError, match="from 0 to 255"):
            e4m3.decode(code)
    for digits in ("", ".", "2", "0.1111.11x"):
        with pytest.raises(ValueError, match=r"is not a code of fp8_e4m3: give an integer"):
            e4m3.decode(digits)
    for x in (449.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="no values around"):
            e4m3.spacing(x)
    with pytest.raises(ValueError, match=r"at most 16 bits"):
        NumberFormat("odd", exponent_bits=8, fraction_bits=8).values()
    with pytest.raises(ValueError, match="the rules are infinities, nan"):
        e4m3.with_rules(infinity=True)


RULES = st.sampled_from(
    [
        {"infinities": True, "nan": "ieee"},
        {"infinities": False, "nan": "all_ones"},
        {"infinities": False, "nan": "negative_zero"},
        {"infinities": False, "nan": "none"},
    ]
)


@given(st.integers(2, 6), st.integers(1, 5), st.integers(-3, 20), RULES)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_format_follows_from_its_bits(exponent_bits, fraction_bits, bias, rules):
    made = NumberFormat("made", exponent_bits=exponent_bits, fraction_bits=fraction_bits, bias=bias, **rules)
    values = [made.decode(code) for code in range(made.codes)]
    up = values[: made.largest + 1]
    assert up == sorted(set(up)) and up[0] == 0 and up[1] == made.min_subnormal
    assert made.finite_values == len({x for x in values if math.isfinite(x)})
    assert made.nan_codes == sum(map(math.isnan, values)) and made.infinite_codes == sum(map(math.isinf, values))
    last = {"ieee": 1, "all_ones": 2}.get(rules["nan"], 1)
    field = 2**exponent_bits - (2 if rules["infinities"] else 1)
    assert made.max == (2 - last * 2.0**-fraction_bits) * 2.0 ** (field - bias)
    assert (made.min_normal, made.min_subnormal) == (2.0 ** (1 - bias), 2.0 ** (1 - bias - fraction_bits))
    for low, high in itertools.pairwise(up):
        assert high - low == made.spacing(low)
        middle = (low + high) / 2
        below, above = (made.round(math.nextafter(middle, way)) for way in (low, high))
        assert (below, above) == (low, high)
    assert all(made.encode(x) == code for code, x in enumerate(up))


@pytest.mark.parametrize("without", ["signed", "subnormals"])
def test_not_a_number_in_place_of_minus_zero_needs_a_minus_zero(without):
    with pytest.raises(
        ValueError, match=r"nan='negative_zero' takes the code of −0, so give signed=True and subnormals=True"
    ):
        FORMATS["fp8_e4m3"].with_rules(nan="negative_zero", **{without: False})
