import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit import predict

pytestmark = pytest.mark.torch

shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(tuple)


@st.composite
def strided_tensors(draw):
    """A small tensor after random slices, permutations and expansions."""
    shape = draw(shapes)
    x = torch.arange(math.prod(shape)).view(shape)
    for axis in range(x.dim()):
        start, step = draw(st.integers(0, x.shape[axis] - 1)), draw(st.integers(1, 2))
        x = x[(slice(None),) * axis + (slice(start, None, step),)]
    x = x.permute(draw(st.permutations(range(x.dim()))))
    if draw(st.booleans()):
        x = x.expand(draw(st.integers(1, 3)), *[draw(st.integers(1, 3)) if size == 1 else size for size in x.shape])
    return x


@st.composite
def reshapings(draw):
    x = draw(strided_tensors())
    rest, target = x.numel(), []
    while rest > 1:
        size = draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
        target.append(size)
        rest //= size
    for _ in range(draw(st.integers(0, 2))):
        target.insert(draw(st.integers(0, len(target))), 1)
    return x, tuple(target)


def offsets(shape, strides):
    """Where each element stands, counted from the first."""
    return [sum(i * step for i, step in zip(index, strides, strict=True)) for index in product(*map(range, shape))]


@given(shapes)
def test_contiguous_strides_equal_torch(shape):
    assert predict.contiguous_strides(shape) == torch.empty(shape).stride()


def test_examples_of_the_lecture():
    assert predict.contiguous_strides((4, 4)) == (4, 1)


@given(strided_tensors())
def test_extent_is_the_span_of_all_offsets(x):
    every = [offset + x.storage_offset() for offset in offsets(x.shape, x.stride())]
    assert predict.extent(x.shape, strides=x.stride(), offset=x.storage_offset()) == (min(every), max(every))


@settings(max_examples=300)
@given(reshapings())
def test_view_strides_agree_with_torch(case):
    x, target = case
    try:
        viewed = x.view(target)
    except RuntimeError:
        viewed = None
    strides = predict.view_strides(x.shape, strides=x.stride(), to=target)
    if viewed is None:
        assert strides is None
    else:
        assert torch.equal(x.as_strided(target, strides), viewed)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 7)), max_size=4))
def test_overlaps_agree_with_enumeration(axes):
    shape, strides = [size for size, _ in axes], [step for _, step in axes]
    every = offsets(shape, strides)
    assert predict.overlaps(shape, strides=strides) == (len(set(every)) < len(every))


def test_overlaps_needs_enumeration_where_rules_do_not_decide():
    assert predict.overlaps((2, 3), strides=(3, 2)) is False  # 0 2 4 / 3 5 7
    assert predict.overlaps((3, 4), strides=(3, 2)) is True  # 0 2 4 6 / 3 5 7 9 / 6 …
    assert predict.overlaps((3, 2), strides=(4, 8)) is True  # 0 8 / 4 12 / 8 16


@pytest.mark.parametrize("size", [0, -1, True, 2.0, math.nan, math.inf, "2"])
def test_sizes_are_positive_ints(size):
    with pytest.raises(ValueError, match=r"shape\[1\] must be a positive whole number"):
        predict.contiguous_strides((2, size))


@pytest.mark.parametrize("shape", [3, "23", None])
def test_a_shape_is_a_tuple(shape):
    with pytest.raises(ValueError, match="shape must be a tuple of sizes"):
        predict.contiguous_strides(shape)


@pytest.mark.parametrize("strides", [(-1, 1), (1.0, 1), (True, 1), (1,), 3, "31"])
def test_strides_are_checked(strides):
    with pytest.raises(ValueError, match="strides"):
        predict.extent((2, 2), strides=strides)


def test_other_input_gets_a_sentence():
    with pytest.raises(ValueError, match="offset must be"):
        predict.extent((1,), strides=(1,), offset=-1)
    with pytest.raises(ValueError, match="has 6 elements and"):
        predict.view_strides((2, 3), strides=(3, 1), to=(4,))
