import re
import xml.etree.ElementTree as ElementTree

import pytest

from cs336kit.teach import figures

ALT = "One line that rises from one at the left to three at the right & stays <below> four."


def line():
    figure, axes = figures.axes()
    axes.plot([1, 2, 3], label="x")
    axes.legend()
    return figures.show(figure, alt=ALT)


def test_the_svg_is_the_same_every_time():
    assert line().svg == line().svg


def test_the_svg_is_valid_and_carries_its_alt_text():
    root = ElementTree.fromstring(line().svg)
    assert root.get("role") == "img" and root.get("aria-label") == ALT
    assert root[0].tag.endswith("title") and root[0].text == ALT
    data, metadata = line()._repr_mimebundle_()
    assert set(data) == {"image/svg+xml", "text/plain"} and ALT in data["text/plain"]
    assert metadata["image/svg+xml"]["alt"] == ALT


def test_nothing_depends_on_the_day_or_the_machine():
    assert not re.search(r"<dc:date>|Matplotlib v", line().svg)


@pytest.mark.parametrize("alt", ["", "a plot", None, 7])
def test_a_figure_without_alt_text_is_refused(alt):
    figure, _ = figures.axes()
    with pytest.raises(ValueError, match="say in a sentence"):
        figures.show(figure, alt=alt)


def test_colours_differ_in_grey_too():
    def grey(color):
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    tones = [grey(color) for color in figures.COLORS]
    assert all(abs(a - b) > 20 for a, b in zip(tones, tones[1:], strict=False))
