"""The figures on gradients are deterministic, described, small, and draw what they are given."""

import re

import pytest

from cs336kit import predict
from cs336kit.teach.figures import cost_bars, difference_errors

ALT = "A central difference errs least near a step of epsilon to the power of one third."


def errors_figure(alt=ALT):
    errors = {"forward difference": [0.1, 0.01, 0.0], "central difference": [0.01, 1e-4, 1e-5]}
    return difference_errors([0.1, 0.01, 0.001], errors, best=dict.fromkeys(errors, 0.01), alt=alt)


def bars_figure(alt=ALT):
    net = predict.linear_net((8, 8, 8), batch=4)
    costs = {"all": predict.gradient_flops(net), "data": predict.gradient_flops(net, frozen="x", checkpoint=[net])}
    return cost_bars(costs, alt=alt)


@pytest.mark.parametrize("draw", [errors_figure, bars_figure])
def test_figures_are_deterministic_described_and_small(draw):
    first, second = draw(), draw()
    assert first.svg == second.svg and ALT in first.svg
    assert len(first.svg) < 120_000
    with pytest.raises(ValueError, match="too short"):
        draw(alt="")


def test_a_zero_error_is_left_out_of_a_logarithmic_axis():
    assert not re.search(r"\b(nan|inf)\b", errors_figure().svg)


def test_a_part_that_no_bar_has_is_not_in_the_legend():
    net = predict.linear_net((8, 8, 8), batch=4)
    plain = cost_bars({"all": predict.gradient_flops(net)}, alt=ALT)
    assert plain.svg.count('id="patch_') < bars_figure().svg.count('id="patch_')
    assert "computed again" not in plain.svg and "computed again" in bars_figure().svg
