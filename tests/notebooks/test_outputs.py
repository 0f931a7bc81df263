from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336kit.course.outputs import difference


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def result(**data):
    return {
        "output_type": "execute_result",
        "execution_count": 1,
        "metadata": {},
        "data": {k.replace("__", "/"): v for k, v in data.items()},
    }


SVG = '<svg><path d="M {x} 20.5 L 3 4"/></svg>'


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ([stream("a\nb")], [stream("a\n"), stream("b")]),
        ([stream("<x at 0x7f00aa112233>")], [stream("<x at 0x7f00aa445566>")]),
        ([result(text__plain=["a\n", "b"])], [result(text__plain="a\nb")]),
        (
            [{"image/svg+xml": 1, "output_type": "display_data", "data": {"image/svg+xml": SVG.format(x=1.001)}}],
            [{"output_type": "display_data", "data": {"image/svg+xml": SVG.format(x=1.002)}}],
        ),
        ([stream("out"), stream("err", "stderr")], [stream("err", "stderr"), stream("out")]),
    ],
)
def test_the_same(stored, new):
    assert difference(stored, new) is None


@pytest.mark.parametrize(
    ("stored", "new", "part"),
    [
        ([stream("a")], [], "an output is missing: stdout"),
        ([], [stream("a")], "there is one output more: stdout"),
        ([stream("a")], [stream("a", "stderr")], "changed from stdout to stderr"),
        ([stream("0.123")], [stream("0.124")], "stdout differs"),
        ([result(text__html="<b>1</b>")], [result(text__html="<b>2</b>")], "text/html differs"),
        (
            [{"output_type": "display_data", "data": {"image/svg+xml": SVG.format(x=1.0)}}],
            [{"output_type": "display_data", "data": {"image/svg+xml": SVG.format(x=1.2)}}],
            "image/svg+xml (figure) differs",
        ),
        (
            [{"output_type": "display_data", "data": {"image/png": "aaaa"}}],
            [{"output_type": "display_data", "data": {"image/png": "aaab"}}],
            "image/png differs",
        ),
        (
            [{"output_type": "error", "ename": "A", "evalue": "x"}],
            [{"output_type": "error", "ename": "B", "evalue": "x"}],
            "error differs",
        ),
        (
            [result(**{"application__json": {"a": 1}})],
            [result(**{"application__json": {"a": 2}})],
            "application/json differs",
        ),
    ],
)
def test_different(stored, new, part):
    assert part in difference(stored, new)


@given(st.floats(1e-3, 1e3), st.floats(-0.2, 0.2))
def test_the_tolerance_is_relative_and_opt_in(value, shift):
    stored, new = [stream(f"loss {value!r}")], [stream(f"loss {value * (1 + shift)!r}")]
    close = abs(shift) * value <= 0.1 * max(value, value * (1 + shift))
    if abs(abs(shift) - 0.1) > 0.02:
        assert (difference(stored, new, 0.1) is None) == close
    assert (difference(stored, new) is None) == (stored == new)


def test_a_tolerance_never_covers_words():
    assert difference([stream("loss 1.0 down")], [stream("loss 1.0 up")], 0.5)


def clipped(first, second):
    svg = f'<svg><g clip-path="url(#{first})"/><g clip-path="url(#{second})"/></svg>'
    return [{"output_type": "display_data", "data": {"image/svg+xml": svg}}]


def test_digests_in_a_figure_may_differ_as_long_as_they_refer_alike():
    stored = clipped("p2afeb93ae0", "p154740827b")
    assert difference(stored, clipped("p0000000001", "p0000000002")) is None
    assert "differs" in difference(stored, clipped("p0000000001", "p0000000001"))


@pytest.mark.parametrize("write", [str, lambda svg: f'<img alt="A." src="data:image/svg+xml,{quote(svg)}">'])
def test_a_figure_inside_html_is_compared_like_a_figure(write):
    def html(x, digest="p0000000001"):
        svg = f'<svg><g clip-path="url(#{digest})"><path d="M {x} 20.5"/></g></svg>'
        return [result(text__html=f"<div>{write(svg)}</div>")]

    assert difference(html(1.001), html(1.002, digest="p0000000002")) is None
    assert "text/html (figure) differs" in difference(html(1.0), html(1.2))
    assert "A 4" in difference([result(text__html="<b>A 4%20</b>")], [result(text__html="<b>A 4 </b>")])
