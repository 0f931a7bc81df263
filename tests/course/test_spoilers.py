"""Where an answer is given away: every way to say it is found, and what only sounds like it is not."""

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from cs336course import spoilers
from cs336course.cells import FOLD, FOLD_END


def text(source):
    return new_markdown_cell(source)


def code(source, *outputs, tag=""):
    return new_code_cell(source, metadata={"tags": [tag] if tag else []}, outputs=list(outputs))


def printed(words):
    return new_output("stream", text=words)


def shown(plain, html=""):
    data = {"text/plain": plain} | ({"text/html": html} if html else {})
    return new_output("execute_result", data=data)


def figure(alt):
    data = {"image/svg+xml": "<svg/>", "text/html": "<img>", "text/plain": f"Figure: {alt}"}
    return code("draw()", new_output("execute_result", data=data))


def lesson(answer, before=(), after=()):
    """A section with one prediction, whose answer (as the table shows it) has something before its question and after it."""
    table = shown(f"question     computed\nhow many     {answer}", "<details><summary>The answer</summary></details>")
    question = [text("**Your prediction.** How many, few or many?"), code("guess = ...", tag="prediction")]
    return [text("## 1 · A section"), *before, *question, code("teach.reveal()", table, tag="answer"), *after]


def found(*args, **kwargs):
    return [*spoilers.problems(lesson(*args, **kwargs))]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("143.9", "It takes 143.9 days."),
        ("143.9", "It takes about 144 days."),
        ("15,701", "With 15,701 tokens, the link is hidden."),
        ("1.5701e+10", "With 15.7 billion tokens."),
        ("0.905", "The average is 0.91."),
        ("0.905", "That is 90.5 % of it."),
        ("5", "Only 5 billion."),
        ("5", "Only five billion."),
        ("2.04", "Backward takes about twice as long."),
        ("0.5", "Half of it is gone."),
        ("50", "Half of it is gone."),
        ("33", "More than a third."),
        ("99", "All of them are."),
        ("0", "Nothing arrives."),
        ("many", "There are many."),
        ("MANY", "There are Many."),
        ("below", "It ends **below** the other."),
    ],
)
def test_what_tells_an_answer_below_it_is_found(answer, says):
    assert len(found(answer, after=[text(says)])) == 1
    assert len(found(answer, after=[code("show()", printed(says))])) == 1
    assert len(found(answer, after=[code("show()", shown(says))])) == 1
    assert len(found(answer, after=[figure(says)])) == 1
    assert len(found(answer, after=[text("Nothing that tells." if answer != "0" else "Well."), text(says)])) == 1
    # Folded, or where the next thought begins, it may be said.
    assert not found(answer, after=[text(FOLD + says + FOLD_END)])
    assert not found(answer, after=[code("show()", shown(says, f"<details><summary>It</summary>{says}</details>"))])
    assert not found(answer, after=[text("## 2 · The next section"), text(says)])
    assert not found(answer, after=[text("### Exercise 00.1 ★ 5 min · build it: it"), text(says)])
    assert not found(answer, after=[figure("A figure of something else, at length."), text(says)])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("4", "Lesson 04 and section 4 say more, and `f(4)` does."),
        ("3.9", "There are 4 kinds."),
        ("143.9", "It takes 140 days, or 1,439 of something: 143 it is not."),
        ("2.57", "Two products."),
        ("many", "In Germany."),
        ("12", "A table of 1,200 rows."),
    ],
)
def test_what_only_sounds_like_it_is_not(answer, says):
    assert not found(answer, after=[text(says)])


def test_above_the_question_only_what_is_no_accident_counts():
    assert found("143.9", before=[text("It takes 143.9 days.")])
    assert found("143.9", before=[code("f()", shown("143.9"))])
    assert not found("4", before=[text("There are four kinds, or 4.")])
    assert found("fewest", before=[text("There are the fewest.")])
    # The question itself may name the words to choose from.
    assert not found("few")
    cells = lesson("8,192", before=[])
    cells[1].source = "**Your prediction.** Is it 4,096 or 8,192?"
    assert [*spoilers.problems(cells)]
    cells[3].source = "teach.reveal(guess, of='it', counted=8192, choices=(4096, 8192))"
    assert not [*spoilers.problems(cells)]
    # Another section has another subject.
    cells = lesson("143.9", before=[text("It takes 143.9 days."), text("## 2 · Another section")])
    assert not [*spoilers.problems(cells)]


def test_each_part_of_an_answer_counts_and_what_tells_is_named():
    cells = lesson("31", after=[text("NVFP4 keeps more: 15 of them.")])
    [answer] = (cell for cell in cells if "answer" in cell.metadata.get("tags", []))
    answer.outputs[0].data["text/plain"] = "zeros        measured\nmxfp4              31\nnvfp4              15"
    [said] = spoilers.problems(cells)
    assert "NVFP4 keeps more" in said and "**Your prediction.** How many" in said and "'15'" in said
