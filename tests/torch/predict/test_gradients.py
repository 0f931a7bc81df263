"""Predicted gradient FLOPs against torch's counter, on nets whose every product torch runs."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from cs336kit import predict


def count(run):
    """FLOPs of a function of no arguments."""
    with FlopCounterMode(display=False) as counter:
        result = run()
    return counter.get_total_flops(), result


def train(sizes, *, batch, frozen=(), activation=False, rank=None, segments=None, early_stop=True):
    """Forward and backward FLOPs of the real net; `segments` are lists of layer numbers under one checkpoint each."""
    last = len(sizes) - 1

    def leaf(name, *shape):
        return torch.ones(*shape, requires_grad=name not in frozen, device="meta")

    x = leaf("x", batch, sizes[0])
    w = {i: leaf(f"w{i}", sizes[i - 1], sizes[i]) for i in range(1, last + 1)}
    lora = {}
    if rank:
        lora = {i: (leaf("", sizes[i - 1], rank), leaf("", rank, sizes[i])) for i in w}

    def layer(i, h):
        y = h @ w[i]
        if lora:
            y = y + (h @ lora[i][0]) @ lora[i][1]
        return torch.relu(y) if activation and i < last else y

    def segment(numbers):
        def run(h):
            for i in numbers:
                h = layer(i, h)
            return h

        return run

    def forward():
        h = x
        for numbers in segments or [list(w)]:
            h = checkpoint(segment(numbers), h, use_reentrant=False) if segments else segment(numbers)(h)
        return h

    with set_checkpoint_early_stop(early_stop):
        forward_flops, y = count(forward)
        backward_flops, _ = count(lambda: y.sum().backward())
    return forward_flops, backward_flops


def slices(net, segments):
    """The steps of the layers in each segment (a layer's steps have its number in their output)."""
    digits = [int("".join(filter(str.isdigit, step.output.split(".")[0]))) for step in net]
    return [tuple(s for s, d in zip(net, digits, strict=True) if d in numbers) for numbers in segments]


def test_the_first_layers_exception_with_the_lectures_shapes():
    net = predict.linear_net((256, 256, 64), batch=1024)
    cost = predict.gradient_flops(net, frozen={"x"})
    assert (cost.forward, cost.backward) == (167_772_160, 201_326_592)
    assert train((256, 256, 64), batch=1024, frozen={"x"}) == (cost.forward, cost.backward)
    full = predict.gradient_flops(net)
    assert full.backward == 2 * full.forward == 335_544_320
    assert train((256, 256, 64), batch=1024) == (full.forward, full.backward)


SIZES = st.lists(st.integers(1, 40), min_size=2, max_size=7)


@settings(max_examples=120, deadline=None)
@given(SIZES, st.integers(1, 50), st.data())
def test_linear_nets_with_any_frozen_leaves(sizes, batch, data):
    names = ["x", *(f"w{i}" for i in range(1, len(sizes)))]
    frozen = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    assume(len(frozen) < len(names))
    activation, rank = data.draw(st.booleans()), data.draw(st.none() | st.integers(1, 5))
    net = predict.linear_net(sizes, batch=batch, activation=activation)
    net = predict.with_lora(net, rank=rank) if rank else net
    cost = predict.gradient_flops(net, frozen=frozen)
    counted = train(sizes, batch=batch, frozen=frozen, activation=activation, rank=rank)
    assert (cost.forward, cost.backward) == counted
    assert cost.by_tensor.total == cost.backward
    assert set(cost.by_tensor) & frozen == set()


@settings(max_examples=120, deadline=None)
@given(SIZES, st.integers(1, 50), st.data())
def test_checkpointed_linear_nets(sizes, batch, data):
    layers = list(range(1, len(sizes)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(layers) - 1)))))
    segments = [s for s in (layers[a:b] for a, b in zip([0, *cuts], [*cuts, len(layers)], strict=True)) if s]
    names = ["x", *(f"w{i}" for i in layers)]
    frozen = set(data.draw(st.lists(st.sampled_from(names), unique=True)))
    assume(len(frozen) < len(names))
    activation, early_stop = data.draw(st.booleans()), data.draw(st.booleans())
    rank = data.draw(st.none() | st.integers(1, 5))
    net = predict.linear_net(sizes, batch=batch, activation=activation)
    net = predict.with_lora(net, rank=rank) if rank else net
    cost = predict.gradient_flops(net, frozen=frozen, checkpoint=slices(net, segments), early_stop=early_stop)
    options = {"activation": activation, "segments": segments, "early_stop": early_stop, "rank": rank}
    assert (cost.forward, cost.backward) == train(sizes, batch=batch, frozen=frozen, **options)


def test_checkpointing_does_not_repeat_a_last_product():
    net = predict.linear_net((8, 16, 4), batch=32)
    cost = predict.gradient_flops(net, checkpoint=[net])
    assert cost.recomputed == net[0].flops
    assert predict.gradient_flops(net, checkpoint=[net], early_stop=False).recomputed == cost.forward
    assert cost.model_flops == 3 * cost.forward and cost.total == cost.model_flops + cost.recomputed


def test_nothing_is_repeated_where_nothing_is_kept():
    net = predict.linear_net((8, 8, 8), batch=4)
    cost = predict.gradient_flops(net, frozen=("x", "w1"), checkpoint=[net[:1], net[1:]], early_stop=False)
    assert cost.recomputed == net[1].flops


def test_lora_trains_without_the_weight_gradients():
    net = predict.with_lora(predict.linear_net((64, 64), batch=10), rank=2)
    cost = predict.gradient_flops(net, frozen={"w1"})
    assert cost.by_tensor["w1.A"] == cost.by_tensor["w1.B"] == 2 * 10 * 64 * 2
    assert "w1" not in cost.by_tensor
    assert cost.by_tensor["x"] == 2 * 10 * 64 * 64 + 2 * 10 * 64 * 2


def test_one_name_may_stand_without_a_list():
    net = predict.linear_net((4, 4, 4), batch=2)
    assert predict.gradient_flops(net, frozen="w1") == predict.gradient_flops(net, frozen=["w1"])
    assert predict.with_lora(net, rank=1, targets="w2") == predict.with_lora(net, rank=1, targets=["w2"])


def test_utilization_counts_the_model_or_the_hardware():
    net = predict.linear_net((8, 8, 8), batch=8, activation=True)
    cost = predict.gradient_flops(net, checkpoint=[net])
    assert cost.mfu(seconds=1, peak_flops_per_second=cost.total) == cost.model_flops / cost.total
    assert cost.hfu(seconds=2, peak_flops_per_second=cost.total) == 0.5
    with pytest.raises(ValueError, match="seconds must be"):
        cost.hfu(seconds=0, peak_flops_per_second=1e12)
    with pytest.raises(ValueError, match="peak_flops_per_second must be"):
        cost.mfu(seconds=1, peak_flops_per_second=float("nan"))


def test_the_table_names_every_product():
    cost = predict.gradient_flops(predict.linear_net((2, 3), batch=4), frozen="x")
    assert repr(cost).splitlines() == [
        "product       forward   gradient of left   gradient of right   again   FLOPs",
        "h1 = x @ w1        48                  –                  48       –      96",
        "total              48                  –                  48       –      96",
    ]
    assert "<th" in cost._repr_html_() and "h1 = x @ w1" in cost._repr_html_()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda net: predict.gradient_flops(net, frozen={"w9"}), r"unknown leaf in frozen 'w9'.*Known: x, w1, w2"),
        (lambda net: predict.gradient_flops(net, frozen={"h1"}), r"unknown leaf in frozen 'h1'"),
        (lambda net: predict.gradient_flops(net[::-1]), r"uses h1, which is computed later"),
        (lambda net: predict.gradient_flops([*net, net[0]]), r"h1 is computed twice"),
        (lambda net: predict.gradient_flops(net, checkpoint=[net, net[:1]]), r"h1 lies in two checkpointed segments"),
        (lambda net: predict.gradient_flops(net[:1], checkpoint=[net]), r"h2 is not one of the steps"),
        (lambda net: predict.gradient_flops(net, checkpoint=net), r"each a slice of the steps"),
        (lambda net: predict.linear_net((4,), batch=2), r"at least two widths"),
        (lambda net: predict.linear_net((4, 0), batch=2), r"columns of h1 = x @ w1 must be a positive whole"),
        (lambda net: predict.linear_net((4, 4), batch=2.0), r"rows of h1"),
        (lambda net: predict.with_lora(net, rank=0), r"rank must be a positive"),
        (lambda net: predict.with_lora(net, rank=1, targets=["w3"]), r"unknown weight in targets 'w3'"),
    ],
)
def test_impossible_requests_are_refused_in_a_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        change(predict.linear_net((4, 4, 4), batch=2))
