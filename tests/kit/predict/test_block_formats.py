"""Block formats: sizes by hand, MX against gfloat, NVFP4 against its definition."""

import math
from dataclasses import replace

import gfloat
import gfloat.formats
import numpy
import pytest

from cs336kit.predict import FORMATS, BlockFormat

pytestmark = pytest.mark.torch

MX = {
    "mxfp8": (gfloat.formats.format_info_mxfp8_e4m3, None),
    "mxfp6": (gfloat.formats.format_info_mxfp6_e2m3, None),
    "mxfp4": (gfloat.formats.format_info_mxfp4_e2m1, None),
    "mxfp8 (fp8_e5m2)": (gfloat.formats.format_info_mxfp8_e5m2, "fp8_e5m2"),
    "mxfp6 (fp6_e3m2)": (gfloat.formats.format_info_mxfp6_e3m2, "fp6_e3m2"),
}


@pytest.mark.parametrize(
    ("name", "bits", "block_size"), [("mxfp8", 8.25, 32), ("mxfp6", 6.25, 32), ("mxfp4", 4.25, 32), ("nvfp4", 4.5, 16)]
)
def test_sizes(name, bits, block_size):
    block_format = FORMATS[name]
    assert (block_format.bytes * 8, block_format.block_size) == (bits, block_size)


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("magnitude", [1e-30, 1.0, 3e4])
def test_mx_blocks_equal_gfloat(name, magnitude):
    info, element = MX[name]
    block_format = FORMATS[name.split()[0]]
    block_format = replace(block_format, element=FORMATS[element]) if element else block_format
    values = numpy.random.default_rng(2).normal(0, magnitude, 5 * 32)
    ours = block_format.dequantize(block_format.quantize(values.tolist()))
    saturating = block_format.element.max
    for start in range(0, len(values), 32):
        block = values[start : start + 32]
        scale = gfloat.compute_scale_amax(block_format.element.max_exponent, block)
        # gfloat's block encoder overflows E5M2 to infinity; the MX specification lets it saturate.
        clipped = numpy.clip(block / scale, -saturating, saturating)
        theirs = list(gfloat.decode_block(info, gfloat.encode_block(info, scale, clipped)))
        assert ours[start : start + 32] == theirs


def test_nvfp4_uses_the_whole_range():
    nvfp4 = FORMATS["nvfp4"]
    values = [0.1 * k for k in range(-24, 24)]
    tensor_scale = nvfp4.tensor_scale(values)
    assert tensor_scale == pytest.approx(2.4 / (6 * 448))
    blocks = nvfp4.quantize(values)
    assert len(blocks) == 3
    for block, start in zip(blocks, (0, 16, 32), strict=True):
        largest = max(abs(x) for x in values[start : start + 16])
        assert nvfp4.scale.decode(block.scale_code) == nvfp4.scale.round(
            largest / tensor_scale / 6, overflow="saturate"
        )
        assert block.factor == nvfp4.scale.decode(block.scale_code) * tensor_scale
        assert block.factor == pytest.approx(largest / 6, rel=1 / 16)
        for x, y in zip(values[start : start + 16], block.values, strict=True):
            # The coarsest step of E2M1 is 2, between 4 and 6, and a scale that was rounded down may cut a little.
            assert abs(x - y) <= (1 + 6 / 16) * block.factor
    assert max(block.scale_code for block in blocks) == nvfp4.scale.largest


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4", "nvfp4"])
def test_zeros_ends_and_what_is_not_finite(name):
    block_format = FORMATS[name]
    assert block_format.quantize([]) == ()
    assert block_format.dequantize(block_format.quantize([0.0] * 5)) == [0.0] * 5
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="takes finite numbers"):
            block_format.quantize([1.0, value])


def test_one_large_value_costs_its_neighbors_their_bits():
    mxfp4 = FORMATS["mxfp4"]
    alone = mxfp4.dequantize(mxfp4.quantize([0.01] * 31 + [0.02]))
    beside = mxfp4.dequantize(mxfp4.quantize([0.01] * 31 + [1.0]))
    assert alone[0] > 0 and beside[0] == 0.0


def test_every_value_that_is_already_in_the_format_stays():
    mxfp4 = FORMATS["mxfp4"]
    values = [x * 2.0**-9 for x in mxfp4.element.values()]
    assert mxfp4.dequantize(mxfp4.quantize(values)) == values


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"block_size": 0}, "block_size must be a positive"),
        ({"block_size": 16, "scale_rule": "mean"}, "Known: power"),
    ],
)
def test_a_block_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        BlockFormat("odd", element=FORMATS["fp4_e2m1"], scale=FORMATS["e8m0"], **arguments)


def test_scales_that_cannot_be_are_refused():
    for scale in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="tensor_scale must be a finite number above 0"):
            FORMATS["nvfp4"].quantize([1.0], tensor_scale=scale)


@pytest.mark.parametrize("values", [[5e-324], [1e-320, -1e-310], [1e308, 1e-300]])
def test_the_ends_of_fp64_quantize_to_finite_values(values):
    for name in ("mxfp8", "mxfp4", "nvfp4"):
        assert all(map(math.isfinite, FORMATS[name].dequantize(FORMATS[name].quantize(values))))


def test_scales_of_nothing_and_of_little():
    mxfp4, nvfp4 = FORMATS["mxfp4"], FORMATS["nvfp4"]
    assert nvfp4.tensor_scale([]) == nvfp4.tensor_scale([0.0, 0.0]) == mxfp4.tensor_scale([3.0]) == 1
    # 6 is the largest element, 448 the largest scale; and a factor of 0 would lose every value.
    assert nvfp4.tensor_scale([1.0, -0.5]) == 1 / (6 * 448) and nvfp4.tensor_scale([5e-324]) == 5e-324
    (zeros,) = mxfp4.quantize([0.0] * 32)
    assert (zeros.factor, zeros.scale_code, set(zeros.codes)) == (1, 127, {0})
    # 1 is 4 quarters: the largest element, 6, has the exponent 2.
    assert mxfp4.quantize([1.0])[0].factor == 0.25
    # A scale that is rounded to 0 leaves no code but that of 0.
    (lost,) = nvfp4.quantize([1e-9, -1e-9], tensor_scale=1.0)
    assert lost.factor == 0 and lost.values == (0, 0) and lost.codes == (0, 0)


@pytest.mark.parametrize("part", ["element", "scale"])
def test_a_block_is_made_of_formats(part):
    with pytest.raises(ValueError, match=rf"x: {part} must be a NumberFormat, got 'fp4_e2m1': FORMATS has some"):
        replace(FORMATS["mxfp4"], name="x", **{part: "fp4_e2m1"})
