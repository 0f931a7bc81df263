"""Bits from memory against struct, and counts over all codes."""

import struct

import ml_dtypes
import numpy
import pytest
import torch

from cs336kit import measure

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, -1.5, 0.1, 6.1e-5, 1e-8, float("inf")])
@pytest.mark.parametrize(("dtype", "letter"), [(torch.float64, "d"), (torch.float32, "f"), (torch.float16, "e")])
def test_bits_equal_struct(x, dtype, letter):
    found = measure.bits(x, dtype)
    assert found.code == int.from_bytes(struct.pack(f">{letter}", x), "big")
    assert [len(found.sign), len(found.exponent), len(found.fraction)] == {
        "d": [1, 11, 52],
        "f": [1, 8, 23],
        "e": [1, 5, 10],
    }[letter]


def test_bfloat16_is_the_top_half_of_float32():
    assert measure.bits(1.5, torch.bfloat16).code == measure.bits(1.5, torch.float32).code >> 16


@pytest.mark.parametrize(
    ("dtype", "x", "text"),
    [
        (torch.float8_e4m3fn, 448.0, "0.1111.110"),
        (torch.float8_e5m2, -1.0, "1.01111.00"),
        (torch.float8_e8m0fnu, 2.0, "10000000"),
        (ml_dtypes.float4_e2m1fn, -6.0, "1.11.1"),
        (ml_dtypes.float6_e3m2fn, 28.0, "0.111.11"),
        (numpy.float16, 1.0, "0.01111.0000000000"),
    ],
)
def test_fields_of_small_formats(dtype, x, text):
    assert str(measure.bits(x, dtype)) == text


def test_tensors_keep_their_dtype_and_order():
    found = measure.bits(torch.tensor([[1.0, 2.0], [3.0, -4.0]], dtype=torch.float16).T)
    assert [str(number) for number in found] == [str(measure.bits(x, torch.float16)) for x in (1.0, 3.0, 2.0, -4.0)]
    assert measure.bits(torch.tensor(1.0)).dtype == "float32"
    assert str(measure.bits(torch.tensor(1.5), torch.bfloat16)) == "0.01111111.1000000"
    assert measure.bits(1.0).dtype == str(torch.get_default_dtype()).removeprefix("torch.")
    assert repr(measure.bits(1.0, torch.float8_e5m2)) == "0.01111.00  (float8_e5m2)"


def test_a_tensor_is_stored_in_a_format_of_ml_dtypes():
    x = torch.tensor([1.0, -6.0], dtype=torch.bfloat16, requires_grad=True)
    assert [str(number) for number in measure.bits(x, ml_dtypes.float4_e2m1fn)] == ["0.01.0", "1.11.1"]
    assert str(measure.bits(x[0], ml_dtypes.float4_e2m1fn)) == "0.01.0"


@pytest.mark.parametrize(
    ("dtype", "count"),
    [
        (torch.float16, 63487),
        (torch.bfloat16, 65279),
        (torch.float8_e4m3fn, 253),
        (torch.float8_e5m2, 247),
        (torch.float8_e8m0fnu, 255),
        (ml_dtypes.float4_e2m1fn, 15),
        (ml_dtypes.float6_e2m3fn, 63),
        (ml_dtypes.float8_e4m3fn, 253),
    ],
)
def test_so_many_of_all_values_are_finite(dtype, count):
    values = measure.all_values(dtype)
    assert len({*values[numpy.isfinite(values)].tolist()}) == count


def test_what_has_no_known_fields_is_refused():
    for dtype in (torch.int32, torch.complex64):
        with pytest.raises(ValueError, match="not a floating-point dtype"):
            measure.bits(1, dtype)
    with pytest.raises(ValueError, match=r"2\^32 codes"):
        measure.all_values(torch.float32)


def test_every_code_is_listed_once():
    assert len(measure.all_values(torch.float8_e4m3fn)) == 2**8 and len(measure.all_values(torch.bfloat16)) == 2**16
