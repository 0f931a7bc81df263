import xml.etree.ElementTree as ElementTree

from cs336kit.predict._common.grid import as_html, as_text

ROWS = [("weights", "4"), ("a<b", "16")]


def test_text_is_aligned_and_has_no_trailing_spaces():
    assert as_text([("part", "bytes"), *ROWS], "<>") == "part      bytes\nweights       4\na<b          16"
    assert as_text([("a", "b"), ("ccc", "")], "<<", gap=1) == "a   b\nccc"


def test_html_is_well_formed_escaped_and_marks_the_total():
    table = ElementTree.fromstring(as_html(("part", "bytes"), ROWS, "<>", total=True))
    assert [cell.text for cell in table.iter() if cell.tag in ("th", "td")] == [
        "part",
        "bytes",
        "weights",
        "4",
        "a<b",
        "16",
    ]
    assert [row[0].tag for row in table.iter("tr")] == ["th", "td", "th"]
    assert "text-align:right" in table.find("tbody/tr")[1].get("style")


def test_without_headers_there_is_no_head():
    assert "thead" not in as_html((), ROWS, "<>")
