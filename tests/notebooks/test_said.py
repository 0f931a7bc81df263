"""What a text says is read: equations, shares in words, directions, formulas, sections, pointers; and what is false is seen."""

import pytest
from nbformat import v4

from cs336course import directions, structure
from cs336course.arithmetic import equations, plain
from cs336course.prose import formulas, years
from cs336course.shares import shares

TRUE = [
    "3 · 4 = 12", "15 − 7 = 8", "8 / 2 + 1 = 5", "1/(1 − 0.9) = 10", "√(2/128) = 0.125", "√16 = 4", "ln 256 = 5.55",
    "2 · 1,024² · 128 = 2.7 · 10⁸", "1.75 · 2⁸ = 448", "(1 + 2)² · 2 = 18", "6 · 64 · 4,096 · 4 bytes = 6 MiB",
    "8 · 50 = 400 GB/s",
    "13.7 µs · 4.8 TB/s = 66 MB", "10/3 = 3", "10 = 8 + 2", "1/3 ≈ 0.34", "3 · 4 = 12 = 24 ÷ 2", "20 % · 5 = 1",
]  # fmt: skip
FALSE = [
    "3 · 4 = 13", "15 − 7 = 9", "8 / 2 + 1 = 6", "1/(1 − 0.9) = 20", "√(2/128) = 0.25", "√16 = 8", "ln 256 = 5.65",
    "2 · 1,034² · 128 = 2.8 · 10⁸", "1.75 · 2⁷ = 448", "(1 + 2)² · 2 = 36", "6 · 64 · 4,096 · 4 bytes = 7 MiB",
    "8 · 50 = 500 GB/s",
    "13.7 µs · 4.8 TB/s = 76 MB", "10/3 = 4", "11 = 8 + 2", "1/3 ≈ 0.4", "20 % · 5 = 2",
]  # fmt: skip


@pytest.mark.parametrize(("text", "true"), [*((text, True) for text in TRUE), *((text, False) for text in FALSE)])
def test_an_equation_is_true_or_false(text, true):
    sentence = f"So it is that {text}, as before."
    found = [*equations(sentence)]
    assert found and all(is_so == true for *_, is_so in found)
    begin, end, _ = found[0]
    assert sentence[begin : begin + 2] == text[:2] and sentence[begin:end] in text


@pytest.mark.parametrize(
    "text",
    ["D = 3 · 4", "x · 4 = 13", "f(3 + 4) = 9", "3 · 4 = D · 13", "3 · 4 = 2x", "layers=3 · 4", "007 · 1 = 8", "4 = 5",
     "H100 · 2 = 7",
     "half of 1/1024, which is 0.05 %", "D −3 · 2 = 7", "3 · 4) = 13", "7 / 0 = 3", "2 ^ 3 = 7", "√(−4) = 2"],
)  # fmt: skip
def test_what_says_nothing_that_can_be_computed_is_no_equation(text):
    assert [true for *_, true in equations(f"So {text}.")] in ([], [True])


def test_a_verb_makes_an_equation_only_if_it_is_true():
    assert [true for *_, true in equations("It is 48 · 15/16 is 45.0.")] == [True]
    assert not [*equations("It is 48 · 15/16 is 46.0.")]


@pytest.mark.parametrize(
    ("latex", "true"),
    [(r"$3 \cdot 4 = 12$", True), (r"$3 \times 4 = 13$", False), (r"$\frac{1}{4} = 0.25$", True), (r"$\sqrt{16} = 5$", False),
     (r"$4{,}096 \div 2 = 2{,}048$", True), (r"$\log 256 \approx 5.5$", True), (r"$7 - 2 = 4$", False)],
)  # fmt: skip
def test_latex_is_read(latex, true):
    assert [is_so for *_, is_so in equations(plain(latex))] == [true]


@pytest.mark.parametrize(
    ("text", "said", "holds", "fails"),
    [
        ("It is nearly a third of it.", "nearly a third", [0.3, 1 / 3], [0.34, 0.2]),
        ("It is more than half of it.", "more than half", [0.5, 0.83], [0.49]),
        ("It is less than half a percent of it.", "less than half a percent", [0.0045], [0.006]),
        ("It is twice as long.", "twice", [2, 1.9], [1.5, 3]),
        ("It is about five times the work.", "about five times", [4.5], [4, 6]),
        ("It is more than a million times as large.", "more than a million times", [1.2e6], [9e5]),
        ("It is exactly half of it.", "exactly half", [0.5], [0.51]),
        ("Only one in eleven is wrong.", "Only one in eleven", [0.09], [0.11]),
        ("It is one part in seven.", "one part in seven", [1 / 7], [1 / 6]),
        ("It is three quarters of it.", "three quarters", [0.75], [0.5]),
        ("It is two hundred times as much.", "two hundred times", [200], [20]),
        ("It is 14 % more than that.", "14 % more", [0.137], [0.15, -0.137]),
        ("It is 14 % less than that.", "14 % less", [-0.137], [0.137]),
    ],
)  # fmt: skip
def test_a_share_in_words_stands_for_some_values_and_for_no_others(text, said, holds, fails):
    (share,) = shares(text)
    assert share.said == said and text[share.start :].startswith(said)
    assert all(map(share.holds, holds)) and not any(map(share.holds, fails))


@pytest.mark.parametrize(
    "text", ["the third lane", "a third vector", "it runs twice", "these two times", "the first half", "a two-third"]
)
def test_a_number_of_an_order_is_no_share(text):
    assert not [*shares(f"That is {text} here.")]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("40 tokens more than 30", "30 tokens more than 40"),
        ("30 is less than 40", "40 is less than 30"),
        ("5 GB, which is more than 3 GB", "3 GB, which is more than 5 GB"),
        ("rises from 3 to 5", "rises from 5 to 3"),
        ("the loss fell slowly from 5.5 to 3.1", "the loss fell slowly from 3.1 to 5.5"),
        ("it was 55 and fell to 28", "it was 55 and rose to 28"),
        ("between 900 MB and 2 GB", "between 2 GB and 900 MB"),
        ("at least 3 and at most 5", "at least 5 and at most 3"),
        ("grows from 3 · 10⁵ to 2 · 10⁶", "grows from 2 · 10⁶ to 3 · 10⁵"),
    ],
)
def test_a_direction_between_two_numbers(right, wrong):
    assert [*directions.wrong(f"It {right}.")] == [] and [*directions.wrong(f"It {wrong}.")] == [
        wrong.removeprefix("it was ").removeprefix("the loss ")
    ]


def test_numbers_of_two_units_and_sentences_are_not_compared():
    assert not [*directions.wrong("It rises from 5 to 3 GB. It was 3. It fell to 5.")]


def test_formulas_and_years():
    text = "It takes 6 · P · N, 12LD² and 2·(P − V·D); not 70B, 1P, `3P` or 2 · A, and $4\\,(8\\,BSD)$."
    assert [term for term, *_ in formulas(text)] == ["6PN", "12LD²", "2(P−VD)", "8BSD"]
    begin, end = next((a, b) for term, a, b in formulas(text) if term == "12LD²")
    assert text[begin:end] == "12LD²"
    told = "Hoffmann et al. (2022), LeCun and others, 1998, in 2015, `from 2020`, and 2,048 from 2048 tokens."
    assert years(told) == [("Hoffmann", 2022), ("LeCun", 1998), ("in", 2015)]


def prose(*texts):
    return [v4.new_markdown_cell(text) for text in texts]


LONG = "A sentence that is long enough to be said only once in a lesson, because it says something."


@pytest.mark.parametrize(
    ("rule", "cells", "found"),
    [
        (structure._twice, prose(LONG, "short", "short"), 0),
        (structure._twice, prose(LONG, f"Before.\n\n{LONG}"), 1),
        (structure._twice, [v4.new_code_cell(LONG), v4.new_code_cell(LONG)], 1),
        (structure._sections, prose("## 1 · A", "## 2 · B", "as in section 1, and section 2 of lesson 09, section 3.3"), 0),
        (structure._sections, prose("## 1 · A", "## 3 · B"), 1),
        (structure._sections, prose("## 1 · A", "(as in section 2.)"), 1),
        (structure._pointers, [*prose("the table below"), v4.new_code_cell("x", outputs=[])], 1),
    ],
)  # fmt: skip
def test_a_rule_of_the_whole_lesson(rule, cells, found):
    assert len([*rule({"cells": cells})]) == found


def test_a_table_and_a_figure_are_where_a_text_points():
    def shown(html="", svg=""):
        data = {"text/html": html} | ({"image/svg+xml": svg} if svg else {})
        return v4.new_code_cell("x", outputs=[v4.new_output("display_data", data)])

    text = prose("as the table below and the figure above say")
    assert not [*structure._pointers({"cells": [shown(svg="<svg/>"), *text, shown("<table>")]})]
    assert len([*structure._pointers({"cells": [shown("<table>"), *text, shown(svg="<svg/>")]})]) == 2


def test_a_cell_that_says_what_is_false():
    (cell,) = prose("It is 3 · 4 = 13, `3 · 4 = 14` and $2 \\cdot 2 = 5$. It rises from 5 to 3.")
    assert [*structure._sums(cell)] == [
        "says 3 · 4 = 13, which is false", "says 2 · 2 = 5, which is false",
        "says 'rises from 5 to 3', which is the other way round",
    ]  # fmt: skip
    assert not [*structure._sums(cell | {"cell_type": "code"})]
