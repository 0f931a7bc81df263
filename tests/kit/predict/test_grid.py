import xml.etree.ElementTree as ElementTree

from cs336kit.predict.grid import as_html, as_text

ROWS = [("weights", "4"), ("a<b", "16")]


def test_text_is_aligned_and_has_no_trailing_spaces():
    assert as_text([("part", "bytes"), *ROWS], "<>") == "part      bytes\nweights       4\na<b          16"
    assert as_text([("a", "b"), ("ccc", "")], "<<", gap=1) == "a   b\nccc"


def test_html_is_well_formed_escaped_and_marks_the_total():
    box = ElementTree.fromstring(as_html(("part", "bytes"), ROWS, "<>", total=True))
    (table,) = box
    assert "overflow-x:auto" in box.get("style")
    assert [cell.text for cell in table.iter() if cell.tag in ("th", "td")] == [
        "part",
        "bytes",
        "weights",
        "4",
        "a<b",
        "16",
    ]
    assert [[cell.get("scope") for cell in row] for row in table.iter("tr")] == [["col"] * 2, *[["row", None]] * 2]
    assert ["bold" in row[1].get("style") for row in table.iter("tr")] == [False, False, True]
    assert "text-align:right" in table.find("tbody/tr")[1].get("style")


def test_no_row_stands_out_without_a_total():
    assert "bold" not in as_html(("part", "bytes"), ROWS, "<>")
    assert "bold" not in as_html(("part", "bytes"), (), "<>", total=True)


def test_without_headers_there_is_no_head():
    assert "thead" not in as_html((), ROWS, "<>")


def test_a_caption_stands_first_in_the_table_and_is_escaped():
    (table,) = ElementTree.fromstring(as_html(("part", "bytes"), ROWS, "<>", caption="Where <all> bytes go"))
    assert table[0].tag == "caption" and table[0].text == "Where <all> bytes go"
    (table,) = ElementTree.fromstring(as_html(("part", "bytes"), ROWS, "<>"))
    assert table.find("caption") is None
