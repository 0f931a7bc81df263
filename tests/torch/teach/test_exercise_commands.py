"""What a maintainer runs: a new exercise is written whole, and trying one says what its cases do not tell apart."""

import nbformat
import pytest

from cs336kit.course import exercise as maintain
from cs336kit.course.lessons import NOTEBOOKS
from cs336kit.teach import exercises
from cs336kit.teach.exercises import core


def area(width, height):
    return width * height


def blind(cases):
    mistakes = {"right_if(height=width)": "squared.", "width + height": "added.", "width**2": "squared too."}
    return exercises.Exercise("99.1", area, cases, mistakes, ("a", "b"), "some.")


def test_mistakes_that_no_case_tells_apart_are_named():
    assert maintain.confused(blind([(2, 2)])) == [
        "a passes: no case tells it from the right answer",
        "b passes: no case tells it from the right answer",
        "c passes: no case tells it from the right answer",
        "a and b return the same in every case",
        "a and c return the same in every case",
        "b and c return the same in every case",
    ]
    assert maintain.confused(blind([(2, 3)])) == ["a and c return the same in every case"]


def test_a_changed_answer_that_passes_is_named():
    def double(x):
        return x * 2 if x > 0 else 0

    names = {name for name, _ in maintain.changed(double)}
    assert names == {"x > 0 → x >= 0", "x * 2 → x / 2", "0 → 1", "0 → -1", "2 → 3", "2 → 1"}
    found = exercises.Exercise("99.2", double, [(1,), (5,)], {}, ("a", "b"), "two.")
    passing = maintain.unnoticed(found, maintain.changed(double))
    assert "x > 0 → x >= 0" in passing and "x * 2 → x / 2" not in passing


def test_the_table_shows_the_cases_that_tell_something(capsys):
    assert maintain.main(["try", "01.2"]) == 0
    text = capsys.readouterr().out
    assert "a   2**fraction_bits + 1" in text and "4 more cases tell nothing new" not in text
    assert "case 5: fp64 (fraction_bits=52)" in text and text.endswith("Every mistake is told apart.\n\n")
    assert maintain.main(["try", "01.9"]) == 2 and "it has 01.1" in capsys.readouterr().err


def test_a_new_exercise_is_written_in_both_places(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "_known", {})
    source = NOTEBOOKS / "09_gradient_flops.ipynb"
    before = nbformat.read(source, as_version=4)
    path = tmp_path / source.name
    path.write_bytes(source.read_bytes())
    with pytest.raises(ValueError, match=r"the next exercise of lesson 09 is 09\.1, not 09\.3"):
        maintain.new("09.3", "area(width, height)", "Area", tmp_path, tmp_path)
    for id, signature in (("9.3", "area(w)"), ("09.1", "area"), ("09.1", "area(f())")):
        with pytest.raises(ValueError, match="write a lesson and a number"):
            maintain.new(id, signature, "Area", tmp_path, tmp_path)
    assert maintain.new("09.1", "area(width, height)", "Area", tmp_path, tmp_path) == [tmp_path / "lesson_09.py", path]
    assert maintain.new("09.2", "answer(x)", "Other", tmp_path, tmp_path)
    scope = {}
    text = (tmp_path / "lesson_09.py").read_text().replace('"09.', '"97.')
    exec(text, scope)
    assert exercises.load("97.1").reference is scope["area"] and exercises.load("97.2").hints == ("", "")
    cells = nbformat.read(path, as_version=4).cells
    assert len(cells) == len(before.cells) + 6
    [start] = [i for i, cell in enumerate(cells) if cell.source.startswith("### Exercise 09.1 · Area")]
    stub, solution = cells[start + 1 : start + 3]
    assert stub.source == 'def area(width, height):\n    return ...\n\n\nteach.exercises.check("09.1", area)'
    assert stub.metadata.tags == ["exercise"] and solution.metadata.jupyter.source_hidden
    assert solution.source.count("### BEGIN SOLUTION\n") == 1 and solution.metadata.tags == ["solution"]
    assert cells[start + 6].source.startswith("## 11 · The ledger")
