"""The table of formats by name."""

import subprocess
import sys

import pytest

from cs336kit.predict import FORMATS, BlockFormat, NumberFormat

SCALARS = ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1", "e8m0"]
BLOCKS = ["mxfp8", "mxfp6", "mxfp4", "nvfp4"]


def test_the_table_holds_the_formats_of_the_course():
    assert list(FORMATS) == SCALARS + BLOCKS
    assert len(FORMATS) == 15
    assert all(isinstance(FORMATS[name], NumberFormat) for name in SCALARS)
    assert all(isinstance(FORMATS[name], BlockFormat) for name in BLOCKS)
    assert all(FORMATS[name].name == name for name in FORMATS)
    assert "bf16" in repr(FORMATS)


@pytest.mark.parametrize("name", ["bf-16", "float16", "", None, 16])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=r"unknown number format .*fp64, fp32, tf32.*nvfp4"):
        FORMATS[name]
    assert name not in FORMATS
    assert FORMATS.get(name) is None


@pytest.mark.parametrize(
    ("name", "exponent", "fraction", "bias", "bytes_"),
    [
        ("fp64", 11, 52, 1023, 8),
        ("fp32", 8, 23, 127, 4),
        ("tf32", 8, 10, 127, 4),
        ("bf16", 8, 7, 127, 2),
        ("fp16", 5, 10, 15, 2),
        ("fp8_e4m3", 4, 3, 7, 1),
        ("fp8_e5m2", 5, 2, 15, 1),
        ("fp6_e2m3", 2, 3, 1, 0.75),
        ("fp6_e3m2", 3, 2, 3, 0.75),
        ("fp4_e2m1", 2, 1, 1, 0.5),
        ("e8m0", 8, 0, 127, 1),
    ],
)
def test_layouts_are_those_of_the_standards(name, exponent, fraction, bias, bytes_):
    entry = FORMATS[name]
    assert (entry.exponent_bits, entry.fraction_bits, entry.bias, entry.bytes) == (exponent, fraction, bias, bytes_)


def test_formats_need_nothing_but_the_standard_library():
    code = "import sys, cs336kit.predict; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'ml_dtypes')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
