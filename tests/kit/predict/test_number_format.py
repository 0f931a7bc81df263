"""Every property of a format against libraries that were written by others, and against all of its codes."""

import itertools
import math
from dataclasses import replace

import gfloat
import gfloat.formats
import ml_dtypes
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit.predict import FORMATS, NumberFormat
from cs336kit.predict.number_format import NAN_RULES

pytestmark = pytest.mark.torch

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
    ],
)
def test_the_flags_describe_formats_outside_the_table(rules, dtype):
    other = NumberFormat("other", **rules)
    assert_same(decoded(other), codes(other, dtype).astype(numpy.float64))
    info = ml_dtypes.finfo(dtype)
    assert (other.max, other.min_normal) == (float(info.max), float(info.smallest_normal))
    assert (other.min_subnormal, other.eps) == (float(info.smallest_subnormal), float(info.eps))


@pytest.mark.parametrize("name", ML_DTYPES)
def test_values_are_those_of_the_finite_codes(name):
    number_format = FORMATS[name]
    values = decoded(number_format)
    finite = numpy.unique(values[numpy.isfinite(values)])
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
    as_ieee = replace(e4m3, nan="ieee")
    assert (as_ieee.max, as_ieee.fields(as_ieee.largest)) == (240.0, "0.1110.111")
    assert (e4m3.max, e4m3.fields(e4m3.largest), len(e4m3.values())) == (448.0, "0.1111.110", 253)
    assert e4m3.decode("0.1111.110") == 448.0
    assert [code for code in range(256) if math.isnan(e4m3.decode(code))] == [0x7F, 0xFF]
    assert FORMATS["fp16"].fields(FORMATS["fp16"].largest) == "0.11110.1111111111"
    assert replace(e4m3, nan="none").max == 480.0
    assert replace(FORMATS["fp8_e5m2"], nan="all_ones").max == 98304.0
    assert replace(FORMATS["fp8_e5m2"], nan="none").max == 1.75 * 2**16
    assert replace(FORMATS["fp8_e5m2"], subnormals=False).max == FORMATS["fp8_e5m2"].max == 1.75 * 2**15


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"exponent_bits": 0, "fraction_bits": 3}, "exponent_bits must be a positive whole number"),
        ({"exponent_bits": True, "fraction_bits": 3}, "exponent_bits must be a positive whole number"),
        ({"exponent_bits": 4, "fraction_bits": -1}, "fraction_bits must be a whole number"),
        ({"exponent_bits": 4, "fraction_bits": 3, "storage_bits": 7}, "8 bits do not fit"),
        ({"exponent_bits": 12, "fraction_bits": 3}, "do not fit into fp64"),
        ({"exponent_bits": 4, "fraction_bits": 53}, "do not fit into fp64"),
        ({"exponent_bits": 4, "fraction_bits": 3, "nan": "some"}, "Known: ieee, all_ones"),
        ({"exponent_bits": 8, "fraction_bits": 0}, "a fraction bit"),
        # fp64 has nothing above 1.8e308, which the top exponent would mean, and nothing below its subnormals.
        ({"exponent_bits": 11, "fraction_bits": 52, "nan": "none"}, "leave the range of fp64"),
        ({"exponent_bits": 11, "fraction_bits": 52, "subnormals": False}, "leave the range of fp64"),
    ],
)
def test_a_format_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        NumberFormat("odd", **arguments)


def test_codes_and_values_that_do_not_exist_are_refused():
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


@pytest.mark.parametrize("fraction_bits", [0, 1, 3])
def test_without_subnormals_every_value_has_a_full_fraction(fraction_bits):
    made = NumberFormat("made", exponent_bits=4, fraction_bits=fraction_bits, nan="none", subnormals=False)
    assert made.min_subnormal == made.min_normal == made.decode(0) == min(map(abs, made.values())) == 2.0**-7


@given(st.integers(2, 6), st.integers(1, 5), st.sampled_from(NAN_RULES))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_format_follows_from_its_bits(exponent_bits, fraction_bits, nan):
    made = NumberFormat("made", exponent_bits=exponent_bits, fraction_bits=fraction_bits, nan=nan)
    bias = 2 ** (exponent_bits - 1) - 1
    assert made.bias == bias
    values = [made.decode(code) for code in range(made.codes)]
    up = values[: made.largest + 1]
    assert up == sorted(set(up)) and up[0] == 0 and up[1] == made.min_subnormal
    nans = {"ieee": 2 * (2**fraction_bits - 1), "all_ones": 2, "none": 0}[nan]
    assert sum(map(math.isnan, values)) == nans and sum(map(math.isinf, values)) == 2 * made.infinities
    last = 2 if nan == "all_ones" else 1
    field = 2**exponent_bits - (2 if made.infinities else 1)
    assert made.max == (2 - last * 2.0**-fraction_bits) * 2.0 ** (field - bias)
    assert (made.min_normal, made.min_subnormal) == (2.0 ** (1 - bias), 2.0 ** (1 - bias - fraction_bits))
    for low, high in itertools.pairwise(up):
        assert high - low == made.spacing(low)
        middle = (low + high) / 2
        below, above = (made.round(math.nextafter(middle, way)) for way in (low, high))
        assert (below, above) == (low, high)
    assert all(made.encode(x) == code for code, x in enumerate(up))
