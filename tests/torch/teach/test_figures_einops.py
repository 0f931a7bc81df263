"""The figures about axes draw what they are given, and the same way twice."""

import pytest

from cs336kit.teach import figures

ALT = "What the figure shows, in a sentence that is long enough."


def draw(name):
    if name == "memory_order":
        strips = {"before": [(0, "0"), (1, "1")] * 4, "after": [(0, "0")] * 4 + [(1, "1")] * 4}
        return figures.memory_order(strips, groups={0: "head 0", 1: "head 1"}, alt=ALT)
    return figures.order_costs([64, 128], {"left": [1e3, 4e3], "right": [2e3, 4e3]}, xlabel="S", alt=ALT)


@pytest.mark.parametrize("name", ["memory_order", "order_costs"])
def test_figures_are_deterministic_small_and_described(name):
    figure = draw(name)
    assert figure.svg == draw(name).svg
    assert len(figure.svg) < 150_000
    assert f"<title>{ALT}</title>" in figure.svg


def test_every_element_is_a_box():
    assert draw("memory_order").svg.count('id="patch_') >= 16
