"""Everything that is drawn can be told from its ground, in a light and in a dark page (WCAG 2.2, 1.4.3 and 1.4.11)."""

import re

import pytest

from cs336kit.predict.grid import as_html
from cs336kit.teach import explorers, figures
from cs336kit.teach.exercises.checking import Result
from cs336kit.teach.explorers.bits import EDGE, GROUNDS, INK
from cs336kit.teach.explorers.decoding import LEAST, MOST, NEEDS
from cs336kit.teach.explorers.memory import FILLS
from cs336kit.teach.explorers.roofline import POINT, ROOF
from cs336kit.teach.figures.primitives import FAINT, QUIET
from cs336kit.teach.figures.style import contrast, readable, tint

pytestmark = pytest.mark.torch

WHITE, DARK = "#ffffff", "#111111"  # the grounds of JupyterLab's two themes
TEXT, MARK = 4.5, 3


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#777777") == 1
    assert contrast("#777777", "#ffffff") == pytest.approx(
        4.478, abs=1e-3
    )  # the usual example of a gray just below 4.5


@pytest.mark.parametrize(
    "color",
    {*figures.COLORS, *FILLS.values(), POINT, ROOF, FAINT, LEAST, MOST, *(color for color, _ in NEEDS.values())},
)
def test_marks_stand_out_from_the_white_of_a_figure(color):
    assert contrast(color, WHITE) >= MARK and contrast(readable(color), color) >= TEXT


@pytest.mark.parametrize("ground", [*map(tint, figures.COLORS), *GROUNDS.values()])
def test_text_can_be_read_on_its_tint(ground):
    assert contrast(INK, ground) >= TEXT


def test_quiet_text_can_be_read():
    assert contrast(QUIET, WHITE) >= TEXT and contrast(QUIET, "#f4f4f4") >= TEXT


@pytest.mark.parametrize("ground", [WHITE, DARK])
def test_edges_are_seen_in_both_themes(ground):
    assert contrast(EDGE, ground) >= MARK
    tables = re.findall(r"border-bottom:\dpx solid (#\w+)", as_html(("a",), [("b",)], "<"))
    results = [
        re.search(r"solid (#\w+)", Result("01.1", s, "")._repr_html_())[1] for s in ("passed", "waiting", "not yet")
    ]
    assert len(set(results)) == 3 and tables
    assert all(contrast(color, ground) >= MARK for color in (*tables, *results))


@pytest.mark.parametrize("shown", [as_html(("a",), [("b",)], "<"), Result("01.1", "passed", "")._repr_html_()])
def test_text_outside_of_a_ground_of_its_own_keeps_the_color_of_the_page(shown):
    assert not re.search(r"[;\"](color|background)", shown)


@pytest.mark.parametrize("make", [explorers.bits, explorers.strides])
def test_cells_with_a_ground_have_an_ink(make):
    cells = re.findall(r"background:(#\w+);[^\"]*?color:(#\w+)", make()._repr_html_())
    assert cells and all(contrast(*pair) >= TEXT for pair in cells)
