"""Every figure: the same bytes every time, described from its data, legible, and told apart without color."""

import ast
import inspect
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from urllib.parse import unquote

import numpy
import pytest
import torch
from few import one_in
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.text import Text

from cs336kit import measure
from cs336kit.lessons.lesson_08.figures import node_lines
from cs336kit.lm import Scalar
from cs336kit.teach import figures
from cs336kit.teach.figures.graph import layout
from cs336kit.teach.figures.guesses import guesses_against_answers
from cs336kit.teach.figures.primitives import bars, lines
from cs336kit.teach.figures.style import contrast

pytestmark = pytest.mark.torch

ALT = "One line that rises from one at the left to three at the right & stays <below> four."


def fan_out():
    y = Scalar(0.7, name="y")
    loss = y.sin() + y.exp()
    loss.backward()
    return measure.graph(loss)


def torch_graph():
    w = torch.ones(3, requires_grad=True)
    return measure.graph(((torch.ones(3) @ w) ** 2).sum(), names={"w": w})


SLOW = [
    span
    for i in range(3)
    for span in (("copy", i, 0.03 * i, 0.03 * i + 0.01), ("compute", i, 0.03 * i + 0.01, 0.03 * i + 0.03))
]
FAST = [
    span
    for i in range(3)
    for span in (("copy", i, 0.01 * i, 0.01 * i + 0.01), ("compute", i, 0.02 * i + 0.01, 0.02 * i + 0.03))
]
LOSSES = {"fp32": [5.5, 4.0, 3.5, 3.2], "bf16": [5.5, 4.1, 3.5, 3.3]}
VIEWS = [
    ("x", (3, 4), (4, 1), 0),
    ("x.T", (4, 3), (1, 4), 0),
    ("x[:, 1]", (3,), (4,), 1),
    ("windows", (2, 3), (0, 0), 4),
]
BLOCK = [("norm", "2×3×4", "8"), ("attention", "2×3×4", "80"), ("+", "2×3×4", ""), ("norm", "2×3×4", "8"),
         ("MLP", "2×3×4", "160"), ("+", "2×3×4", "")]  # fmt: skip
#: Name → (arguments, options), as small as shows everything that the figure can draw.
DATA = {
    "bytes_of_a_parameter": (({"fp32": {"parameters": 4, "master weights": 0}, "mixed": {"parameters": 2, "master weights": 4}},),
                             {}),
    "replicated_and_sharded": (({"parameters": 2, "gradients": 2},),
                               {"parameters": 10e9, "accelerators": 4, "memory_bytes": 24e9}),
    "small_formats": (({"fp4": [-1.0, 0.0, 1.0, 9.0], "E5M2": [0.0, 2.0]},), {"limit": 4}),
    "spacings": (([1.0, 2.0, 4.0], {"bf16": [0.1, 0.2, 0.4], "fp32": [0.01, 0.02, 0.04], "fp8": [0.2, 0.4, math.nan]}), {}),
    "roundings": (([0.5, 1.0, 2.0], {"a tie": (1.5, 2.0), "too large": (2.9, 2.0), "small": (0.6, 0.5)}), {}),
    "weight_courses": (({"fp32": [1.0, 1.1, 1.2], "bf16": [1.0, 1.0, 1.0]},), {}),
    "strided": ((range(12), VIEWS), {}),
    "walks": (({"x": [0, 1, 2, 3], "x.T": [0, 2, 1, 3]},), {}),
    "masks": (([("causal", [[True, False], [True, True]]), ("all", [[True] * 2] * 2)],), {}),
    "moving": (({"PCIe 5.0": 63e9, "NVLink": 450e9},), {"size_bytes": 141e9}),
    "overlap": (({"one by one": SLOW, "overlapped": FAST},), {"to_ms": 1000}),
    "allocator_blocks": (({"before": [[("a", 6), (None, 14)]], "after": [[(None, 20)], [("b", 9), (None, 11)]]},), {}),
    "named_axes": (({"s (a h)": ("s (a h)", torch.arange(6).view(1, 6), torch.arange(6).view(1, 6) // 3),
                     "a s h": ("a s h", torch.arange(12).view(2, 3, 2)), "s": ("s", torch.tensor([0.5, -1])),
                     "sum": ("", torch.tensor(7))},), {}),
    "block_flops": (([128, 256, 512], {"linear layers": [1e6, 2e6, 4e6], "attention": [1e5, 4e5, 1.6e6]}), {}),
    "roofline": (([("add", 0.1, 1e11), ("product", 900.0, 5e14)],),
                 {"peak_flops_per_second": 1e15, "bandwidth_bytes_per_second": 3e12}),
    "block_shares": (({"FLOPs": {"products": 99, "rest": 1}, "time": {"products": 6, "rest": 4}},), {}),
    "computation_graph": ((fan_out(),), {}),
    "difference_errors": (([0.1, 0.01, 0.001], {"forward": [0.1, 0.01, 0.0], "central": [0.01, 1e-4, 1e-5]}),
                          {"best": {"forward": 0.01, "central": 0.03}}),
    "three_products": ((), {"N": 3, "D": 2, "F": 4}),
    "products_done": (({"all trained": range(3), "only the first": [0]},), {"layers": 3}),
    "rule_over_work": (([256, 1024, 4096], ["gpt2", "llama-3-8b"]), {}),
    "starts": (({"too large": [math.nan] * 20, "right": [5.5, 5.0] * 10},), {"guess": 5.55}),
    "histograms": (({"small": {1: [0.1, 0.2, 9.0], 5: [0.1]}, "right": {1: [0.5, 1.0], 5: [2.0]}},), {}),
    "sweeps": (([2**-10, 2**-7, 2**-5], {way: {64: [3.2, 3.0, 3.1], 512: [3.0, 3.3, 3.6]} for way in ("standard", "µP")}), {}),
    "schedule": (([0.0, 0.5, 1.0, 0.6, 0.1],), {}),
    "trajectories": (({name: [(-8.0, 2.0), (-4.0, -1.0), (0.0, 0.0)] for name in ("SGD", "Momentum", "Adam", "AdamW")},),
                     {"curvatures": (1.0, 25.0)}),
    "loss_curves": ((LOSSES,), {"smooth": 2, "title": "forgotten"}),
    "kept_on_block": (([("n = norm(x)", "x", 64), ("y = n @ w", "n", 64), ("return x + y", "", 0)],), {"row": 64}),
    "saved_against_sequence": (([256, 512, 1024], {"eager": [2**30, 2**32, 2**34], "sdpa": [2**30, 2**31, 2**32]},
                                {"eager": [(512, 2**32)]}), {"level": {"16 bytes per parameter": 2**33}}),
    "step_course": (([0, 2**20, 2**21, 2**20, 0], [(2**20, 1), (2**21, 2)], [(2, "everything"), (3, "gradients")]), {}),
    "storing": (([("all", [1.0, 1.0], 2**21, 0.0), ("inputs", [0.1, 0], 2**20, 0.5)],), {}),
    "paired_losses": ((LOSSES,), {"reference": "fp32", "nudged": ["bf16"], "every": 2}),
    "magnitudes": ((range(-3, 0), {"before": [0.2, 0.5, 0.3], "after": [0.1, 0.1, 0.8]}), {"limits": {"fp16": -2}}),
    "held_by_rank": (({"parameters": 2, "gradients": 2, "states": 12}, ["copies", "shared states", "shared gradients"]),
                     {"ranks": 3}),
    "pipeline": (([(0, "forward", 0, 0), (1, "forward", 0, 1), (1, "backward", 0, 2), (0, "backward", 0, 4)],), {}),
    "transformer_block": ((BLOCK,), {}),
    "valleys": (({"1e10": ([1e4, 2e4, 4e4], [2.2, 2.0, 2.1]), "1e11": ([2e4, 4e4, 8e4], [1.8, 1.7, 1.8])},
                 {"1e10": (2.2e4, 2.0), "1e11": (4e4, 1.7)}),
                {"parabolas": {"1e10": ([1e4, 2e4, 4e4], [2.2, 2.0, 2.1]), "1e11": ([2e4, 4e4, 8e4], [1.8, 1.7, 1.8])}}),
    "extrapolation": (([(1e10, 1e4), (1e12, 1e5)], [(1e10, 1e4), (1e24, 1e11)], [(1e10, 8e3, 2e4), (1e24, 1e9, 1e13)]),
                      {"marks": {"Chinchilla": (5.76e23, 7e10)}}),
    "costs_of_use": (([1e9, 2e9, 4e9], {"0 trillion": [2.0, 1.0, 3.0], "9 trillion": [4.0, 5.0, 10.0]}), {}),
    "parameter_shares": (({"gpt2": {"MLP": 1, "head": 3}, "llama": {"MLP": 2, "head": 2}},), {}),
    "decode_shares": (([1, 2, 4, 8], {"16 tokens": [10, 20, 40, 80], "2,048 tokens": [5, 9, 14, 17]}), {"ridge": 6}),
    "page_pool": (({"A": [0, 2], "B": [1]}, {"A": 5, "B": 2}), {"pages": 4, "size": 4}),
    "guessing": (([1, 2, 3], {"0.6, a tenth": [1.5, 1.6, 1.55], "0.9, a tenth": [1.7, 2.3, 2.6]}), {}),
    "verdict_shares": (({"memory": {"holds": 1, "wrong": 3}, "training": {"holds": 2, "wrong": 2}},), {}),
}  # fmt: skip


def draw(name, **more):
    arguments, options = DATA[name]
    return getattr(figures, name)(*arguments, **options, **more)


#: A figure as it is drawn another time; once for all tests to which that is enough.
again = cache(draw)


def test_every_figure_is_drawn_here():
    made = {name for name, made in inspect.getmembers(figures, inspect.isfunction) if hasattr(made, "__wrapped__")}
    assert made - set(DATA) == set(), "give an example of each in DATA, above"
    assert set(DATA) - made == set(), "import each in cs336kit/teach/figures/__init__.py"


def test_every_described_function_of_a_lesson_is_imported():
    folder = Path(figures.__file__).parent
    written = {
        function.name
        for path in folder.glob("lesson_*.py")
        for function in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(function, ast.FunctionDef) and "described" in map(ast.unparse, function.decorator_list)
    }
    assert {name for name in written if not hasattr(figures, name)} == set(), "import each in figures/__init__.py"


@pytest.fixture
def canvas(monkeypatch):
    """Draw a figure; returns it, its canvas without the ink of texts, and the texts, all at their places."""

    def show(make):
        made, texts = [], {}
        place, write = MatplotlibFigure.draw, Text.draw

        def without_ink(text, *more):
            texts[text] = text.set_alpha(0)
            write(text, *more)

        with monkeypatch.context() as patch:
            patch.setattr(MatplotlibFigure, "draw", lambda self, *a: made.append(self) or place(self, *a))
            figure = make()
            patch.setattr(Text, "draw", without_ink)
            # Everything has its place, from the layout of the SVG.
            made[-1].set_layout_engine("none")
            drawn = FigureCanvasAgg(made[-1])
            drawn.draw()
        return figure, drawn, [text for text in texts if text.get_visible() and text.get_text().strip()]

    return show


def overlaps(texts):
    """Pairs of texts of which one covers more than a tenth of the other."""
    for (a, x), (b, y) in combinations([(text.get_text(), text.get_window_extent()) for text in texts], 2):
        wide, high = min(x.x1, y.x1) - max(x.x0, y.x0), min(x.y1, y.y1) - max(x.y0, y.y0)
        if wide > 0 < high and wide * high > 0.1 * min(x.width * x.height, y.width * y.height):
            yield a, b


def run_together(drawn, texts):
    """Numbers below two plots that are nearer to each other than they are high, and read as one."""
    below = [(ax, text) for ax in drawn.figure.axes for text in ax.get_xticklabels() if text in texts]
    for (a, one), (b, other) in combinations(below, 2):
        x, y = one.get_window_extent(), other.get_window_extent()
        apart = max(x.x0, y.x0) - min(x.x1, y.x1)
        if a is not b and min(x.y1, y.y1) > max(x.y0, y.y0) and apart < max(x.height, y.height):
            yield one.get_text(), other.get_text()


def cut(drawn, texts):
    """Texts that run over the edge of the figure."""
    for text in texts:
        box = text.get_window_extent()
        if box.x0 < 0 or box.y0 < 0 or box.x1 > drawn.figure.bbox.width or box.y1 > drawn.figure.bbox.height:
            yield text.get_text()


def pale(drawn, texts):
    """Texts whose contrast with what lies below them is under 4.5 to 1 (WCAG 2.2, 1.4.3)."""
    pixels = numpy.asarray(drawn.buffer_rgba())[::-1, :, :3] / 255
    for text in texts:
        box = text.get_window_extent()
        below = pixels[max(0, int(box.y0)) : int(box.y1) + 1, max(0, int(box.x0)) : int(box.x1) + 1].reshape(-1, 3)
        own = text.get_bbox_patch()
        ground = to_rgb(own.get_facecolor()) if own else numpy.median(below, axis=0)
        if contrast(to_hex(text.get_color()), to_hex(ground)) < 4.5:
            yield text.get_text()


def gray(color):
    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def alike(figure):
    """Pairs in a legend that share hatch, dashes and marks and are about as light."""
    for legend in [*figure.legends, *filter(None, (ax.get_legend() for ax in figure.axes))]:
        looks = []
        for handle in legend.legend_handles:
            marks = [getattr(handle, f"get_{of}", str)() for of in ("hatch", "linestyle", "marker", "fillstyle")]
            color = handle.get_color() if hasattr(handle, "get_color") else handle.get_facecolor()
            looks.append((handle.get_label(), [*marks, getattr(handle, "_unscaled_dash_pattern", None)], gray(color)))
        yield from ((a, b) for (a, x, p), (b, y, q) in combinations(looks, 2) if x == y and abs(p - q) < 0.08)


def faint(drawn):
    """Colors of lines and marks whose contrast with white is under 3 to 1 (WCAG 2.2, 1.4.11)."""
    for line in (line for ax in drawn.axes for line in ax.lines):
        if contrast(to_hex(line.get_color()), "#ffffff") < 3:
            yield line.get_color()


def words(data):
    """Every string in the data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, (dict, list, tuple)):
        yield from (word for part in data for word in words(part))
        yield from words(list(data.values())) if isinstance(data, dict) else ()


@pytest.mark.parametrize("name", DATA)
def test_a_figure_is_legible_described_and_small(name, canvas):
    figure, drawn, texts = canvas(lambda: draw(name))
    arguments, options = DATA[name]
    written = " ".join(text.get_text() for text in texts)
    assert [word for word in words([list(arguments), list(options.values())]) if word not in written] == []
    found = {
        "texts that overlap": overlaps(texts),
        "numbers that run together": run_together(drawn, texts),
        "texts that are cut off": cut(drawn, texts),
        "texts that are too pale": pale(drawn, texts),
        "texts that are too small": (text.get_text() for text in texts if text.get_fontsize() < 9),
        "entries of a legend that look alike": alike(drawn.figure),
        "lines that are too faint": faint(drawn.figure),
    }
    assert {what: which for what, each in found.items() if (which := list(each))} == {}
    assert len(figure.alt) >= 40 and figure.alt.endswith(".") and figure.alt[0] == figure.alt[0].upper()
    assert len(figure.svg) < 150_000
    assert not re.search(r"<dc:date>|Matplotlib v|\bnan\b|\binf\b", figure.svg)
    root = ElementTree.fromstring(figure.svg)
    assert root.get("role") == "img" and root.get("aria-label") == root[0].text == figure.alt


# A lesson compares every figure that it shows with the one that is stored.
@pytest.mark.parametrize("name", one_in(9, DATA))
def test_a_figure_is_the_same_every_time(name):
    assert again(name).svg == draw(name).svg


def test_the_checks_find_what_is_illegible(canvas):
    def bad():
        figure, ax = figures.axes()
        ax.text(0.5, 0.5, "below", color="#999999")
        ax.text(0.5, 0.51, "above")
        figure.text(0.9, 0.8, "a sentence that goes on behind the edge")
        ax.plot([0, 1], color="#777777", label="one")
        ax.plot([1, 0], color="#787878", label="two", linestyle="-", marker="o")
        ax.axhline(0.2, color="#bbbbbb")
        ax.legend()
        figures.show(figure, alt=ALT)

    _, drawn, texts = canvas(bad)
    assert list(overlaps(texts)) == [("below", "above")] and list(alike(drawn.figure)) == [("one", "two")]
    assert list(cut(drawn, texts)) == ["a sentence that goes on behind the edge"]
    assert list(pale(drawn, texts)) == ["below"] and list(faint(drawn.figure)) == ["#bbbbbb"]


def test_guesses_with_long_names_and_large_factors_stay_on_the_page(canvas):
    ratios = {"00 years on this processor": 2.5e-06, "00 Llama 3 70B, sequences of 8,192, days": 0.3}
    _, drawn, texts = canvas(lambda: guesses_against_answers(ratios, 4e5))
    assert list(cut(drawn, texts)) == list(overlaps(texts)) == []


def test_neighboring_colors_differ_in_gray():
    assert all(abs(gray(a) - gray(b)) > 0.08 for a, b in zip(figures.COLORS, figures.COLORS[1:], strict=False))


def test_a_given_alt_text_stands_in_the_svg_and_the_bundle():
    figure = figures.show(figures.axes()[0], alt=ALT)
    assert ElementTree.fromstring(figure.svg)[0].text == ALT
    data, metadata = figure._repr_mimebundle_()
    assert set(data) == {"image/svg+xml", "text/html", "text/plain"} and data["text/plain"] == f"Figure: {ALT}"
    assert metadata["image/svg+xml"]["alt"] == ALT


class Images(HTMLParser):
    """The attributes of all images of a page."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found += [dict(attributes)] if tag == "img" else []


def test_the_html_is_an_image_with_a_name_that_shrinks():
    figure = figures.show(figures.axes()[0], alt=ALT)
    (image,) = Images(figure.image).found
    assert image["alt"] == ALT and "max-width:100%" in image["style"] and "height:auto" in image["style"]
    assert unquote(image["src"]) == f"data:image/svg+xml,{figure.svg}"


def test_an_id_that_two_figures_share_means_the_same_in_both():
    seen = {}
    for name in ("roofline", "masks", "weight_courses", "overlap", "small_formats"):
        svg = again(name).svg
        used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
        for element in ElementTree.fromstring(svg).iter():
            if element.get("id") in used:
                content = ElementTree.tostring(element).strip()
                assert seen.setdefault(element.get("id"), content) == content
    assert seen


@pytest.mark.parametrize("alt", ["", "a plot", None, 7])
def test_a_drawing_of_your_own_needs_alt_text(alt):
    with pytest.raises(ValueError, match="describe in a sentence"):
        figures.show(figures.axes()[0], alt=alt)


def test_stacked_bars_begin_where_the_last_one_ends_and_others_stand_side_by_side():
    _, (stacked, grouped) = figures.axes(1, 2)
    bars(stacked, ["a", "b"], {"x": [1, 2], "y": [3, 4]}, stacked=True, flat=True)
    assert [(bar.get_x(), bar.get_width()) for bar in stacked.patches] == [(0, 1), (0, 2), (1, 3), (2, 4)]
    assert stacked.get_ylim()[0] > stacked.get_ylim()[1]  # the first place on top
    bars(grouped, ["a", "b"], {"x": [1, None], "y": [3, 4]})
    assert [(round(bar.get_x(), 6), bar.get_height()) for bar in grouped.patches] == [(-0.4, 1), (0, 3), (1, 4)]


def test_points_under_the_name_of_a_line_take_its_color_and_others_their_own():
    _, ax = figures.axes()
    values = ([0, 1], [1, 2])
    lines(ax, {"p": values, "q": values}, {"q": values, "r": values}, pair=("{}, predicted", "{}, measured"))
    drawn = {line.get_label(): (line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines}
    assert drawn == {
        "p, predicted": (figures.COLORS[0], "-", "o"),
        "q, predicted": (figures.COLORS[1], "--", ""),
        "q, measured": (figures.COLORS[1], "None", "s"),
        "r": (figures.COLORS[2], "None", "^"),
    }


def test_alt_text_says_what_the_lines_do():
    assert figures.weight_courses({"fp32": [0.5, 7, 2]}).alt == (
        "Weight over updates: fp32 0.5 at 0 to 2 at 2, highest 7 at 1."
    )
    assert draw("roundings").alt.endswith("0.5, 1, 2; a tie goes to 2, too large goes to 2, small goes to 0.5.")
    assert "fp8 0.2 at 1 to 0.4 at 2." in draw("spacings").alt  # NaN has no place


def test_alt_text_of_many_bars_is_cut():
    shares = [1 / 20] * 20
    assert "and 12 more" in figures.magnitudes(range(20), {"all": shares}, limits={}).alt


@pytest.mark.proof
def test_a_first_figure_writes_nothing_on_a_machine_without_a_font_cache():
    code = (
        "import torch\nfrom cs336kit import measure\nfrom cs336kit.teach import figures\n"
        "figures.computation_graph(measure.graph(torch.ones(2, requires_grad=True).sum()))"
    )
    nowhere = {**os.environ, "HOME": "/dev/null", "MPLCONFIGDIR": "/dev/null", "XDG_CACHE_HOME": "/dev/null"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=nowhere, check=True)
    assert run.stdout == run.stderr == ""


def test_values_beyond_the_limit_are_not_drawn():
    def ticks(values):
        svg = figures.small_formats({"a": values}, limit=4).svg
        return [len(re.findall("M ", part)) for part in re.findall(r'id="LineCollection_\d".*?</g>', svg, re.S)]

    assert ticks([1.0, 2.0]) == ticks([1.0, 2.0, 5.0]) != ticks([1.0, 2.0, 3.0])


def test_runs_of_which_none_has_numbers_stand_in_the_legend():
    assert figures.starts({"too large": [math.nan] * 20}, guess=5.5).alt.endswith("too large: not a number.")


def test_walks_say_which_line_is_straight():
    assert figures.walks({"one": [0]}).alt.endswith("one is a straight line.")
    assert draw("walks").alt.endswith("x is a straight line; x.T is not straight, with steps 2, -1, 2.")


def test_strided_refuses_to_read_past_the_storage():
    with pytest.raises(IndexError):
        figures.strided(range(5), [("x", (3, 4), (4, 1), 0)])


@pytest.mark.parametrize(("strides", "offset"), [((4, 2), 4), ((2, 1), 0), ((1, 4), 0)])
def test_the_arrow_of_one_axis_comes_down_beside_the_label_of_the_other(strides, offset, canvas):
    _, drawn, texts = canvas(lambda: figures.strided(range(12), [VIEWS[0], ("view", (2, 2), strides, offset)]))
    downs = [
        note.arrow_patch.get_window_extent() for note in drawn.figure.axes[0].texts if hasattr(note, "arrow_patch")
    ]
    boxes = {text.get_text(): text.get_window_extent() for text in texts}
    assert len(downs) == 4
    assert [text for text, box in boxes.items() if any(box.overlaps(down) for down in downs)] == []


def test_products_that_are_done_are_those_that_torch_does():
    def counted(trained):
        weights = [torch.randn(3, 3, requires_grad=layer in trained) for layer in range(3)]
        chain = measure.flops(lambda: (torch.randn(2, 3) @ weights[0] @ weights[1] @ weights[2]).sum().backward())
        return chain.total // (2 * 2 * 3 * 3)

    for trained in ([0], [1], [2], [0, 2], [0, 1, 2]):
        assert f"Only these {counted(trained)} products" in figures.products_done({"only these": trained}, layers=3).alt


def test_losses_are_averages_in_the_middle_of_their_steps():
    assert "fp32 4.75 at 1.5 to 3.35 at 3.5;" in figures.loss_curves(LOSSES, smooth=2, title="forgotten").alt


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 9))
    edges = [(draw(st.integers(0, t - 1)), t) for t in range(1, count) for _ in range(draw(st.integers(1, 3)))]
    return count, edges, [draw(st.sampled_from([None, (0.4, 0.19)])) for _ in edges]


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_boxes_and_labels_do_not_overlap_and_arrows_go_right_from_box_to_box(graph):
    count, edges, labels = graph
    size = [(0.5 + 0.3 * (n % 4), 0.4 + 0.2 * (n % 3)) for n in range(count)]
    whole, place, curves, middles = layout(size, edges, labels)
    boxes = list(zip(place, size, strict=True))
    boxes += [(middle, label) for middle, label in zip(middles, labels, strict=True) if label]
    for (a, x), (b, y) in combinations(boxes, 2):
        assert max(abs(a[i] - b[i]) - (x[i] + y[i]) / 2 for i in (0, 1)) > -0.03  # Graphviz rounds to points
    assert all(a[i] - x[i] / 2 > 0 and a[i] + x[i] / 2 < whole[i] for a, x in boxes for i in (0, 1))
    for (source, target), curve in zip(edges, curves, strict=True):
        assert len(curve) % 3 == 1 and place[target][0] > place[source][0]
        for box, end in ((source, curve[0]), (target, curve[-1])):
            assert all(abs(end[i] - place[box][i]) < size[box][i] / 2 + 0.03 for i in (0, 1))


def test_a_scalar_graph_has_its_slopes_on_the_arrows(canvas):
    *_, texts = canvas(lambda: draw("computation_graph"))
    slopes = {text.get_text() for text in texts if text.get_text().startswith("×")}
    assert slopes == {f"×{math.cos(0.7):.3g}", f"×{math.exp(0.7):.3g}", "×1"}


def test_boxes_say_value_gradient_and_what_is_kept():
    leaf, sine, *_ = fan_out().nodes
    assert node_lines(leaf) == ["y", "value 0.7", "grad 2.779"] and node_lines(sine)[0] == "sin"
    leaf, dot, *_ = torch_graph().nodes
    assert node_lines(leaf) == ["w", "3 · leaf"] and node_lines(dot) == ["Dot", "scalar", "keeps self: 12 B"]
    x, w = torch.ones(2, 3, requires_grad=True) * 1, torch.ones(3, 4, requires_grad=True)
    *_, product = measure.graph(x @ w, names={"x": x, "w": w}).nodes
    assert sorted(node_lines(product)[2:]) == ["keeps x: 24 B", "leaf w: 48 B"]


def test_what_two_operands_share_is_kept_once_and_what_is_freed_is_said():
    x = torch.ones(4, requires_grad=True).exp()
    square = x * x
    *_, last = measure.graph(square).nodes
    assert node_lines(last)[2:] == ["keeps other: 16 B"]
    assert node_lines(last, {saved.storage for saved in last.saved})[2:] == ["keeps other: the same"]
    square.sum().backward()
    assert node_lines(measure.graph(square).nodes[-1])[2:] == ["(freed)"]


def test_a_two_layer_network_fits_a_notebook(canvas):
    x, w1, w2 = torch.ones(32, 16), torch.ones(16, 64, requires_grad=True), torch.ones(64, 8, requires_grad=True)
    a = (x @ w1).relu()
    loss = ((a @ w2) ** 2).mean()
    names = {"x": x, "w1": w1, "w2": w2, "a": a, "loss": loss}
    _, drawn, _ = canvas(lambda: figures.computation_graph(measure.graph(loss, names=names)))
    assert drawn.figure.get_figwidth() < 11


def test_names_that_do_not_fit_the_axes_are_refused():
    with pytest.raises(ValueError, match=r"'s \(a h\)' names 2 axes, and the tensor has 3; at most 3"):
        figures.named_axes({"x": ("s (a h)", torch.zeros(1, 2, 3))})
    with pytest.raises(ValueError, match="names 4 axes, and the tensor has 4; at most 3"):
        figures.named_axes({"x": ("a b c d", torch.zeros(1, 1, 1, 1))})


def test_only_the_part_at_an_index_is_colored(canvas):
    def faces(*index):
        _, drawn, _ = canvas(lambda: figures.named_axes({"x": ("a b", torch.zeros(2, 3), *index)}))
        return [to_hex(patch.get_facecolor()) for patch in drawn.figure.axes[0].patches]

    assert len(set(faces())) == 1 and len(faces()) == 6
    assert [face == "#f4f4f4" for face in faces((1,))] == [True] * 3 + [False] * 3
