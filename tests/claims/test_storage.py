"""Claims about strides, views and storages."""

import torch
from claims.settled import outcome_of, settles

from cs336kit import measure


def two_by_three():
    return torch.tensor([[1, 2, 3], [4, 5, 6]])


def shared(view, source):
    """Whether a write to the source is seen in the view, tried."""
    before = view.clone()
    source += 1
    return not torch.equal(view, before)


def values_and_sharing(take):
    x = two_by_three()
    view = take(x)
    return view.tolist(), shared(view, x)


@settles("stride-4x4")
def test_stride_4x4():
    return (4, 1), torch.arange(16).view(4, 4).stride()


@settles("stride-index-6")
def test_stride_index_6():
    # An arange holds at every position of its storage the number of the position.
    return 6, torch.arange(16).view(4, 4)[1, 2].item()


@settles("stride-6th-element")
def test_stride_6th_element():
    x = torch.arange(16).view(4, 4)
    return 6, 1 + x.flatten().tolist().index(x[1, 2].item())


@settles("metadata-one-number-per-dim")
def test_metadata_one_number_per_dim():
    # What rebuilds a slice of a cube from its storage.
    x = torch.arange(60).view(3, 4, 5)[1:, ::2]
    metadata = [x.storage_offset(), *x.shape, *x.stride()]
    rebuilt = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage(), metadata[0], metadata[1:4], metadata[4:])
    assert torch.equal(rebuilt, x)
    return x.dim(), len(metadata)


@settles("row-slice-shares")
def test_row_slice_shares():
    return ([1, 2, 3], True), values_and_sharing(lambda x: x[0])


@settles("untyped-storage-arg")
def test_untyped_storage_arg():
    return "runs", outcome_of(lambda: two_by_three().untyped_storage(0).data_ptr())


@settles("col-slice-shares")
def test_col_slice_shares():
    return ([2, 5], True), values_and_sharing(lambda x: x[:, 1])


@settles("view-3x2-shares")
def test_view_3x2_shares():
    return ([[1, 2], [3, 4], [5, 6]], True), values_and_sharing(lambda x: x.view(3, 2))


@settles("transpose-shares")
def test_transpose_shares():
    return ([[1, 4], [2, 5], [3, 6]], True), values_and_sharing(lambda x: x.transpose(1, 0))


@settles("mutation-visible-in-view")
def test_mutation_visible_in_view():
    x = two_by_three()
    y = x.transpose(1, 0)
    x[0][0] = 100
    return 100, y[0][0].item()


@settles("transpose-noncontiguous")
def test_transpose_noncontiguous():
    return False, two_by_three().transpose(1, 0).is_contiguous()


@settles("view-on-noncontiguous-raises")
def test_view_on_noncontiguous_raises():
    try:
        two_by_three().transpose(1, 0).view(2, 3)
    except RuntimeError as error:
        message = str(error)
    return (True, True), tuple(word in message for word in ("size", "stride"))


@settles("noncontiguous-no-further-views")
def test_noncontiguous_no_further_views():
    y = two_by_three().transpose(1, 0)
    further = {"y.view(3, 2, 1)": lambda: y.view(3, 2, 1), "y.view(6)": lambda: y.view(6)}
    return dict.fromkeys(further, "RuntimeError"), {name: outcome_of(view) for name, view in further.items()}


@settles("noncontiguous-before-reshape")
def test_noncontiguous_before_reshape():
    return "RuntimeError", outcome_of(lambda: two_by_three().transpose(1, 0).reshape(2, 3))


@settles("contiguous-copies")
def test_contiguous_copies():
    return ([[1, 4, 2], [5, 3, 6]], False), values_and_sharing(lambda x: x.transpose(1, 0).contiguous().view(2, 3))


@settles("contiguous-always-copies")
def test_contiguous_always_copies():
    x = two_by_three()
    copied = [not measure.same_storage(t, t.contiguous()) for t in (x.transpose(1, 0), x)]
    return True, *copied


@settles("reshape-may-copy")
def test_reshape_may_copy():
    _, view = values_and_sharing(lambda x: x.reshape(3, 2))
    _, must_copy = values_and_sharing(lambda x: x.transpose(1, 0).reshape(2, 3))
    return (True, False), (view, must_copy)


@settles("views-free")
def test_views_free():
    # Bytes that the allocator is asked for; 4 bytes for each of a thousand numbers.
    x = torch.ones(1000)
    views = measure.peak_bytes(lambda: (x[10:], x.view(10, 100), x.expand(5, 1000)), device="cpu")
    return (0, 4 * 1000), (views, measure.peak_bytes(lambda: x.clone(), device="cpu"))


@settles("indexing-shares")
def test_indexing_shares():
    def all_share(*take):
        return all(values_and_sharing(t)[1] for t in take)

    views = all_share(lambda x: x[0], lambda x: x[:, 1:], lambda x: x.T, lambda x: x.view(6))
    return True, views, all_share(lambda x: x[[0]], lambda x: x[x > 2])


@settles("storage-is-1d")
def test_storage_is_1d():
    # If storage, shape and strides were the tensor, two tensors that agree in them would be equal.
    x = two_by_three()
    first, second = x[0], x[1]
    assert measure.same_storage(first, second) and (first.shape, first.stride()) == (second.shape, second.stride())
    return True, torch.equal(first, second)
