"""The figures about number formats draw what they are given, and the same way twice."""

import math
import re

import pytest

from cs336kit.teach import figures

ALT = "What the figure shows, in a sentence that is long enough."


def draw(name):
    if name == "number_lines":
        return figures.number_lines({"a": [-1.0, 0.0, 1.0, 9.0], "b": [0.0, 2.0]}, limit=4, alt=ALT)
    if name == "ranges":
        return figures.ranges({"fp32": (-149, -126, 127, 23), "fp16": (-24, -14, 15, 10)}, alt=ALT)
    if name == "spacings":
        return figures.spacings([1.0, 2.0, 4.0], {"a": [0.1, 0.2, 0.4], "b": [0.2, 0.4, math.nan]}, alt=ALT)
    return figures.running_sums([1, 10, 100], {"a": [0.1, 1.0, 10.0], "b": [0.1, 1.0, 4.0]}, alt=ALT)


@pytest.mark.parametrize("name", ["number_lines", "ranges", "spacings", "running_sums"])
def test_figures_are_deterministic_small_and_described(name):
    figure = draw(name)
    assert figure.svg == draw(name).svg
    assert len(figure.svg) < 150_000
    assert f"<title>{ALT}</title>" in figure.svg


def test_values_beyond_the_limit_are_not_drawn():
    few = figures.number_lines({"a": [1.0, 2.0]}, limit=4, alt=ALT).svg
    same = figures.number_lines({"a": [1.0, 2.0, 5.0]}, limit=4, alt=ALT).svg
    more = figures.number_lines({"a": [1.0, 2.0, 3.0]}, limit=4, alt=ALT).svg

    def ticks(svg):
        return [len(re.findall("M ", part)) for part in re.findall(r'id="LineCollection_\d".*?</g>', svg, re.S)]

    assert ticks(few) == ticks(same) != ticks(more)
