import pytest

from cs336kit.teach import table

pytestmark = pytest.mark.torch


def test_numbers_stand_right_and_words_left():
    shown = repr(table(["dtype", "bytes"], [("fp32", 4), ("fp64", 16)]))
    assert shown == "dtype   bytes\nfp32        4\nfp64       16"


def test_numbers_that_are_written_already_stand_right_too():
    rows = [("fp32", "4.5 kB", "–", "8-bit"), ("fp64", "16 kB", "1e-05", "16 of them")]
    assert table("abcd", rows).align == "<>><"
    assert table("ab", [("some", 4), (8, 16)]).align == "<>"
    assert table("ab", [("", 1.5), ("–", float("nan"))]).align == "<>"


def test_html_escapes_and_aligns():
    shown = table(["a<b"], [("x&y",)])._repr_html_()
    assert "a&lt;b" in shown and "x&amp;y" in shown and "text-align:left" in shown


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="has 1 cells, but the table 2 columns"):
        table(["a", "b"], [(1,)])


def test_a_wrong_alignment_is_refused():
    with pytest.raises(ValueError, match="align='>'"):
        table(["a", "b"], [(1, 2)], align=">")


def test_an_empty_table_is_its_headers():
    assert repr(table(["a", "b"], [])) == "a   b"


def test_a_caption_stands_above_in_text_and_in_html():
    shown = table(["a"], [(1,)], caption="Ones.")
    assert repr(shown) == "Ones.\na\n1" and "Ones.</caption>" in shown._repr_html_()
