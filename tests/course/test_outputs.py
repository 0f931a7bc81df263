import copy
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from few import one_in
from hypothesis import given
from hypothesis import strategies as st

from cs336course import cells as kind
from cs336course.columns import side_by_side
from cs336course.lessons import find, read
from cs336course.outputs import WIDGET, difference

ROOT = Path(__file__).parents[2]


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
        # Where a kernel keeps its cells on Linux, on macOS and on Windows.
        ([stream("in /tmp/ipykernel_7/1.py:3")], [stream("in /var/folders/x+y/T/ipykernel_8/2.py:3")]),
        ([stream("in /tmp/ipykernel_7/1.py:3")], [stream(r"in C:\Users\A~1\Temp\ipykernel_8\2.py:3")]),
        ([result(text__plain="a")], [result(**{"text__plain": "a", WIDGET: {"model_id": "1"}})]),
        ([result(text__plain=["a\n", "b"])], [result(text__plain="a\nb")]),
        (
            [{"image/svg+xml": 1, "output_type": "display_data", "data": {"image/svg+xml": SVG.format(x=1.001)}}],
            [{"output_type": "display_data", "data": {"image/svg+xml": SVG.format(x=1.002)}}],
        ),
        ([stream("out"), stream("err", "stderr")], [stream("err", "stderr"), stream("out")]),
        ([result(application__json={"a": 1, "b": 2})], [result(application__json={"b": 2, "a": 1})]),
        ([result(application__json=["a", 1])], [result(application__json=["a", 1])]),
    ],
)
def test_the_same(stored, new):
    assert difference(stored, new) is None


@pytest.mark.parametrize(
    ("stored", "new", "part"),
    [
        ([stream("a")], [], "an output is missing: stdout"),
        ([], [stream("a")], "there is one more output: stdout"),
        ([stream("a")], [stream("a", "stderr")], "changed from stdout to stderr"),
        ([stream("0.123")], [stream("0.124")], "stdout differs"),
        ([stream("bits 0x3f800000")], [stream("bits 0x3f000000")], "stdout differs"),
        ([result(**{"text__plain": "a", WIDGET: {"model_id": "1"}})], [result(text__plain="a")], "changed from"),
        ([result(text__plain="a")], [{**result(text__plain="a"), "metadata": {"alt": "b"}}], "changed from"),
        (
            [{**result(text__plain="a"), "metadata": {"alt": "a"}}],
            [{**result(text__plain="a"), "metadata": {"alt": "b"}}],
            "metadata differs",
        ),
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
    assert difference([stream("loss 1.0 of 2")], [stream("loss 1.1 of 5")], 0.5), "nor one of two numbers"


DRAWN = """<svg aria-label="MFU {0} and 0.3"><title>MFU {0}</title><!-- {0} --><text x="1.5">{0}</text>
<g transform="translate(7 {1}) scale({0} 0.1)" style="opacity: {0}"><path d="M {1} 20"/></g></svg>"""


@pytest.mark.parametrize("place", range(6))
def test_of_a_figure_only_coordinates_may_differ(place):
    """MFU 0.6 and 0.56 are nearer to each other than coordinates have to be."""

    def output(svg):
        return [{"output_type": "display_data", "data": {"image/svg+xml": svg}}]

    stored = DRAWN.format(0.6, 30.5)
    assert difference(output(stored), output(DRAWN.format(0.6, 30.54))) is None
    assert difference(output(stored), output(DRAWN.format(0.6, 30.56)))
    parts = stored.split("0.6")
    assert len(parts) == 7
    lie = "0.6".join(parts[: place + 1]) + "0.56" + "0.6".join(parts[place + 1 :])
    assert difference(output(stored), output(lie))


def clipped(first, second):
    svg = f'<svg><g clip-path="url(#{first})"/><g clip-path="url(#{second})"/></svg>'
    return [{"output_type": "display_data", "data": {"image/svg+xml": svg}}]


def test_digests_in_a_figure_may_differ_as_long_as_they_refer_alike():
    stored = clipped("p2afeb93ae0", "p154740827b")
    assert difference(stored, clipped("p0000000001", "p0000000002")) is None
    assert "differs" in difference(stored, clipped("p0000000001", "p0000000001"))


STYLED = "<style>td {{ color: red }}</style><table><tr><td>weights</td><td style='{style}'>{count} B</td></tr></table>"


def table(count, plain=None, style="x"):
    data = {"text/html": STYLED.format(count=count, style=style * 300)}
    return [{"output_type": "display_data", "data": data | ({"text/plain": plain} if plain else {})}]


def test_plain_text_is_shown_where_it_differs_too():
    shown = difference(table(448, "weights 448 B"), table(240, "weights 240 B"))
    assert shown.splitlines() == [
        "text/plain differs",
        f"{'stored':<48}   new",
        f"{'weights 448 B':<48} | weights 240 B",
    ]


def test_of_html_that_differs_alone_its_text_is_shown():
    kind, _, row = difference(table(448, "weights"), table(240, "weights")).splitlines()
    assert kind == "text/html differs" and row == f"{'weights  448 B':<48} | weights  240 B"


def test_of_plain_text_nothing_is_left_out():
    assert "loss <b> 2" in difference([stream("loss <b> 1")], [stream("loss <b> 2")])


def test_markup_is_shown_where_it_is_all_that_differs():
    shown = difference(table(448), table(448, style="y"))
    assert "xxx" in shown and "yyy" in shown and max(map(len, shown.splitlines())) <= 100


def test_of_a_table_that_is_missing_or_new_its_text_is_shown():
    for stored, new in ((table(448, "weights 448 B"), []), ([], table(448, "weights 448 B"))):
        shown = difference(stored, new)
        assert "text/html, text/plain" in shown and "weights 448 B" in shown and "<td>" not in shown


def test_long_lines_show_the_place_where_they_differ():
    start, end = "a" * 200, "b" * 200
    row = side_by_side(f"{start}1{end}", f"{start}2{end}").splitlines()[1]
    left, right = row.split(" | ")
    assert "a1b" in left and "a2b" in right and len(row) <= 100


def test_of_a_long_line_48_columns_are_shown_from_20_before_the_difference():
    def columns(left, right):
        return side_by_side(left, right).splitlines()[1].split(" | ")

    assert columns("a" * 48, "b") == ["a" * 48, "b"]
    assert columns("a" * 47 + "1", "a" * 47 + "2") == ["a" * 47 + "1", "a" * 47 + "2"]
    assert columns("a" * 49, "b") == ["a" * 45 + "...", "b"]
    # From place 10 on, behind three dots: 17 letters that are alike, the one that is not, and 24 more before the dots.
    start, end = "a" * 30, "c" * 40
    assert columns(f"{start}1{end}", f"{start}2{end}") == [f"...{'a' * 17}{n}{'c' * 24}..." for n in (1, 2)]
    # So it is where only one of the two is long.
    assert columns(f"{start}1{end}", f"{start}2") == [f"...{'a' * 17}1{'c' * 24}...", f"...{'a' * 17}2"]
    # Tabs are blanks.
    assert columns("a\tb", "a\tc") == ["a       b" + " " * 39, "a       c"]


def test_forty_rows_are_shown():
    lines = "\n".join("x" * 40)
    assert len(side_by_side(lines, "").splitlines()) == 41
    assert side_by_side(lines + "\nx", "").splitlines()[40:] == ["x".ljust(48) + " |", "... and 1 more lines"]


def test_equal_lines_far_from_a_difference_are_left_out_and_so_are_very_many():
    lines = [str(n) for n in range(50)]
    shown = side_by_side("\n".join(lines), "\n".join(["x", *lines[1:49], "y"])).splitlines()
    assert [row.split()[0] for row in shown] == ["stored", "0", "1", "...", "48", "49"]
    assert side_by_side("\n".join(lines), "", most=4).endswith("... and 46 more lines")


@given(st.text(max_size=300), st.text(max_size=300))
def test_whatever_differs_fits_into_a_hundred_columns(stored, new):
    assert max(map(len, side_by_side(stored, new).splitlines())) <= 100


@pytest.mark.parametrize("write", [str, lambda svg: f'<img alt="A." src="data:image/svg+xml,{quote(svg)}">'])
def test_a_figure_inside_html_is_compared_like_a_figure(write):
    def html(x, digest="p0000000001"):
        svg = f'<svg><g clip-path="url(#{digest})"><path d="M {x} 20.5"/></g></svg>'
        return [result(text__html=f"<div>{write(svg)}</div>")]

    assert difference(html(1.001), html(1.002, digest="p0000000002")) is None
    assert "text/html (figure) differs" in difference(html(1.0), html(1.2))
    assert "A 4" in difference([result(text__html="<b>A 4%20</b>")], [result(text__html="<b>A 4 </b>")])


def digits(outputs):
    """Each text of these outputs with a digit of it made wrong, at up to three places; coordinates of figures are no digits."""
    for output in outputs:
        held = output.get("data", output)
        for mime in (mime for mime in held if mime in ("text", "evalue") or ("/" in mime and mime != WIDGET)):
            text = "".join(held[mime])
            said = re.sub("<svg.*?</svg>|data:image[^\"']*", lambda drawn: " " * len(drawn[0]), text, flags=re.S)
            places = [found.start() for found in re.finditer(r"\d", said)]
            for place in places[:: len(places) // 3 + 1]:
                wrong = text[:place] + str((int(text[place]) + 1 + place % 9) % 10) + text[place + 1 :]
                yield held, mime, wrong


@pytest.mark.parametrize("part", one_in(4, range(4)))
def test_a_wrong_digit_in_what_a_lesson_stores_is_seen(part):
    """By the comparison with a run, or, where a cell is measured, by the signature of its own."""
    seen = missed = 0
    for path in find([], ROOT / "notebooks")[part::4]:
        for cell in filter(kind.is_code, read(path)):
            told = copy.deepcopy(cell["outputs"])
            for held, mime, wrong in digits(cell["outputs"]):
                right, held[mime] = held[mime], wrong
                signed = kind.measured(cell) and kind.from_a_run(cell)
                same = signed if kind.measured(cell) else not difference(cell["outputs"], told, kind.tolerance(cell))
                seen, missed = seen + (not same), missed + same
                held[mime] = right
    print(f"{seen} of {seen + missed} wrong digits are seen")
    assert seen > 0.99 * (seen + missed)


def test_of_several_that_differ_the_one_is_named_that_says_most():
    def output(n):
        data = {"image/svg+xml": f"<svg><text>{n}</text></svg>", "text/html": f"<b>{n}</b>", "text/plain": f"{n}"}
        return [stream(f"{n}"), stream(f"{n}", "stderr")], [{"output_type": "display_data", "data": data}]

    (streams, (old,)), (others, (new,)) = output(1), output(2)
    assert difference(streams, others).startswith("stdout differs")
    assert difference([old], [new]).startswith("text/plain differs")
    for said in ("text/html differs", "image/svg+xml (figure) differs"):
        for one in (old, new):
            one["data"].pop("text/plain", None) if said.startswith("text") else one["data"].pop("text/html")
        assert difference([old], [new]).startswith(said)


def test_one_line_that_differs_among_very_many_that_are_alike_is_the_only_one_shown():
    lines = ["x", "y"] * 150
    shown = side_by_side("\n".join(lines), "\n".join([*lines[:150], "z", *lines[151:]])).splitlines()
    assert [row.split() for row in shown[1:]] == [["y", "y"], ["x", "|", "z"], ["y", "y"]]
