"""What answers about training and serving are made of: rows of quantities, and notes that are facts."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.walked import walked
from cs336kit.predict.breakdown import Breakdown
from cs336plan.answers import BOUNDS, Note, Row, explained, plain_values, sentences
from cs336plan.serving import serve
from cs336plan.serving import words as of_serving
from cs336plan.training import find, memory, plan
from cs336plan.training import words as of_training


def test_a_row_is_a_function_an_attribute_or_a_field_of_the_question():
    question = SimpleNamespace(count=4, days=7)
    answer = SimpleNamespace(
        days=2.5, held=Breakdown({"weights": 3}, unit="bytes"), span=(1, 2), none=None, question=question
    )
    rows = (
        Row("twice", "of the days", lambda a: 2 * a.days), Row("days", ""), Row("count", ""), Row("held", ""),
        Row("span", "", parts=BOUNDS), Row("none", "", parts=BOUNDS),
    )  # fmt: skip
    assert plain_values(answer, rows) == {
        "twice": 5.0, "days": 2.5, "count": 4, "held": {"weights": 3}, "span": {"lower": 1, "upper": 2}, "none": None,
    }  # fmt: skip


def test_the_rows_that_explain_themselves_do_so_in_order():
    rows = (
        Row("a", "", explained=lambda answer: [("a", f"{answer} + 1"), ("b", "2")]), Row("b", ""),
        Row("c", "", explained=lambda answer: [("a", "3")]),
    )  # fmt: skip
    assert list(explained(7, rows)) == [("a", "7 + 1"), ("b", "2"), ("a", "3")]


def test_a_note_says_bytes_in_gib_and_shares_in_per_cent_and_a_sentence_is_left_alone():
    table = {"more": "{more_bytes} GiB and {part_share:.1f} % of {many:,}"}
    note = Note("more", {"more_bytes": 3 * 2**29, "part_share": 0.125, "many": 1000})
    assert sentences([note, "as {it} is"], table) == ("1.50 GiB and 12.5 % of 1,000", "as {it} is")
    with pytest.raises(KeyError):
        sentences([Note("less")], table)


@pytest.mark.parametrize(("table", "makers"), [(of_training, (plan, memory, find)), (of_serving, (serve,))])
def test_each_sentence_is_that_of_a_note_which_somebody_makes(table, makers):
    made = "".join(Path(maker.__file__).read_text(encoding="utf-8") for maker in makers)
    assert [kind for kind in table.NOTES if f'"{kind}"' not in made] == []


def test_what_a_command_enters_is_counted():
    walk = walked(["plan", "8e9", "--tokens", "1T"])
    files = walk.functions()
    assert "plan" in files["cs336plan/training/plan.py"] and 5 < walk.deepest < 20
    assert "cs336kit/predict/engine/walk.py" not in files, "a number of parameters has no operations"
