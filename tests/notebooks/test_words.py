"""The page of symbols and words: what it says that a lesson explains, the lesson says."""

from pathlib import Path

import pytest

from cs336course import cells as kind
from cs336course import pages, words
from cs336course.lessons import every

LESSONS = {path.name[:2]: (path, cells) for path, cells in every(Path(__file__).parents[2] / "notebooks")}
ENTRIES = [(word, *rest) for table in words.load().values() for word, rest in table.items()]


@pytest.mark.parametrize(("word", "lesson", "means"), ENTRIES, ids=[word for word, *_ in ENTRIES])
def test_a_word_is_in_the_lesson_that_explains_it(word, lesson, means):
    _, cells = LESSONS[lesson]
    # Links and the generated parts of the page do not explain anything.
    texts = [kind.source(cell) for cell in cells if cell["cell_type"] == "markdown" and "page" not in kind.tags(cell)]
    assert words.said(word, "\n".join(texts)), f"lesson {lesson} does not say {word!r}"
    assert means and not means.endswith(".")


def test_a_word_is_found_whole_in_its_plural_and_at_the_beginning_of_a_sentence():
    assert words.said("batch", "two batches") and words.said("batch", "Batch size") and words.said("D", "wide as $D$")
    assert not words.said("batch", "a microbatch") and not words.said("rank", "ranking") and not words.said("D", "3D")


def test_the_map_and_the_site_have_the_page():
    names = {number: path.name for number, (path, _) in LESSONS.items()}
    shown = words.page(names)
    assert "| *B* | sequences in a batch" in shown and shown.count("\n| ") >= len(ENTRIES)
    first = LESSONS["00"][1]
    assert any(shown in kind.source(cell) for cell in first if "page" in kind.tags(cell))
    assert f"({names['09']})" not in words.page({}) and pages.heading(Path("00_x.ipynb"))
