"""A cell shows something else: which sentences the report asks to read again."""

from cs336course import doubt


def text(source):
    return {"cell_type": "markdown", "source": source, "metadata": {}}


def code(source, shown):
    output = {"output_type": "stream", "name": "stdout", "text": shown}
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [output]}


CELLS = [
    text("## A heading\n\nWe count.\nWhat is left?"),
    code("print(product())", "448\n"),
    text("Fewer than 500. The layer takes 448 FLOPs, e.g. on a CPU."),
    code("print(step())", "1344\n"),
    text("- All is well.\n- That is 1,344 in all, three times 448."),
]


def about(place, *outputs):
    return doubt.sentences(CELLS, CELLS[place], outputs)


def test_a_sentence_whose_number_no_cell_shows_any_longer_is_named():
    assert about(3, *code("", "1345\n")["outputs"]) == ["That is 1,344 in all, three times 448."]
    assert about(3) == about(3, *code("", "1345\n")["outputs"])


def test_no_more_than_four_sentences_are_named():
    cells = [code("x", "501 502 503 504 505\n"), text("501 is one. 502 is two. Then 503. Then 504. Then 505.")]
    told = doubt.sentences(cells, cells[0], code("", "506\n")["outputs"])
    assert told == ["501 is one.", "502 is two.", "Then 503.", "Then 504."]


def test_where_no_number_is_lost_the_sentences_beside_the_cell_are_named():
    assert about(1, *code("", "448 and more\n")["outputs"]) == ["What is left?", "Fewer than 500."]


def test_a_lesson_without_prose_names_nothing():
    cell = code("1", "1\n")
    assert doubt.sentences([text("# 99 · A title"), cell], cell, []) == []
