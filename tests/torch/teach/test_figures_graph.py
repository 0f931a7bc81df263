"""The drawn graph: boxes that do not overlap, the same bytes every time, the same style for both engines."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit import measure
from cs336kit.lm import Scalar
from cs336kit.teach.figures import computation_graph
from cs336kit.teach.figures.graph import layers, layout, node_lines

ALT = "The gradient of y is the sum of what comes back from both branches."


def fan_out():
    y = Scalar(0.7, name="y")
    loss = y.sin() + y.exp()
    loss.backward()
    return measure.graph(loss)


def torch_graph():
    w = torch.ones(3, requires_grad=True)
    return measure.graph(((torch.ones(3) @ w) ** 2).sum(), names={"w": w})


@st.composite
def dags(draw):
    count = draw(st.integers(1, 12))
    return count, [(draw(st.integers(0, t - 1)), t) for t in range(1, count) for _ in range(draw(st.integers(1, 3)))]


@settings(max_examples=150, deadline=None)
@given(dags(), st.sampled_from(["right", "down"]))
def test_boxes_do_not_overlap_and_forward_only_goes_forward(dag, direction):
    count, edges = dag
    size = [(0.5 + 0.3 * (n % 4), 0.4 + 0.2 * (n % 3)) for n in range(count)]
    place, links = layout(size, edges, direction)
    for a in range(count):
        for b in range(a):
            apart = [abs(place[a][i] - place[b][i]) - (size[a][i] + size[b][i]) / 2 for i in (0, 1)]
            assert max(apart) > 0.2
    axis, sign = (0, 1) if direction == "right" else (1, -1)
    for chain in links:
        steps = [sign * place[n][axis] for n in chain]
        assert steps == sorted(set(steps))


def test_a_rank_is_the_longest_way_to_the_end():
    rank, order, links = layers(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert rank[:4] == [0, 1, 2, 3] and len(rank) == 6  # two invisible nodes on the long edge
    assert [len(layer) for layer in order] == [1, 2, 2, 1]
    assert links[3] == [0, 4, 5, 3]


@pytest.mark.parametrize("make", [fan_out, torch_graph])
@pytest.mark.parametrize("direction", ["right", "down"])
def test_the_figure_is_deterministic_and_described(make, direction):
    first, second = (computation_graph(make(), alt=ALT, direction=direction) for _ in range(2))
    assert first.svg == second.svg and ALT in first.svg
    assert len(first.svg) < 60_000


def test_boxes_say_value_gradient_and_what_is_kept():
    leaf, sine, *_ = fan_out().nodes
    assert node_lines(leaf) == ["y", "value 0.7", "grad 2.779"]
    assert node_lines(sine)[0] == "sin"
    leaf, dot, *_ = torch_graph().nodes
    assert node_lines(leaf) == ["w", "3 · leaf"]
    assert node_lines(dot) == ["Dot", "scalar", "keeps self: 12 B"]


def test_a_leaf_that_is_referred_to_shows_its_bytes():
    x, w = torch.ones(2, 3, requires_grad=True) * 1, torch.ones(3, 4, requires_grad=True)
    *_, product = measure.graph(x @ w, names={"x": x, "w": w}).nodes
    assert sorted(node_lines(product)[2:]) == ["keeps x: 24 B", "leaf w: 48 B"]


def width_in_points(figure):
    return float(re.search(r'<svg[^>]* width="([\d.]+)pt"', figure.svg)[1])


def test_a_two_layer_network_fits_a_notebook():
    x, w1, w2 = torch.ones(32, 16), torch.ones(16, 64, requires_grad=True), torch.ones(64, 8, requires_grad=True)
    a = (x @ w1).relu()
    loss = ((a @ w2) ** 2).mean()
    names = {"x": x, "w1": w1, "w2": w2, "a": a, "loss": loss}
    assert width_in_points(computation_graph(measure.graph(loss, names=names), alt=ALT)) < 11 * 72


def test_another_direction_is_refused():
    with pytest.raises(ValueError, match="give 'right' or 'down'"):
        computation_graph(fan_out(), alt=ALT, direction="up")


def test_alt_text_is_required():
    with pytest.raises(ValueError, match="too short"):
        computation_graph(fan_out(), alt="a graph")
