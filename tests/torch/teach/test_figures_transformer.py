import re

import pytest

from cs336kit.teach import figures

ALT = "What the figure shows, said in a sentence that is long enough for the rule."
STEPS = [("norm", "2×3×4", "8"), ("attention", "2×3×4", "80"), ("+", "2×3×4", ""), ("norm", "", ""), ("MLP", "", ""),
         ("+", "", "")]  # fmt: skip


def draw():
    return {
        "block": figures.transformer_block(STEPS, alt=ALT),
        "shares": figures.parameter_shares({"a": {"x": 1, "y": 3}, "b": {"x": 2, "y": 2}}, alt=ALT),
        "errors": figures.estimate_errors([512, 1024, 2048], {"6NP": [-1, -2, -4], "other": [3, 0, -3]}, alt=ALT),
        "heads": figures.attention_heads([("multi-head", 4, 4), ("grouped", 4, 2), ("multi-query", 4, 1)], alt=ALT),
    }


@pytest.mark.parametrize("name", ["block", "shares", "errors", "heads"])
def test_deterministic_described_and_small(name):
    first, second = draw()[name], draw()[name]
    assert first.svg == second.svg
    assert f"<title>{ALT}</title>" in first.svg
    assert len(first.svg) < 150_000


def test_the_error_band_and_every_line_are_drawn():
    svg = draw()["errors"].svg
    assert len(re.findall(r'<g id="line2d_', svg)) > 4
