"""What a maintainer runs: a new exercise is written whole, and trying one says what its cases do not tell apart."""

import os
import re
from pathlib import Path

import nbformat
import pytest

from cs336course import exercise as maintain
from cs336kit import command as cli
from cs336kit.teach import exercises
from cs336kit.teach.exercises import core

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]


def area(width, height):
    return width * height


def blind(cases):
    mistakes = {"right_if(height=width)": "squared.", "width + height": "added.", "width**2": "squared too."}
    return exercises.Exercise("99.1", area, mistakes, ("a", "b"), "some.", cases)


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


def test_cases_that_tell_nothing_new_are_counted_and_named():
    assert "tell" not in maintain.show(blind([(2, 3)]))
    assert "2 more cases tell nothing new: area(3, 4), area(5, 7)\n" in maintain.show(blind([(2, 3), (3, 4), (5, 7)]))
    assert "1 more case tells nothing new: a page\n" in maintain.show(blind({"a card": (2, 3), "a page": (3, 4)}))


def test_a_changed_answer_that_passes_is_named():
    def double(x):
        return x * 2 if x > 0 else 0

    names = {name for name, _ in maintain.changed(double)}
    assert names == {"x > 0 → x >= 0", "x * 2 → x / 2", "0 → 1", "0 → -1", "2 → 3", "2 → 1"}
    found = exercises.Exercise("99.2", double, {}, ("a", "b"), "two.", [(1,), (5,)])
    passing = maintain.unnoticed(found, maintain.changed(double))
    assert "x > 0 → x >= 0" in passing and "x * 2 → x / 2" not in passing


def test_the_table_shows_the_cases_that_tell_something(monkeypatch, capsys):
    cases = {"a square": (2, 2), "a page": (3, 4), "another": (3, 5), "a square again": (2, 2)}
    mistakes = {"right_if(height=width)": "squared.", "width + height": "added."}
    monkeypatch.setattr(maintain, "load", lambda id: exercises.Exercise(id, area, mistakes, ("a", "b"), "some.", cases))
    assert maintain.main(["try", "99.1"]) == 0
    text = capsys.readouterr().out
    assert (
        "a   right_if(height=width)" in text
        and "case 2: a page" in text
        and "more cases tell nothing new: another, a square again" in text
    )
    assert "\nEvery mistake is told apart.\n" in text


def test_the_table_has_a_row_for_each_mistake_and_a_column_for_each_case_that_tells_more():
    cases = {"a square": (2, 2), "a page": (3, 4), "another page": (4, 6)}
    zeros = "width + height" + " + 0" * 10
    mistakes = dict.fromkeys(["width + height", "width**2", f"{zeros} + 100", f"{zeros} + 1000"], "so.")
    found = exercises.Exercise("99.1", area, mistakes, ("a", "b"), "some.", cases)
    assert maintain.matrix(found) == (list(cases), [[0, 1, 1], [0, 2, 2], [1, 3, 3], [2, 4, 4]])
    assert maintain.show(found).splitlines()[:9] == [
        "    mistake" + " " * 53 + "   1   2",
        "a   width + height" + " " * 46 + "   ·   1",
        "b   width**2" + " " * 52 + "   ·   2",
        f"c   {zeros} + 100   1   3",
        f"d   {zeros} [...]   2   4",
        "",
        "case 1: a square",
        "case 2: a page",
        "1 more case tells nothing new: another page",
    ]


def test_the_command_asks_for_a_command(capsys):
    with pytest.raises(SystemExit, match="2"):
        maintain.main([])
    assert "arguments are required: command" in capsys.readouterr().err


def test_mistakes_that_look_alike_end_the_command_with_1(monkeypatch, capsys):
    clear = exercises.Exercise("99.2", area, {"width + height": "added."}, ("a", "b"), "some.", [(2, 3)])
    monkeypatch.setattr(maintain, "load", lambda id: blind([(2, 3)]) if id == "99.1" else clear)
    assert maintain.main(["try", "99.2"]) == 0 and maintain.main(["try", "99.2", "99.1"]) == 1
    assert "a and c return the same in every case" in capsys.readouterr().out


def test_answers_that_end_their_process_are_told(monkeypatch):
    found = exercises.Exercise("99.2", area, {}, ("a", "b"), "some.", [(1, 2)])
    with pytest.raises(RuntimeError, match=r"^99\.2: .*ended the process that it ran in, with exit code 3"):
        maintain.unnoticed(found, [("leaves", lambda width, height: os._exit(3))])


def test_a_reference_that_does_not_pass_where_answers_are_tried_is_told_and_not_that_no_answer_passes():
    here = os.getpid()
    found = exercises.Exercise(
        "99.2", lambda w, h: w * h if os.getpid() == here else 0, {}, ("a", "b"), "some.", [(1, 2)]
    )
    told = r"^99\.2: the reference does not pass where answers are tried: .*you returned 0, but 2 is right"
    with pytest.raises(RuntimeError, match=told):
        maintain.unnoticed(found, [("none", lambda w, h: 0)])


def test_the_command_says_what_it_has_written_and_what_comes_next(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(maintain, "new", lambda *asked: given.append(asked) or ["lesson_07.py", "07_a.ipynb"])
    assert maintain.main(["new", "07.3", "area(w, h)", "--title", "Area"]) == 0 and maintain.main(["new", "07.3"]) == 0
    assert given == [("07.3", "area(w, h)", "Area"), ("07.3", "answer(x)", "Title")]
    said = "lesson_07.py\n07_a.ipynb\nFill in both, then run: cs336kit exercise try 07.3; make refresh readme NB=07\n"
    assert capsys.readouterr().out == 2 * said


def test_a_stub_tells_nothing_apart(monkeypatch, capsys):
    wrong = {"width + height": "added."}
    for cases, mistakes in (([], {}), ([], wrong), ([(2, 3)], {})):
        stub = exercises.Exercise("99.1", area, mistakes, ("a", "b"), "some.", cases)
        monkeypatch.setattr(maintain, "load", lambda id, stub=stub: stub)
        assert maintain.main(["try", "99.1"]) == 1
        assert "It has no cases or no mistakes yet" in capsys.readouterr().out


def decision(reference=lambda: ("A", 3.0), mistakes=None, **cases):
    wrong = {"('B', ...)": "it is not B."} if mistakes is None else mistakes
    return exercises.Exercise("99.3", reference, wrong, ("a", "b"), "all.", **cases)


def unfinished():
    raise NotImplementedError


def broken_area(cases=((2, 3),), **wrong):
    return exercises.Exercise("99.1", area, wrong or {"width": "one side."}, ("a", "b"), "some.", cases)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (decision(unfinished), r"the right answer raises NotImplementedError in case 1$"),
        (
            broken_area({"a page": (1, 2, 3)}),
            r"the right answer raises TypeError: .* positional arguments.* in case a page$",
        ),
        (broken_area({"a page": 3}), r"case a page: write its arguments as a tuple$"),
        (broken_area([[2, 3]]), r"case 1: write its arguments as a tuple$"),
        (
            broken_area(**{"width +": "added."}),
            r"a mistake is neither a function nor an expression of Python: width \+$",
        ),
        (
            broken_area(**{"widht": "one side."}),
            r"the mistake widht raises in every case, so .*: NameError: name 'widht' is",
        ),
        (decision(cases=[]), r"A decision has no cases: leave cases out\.$"),
        (decision(mistakes={}), r"It has no cases or no mistakes yet"),
    ],
)
def test_what_keeps_an_exercise_from_being_tried_is_a_sentence(found, said, monkeypatch, capsys):
    monkeypatch.setattr(maintain, "load", lambda id: found)
    assert maintain.main(["try", found.id]) == 1
    first, sentence = capsys.readouterr().out.strip().split("\n")
    assert first == found.id and re.match(said, sentence)


def test_a_mistake_that_raises_in_some_cases_is_tried():
    assert maintain.broken(broken_area([(2, 0), (2, 3)], **{"width // height": "divided."})) == []


def test_how_a_decision_was_computed_is_not_changed():
    def half():
        return 7 // 2 / 2

    assert "a changed answer passes" not in maintain.show(exercises.Exercise(
        "99.3", half, {"3.0": "half."}, ("a", "b"), "a half.", tolerance=0.6
    ))  # fmt: skip


def test_every_exercise_of_the_course_can_be_tried():
    assert [id for id in exercises.known_ids() if maintain.broken(exercises.load(id))] == []


def test_parts_that_are_left_out_are_named():
    with pytest.raises(TypeError, match="mistakes.*hints.*checked"):
        core.exercise("99.1")(area)


def test_an_unknown_exercise_is_refused_with_the_known_ones(capsys):
    lesson = exercises.known_ids()[0][:2]
    assert maintain.main(["try", f"{lesson}.9"]) == 2 and f"it has {lesson}.1" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["nonsense"], ["new"]])
def test_a_wrong_word_is_answered_with_a_sentence(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        maintain.main(words)
    assert "usage" not in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_a_new_exercise_is_written_in_both_places(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "_known", {})
    path = tmp_path / "09_gradient_flops.ipynb"
    ending = "## What you can say now"
    before = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text) for text in ("# 09 · A toy", ending)])
    measured = {"tags": ["measured:time"], "run": "what a run has signed"}
    before.cells.insert(1, nbformat.v4.new_code_cell("took", metadata=measured))
    nbformat.write(before, path)
    with pytest.raises(ValueError, match=r"the next exercise of lesson 09 is 09\.1, not 09\.3"):
        maintain.new("09.3", "area(width, height)", "Area", tmp_path, tmp_path)
    unchanged = path.read_bytes()
    for id, signature in (
        ("9.3", "area(w)"), ("09.1", "area"), ("09.1", "area(f())"), ("09.1", "area(2)"), ("09.1", "class(w)")
    ):  # fmt: skip
        with pytest.raises(ValueError, match="give a lesson and a number"):
            maintain.new(id, signature, "Area", tmp_path, tmp_path)
    with pytest.raises(FileNotFoundError):
        maintain.new("09.1", "area(w)", "Area", tmp_path, tmp_path / "absent")
    assert path.read_bytes() == unchanged
    assert maintain.new("09.1", "area(width, height)", "Area", tmp_path, tmp_path) == [
        tmp_path / "lesson_09" / "exercises.py",
        path,
    ]
    assert maintain.new("09.2", "answer(x)", "Other", tmp_path, tmp_path)
    scope = {}
    text = (tmp_path / "lesson_09" / "exercises.py").read_text().replace('"09.', '"97.')
    assert text.startswith('"""Exercises of lesson 09."""\n')
    exec(text, scope)
    assert exercises.load("97.1").reference is scope["area"] and exercises.load("97.2").hints == ("", "")
    cells = nbformat.read(path, as_version=4).cells
    assert len(cells) == len(before.cells) + 6
    # What was measured is still signed: only new cells are new to refresh.
    assert cells[1].metadata == measured
    [start] = [i for i, cell in enumerate(cells) if cell.source.startswith("### Exercise 09.1 ★ 10 min · Area")]
    stub, solution = cells[start + 1 : start + 3]
    assert stub.source == 'def area(width, height):\n    return ...\n\n\nteach.exercises.check("09.1", area)'
    assert stub.metadata.tags == ["exercise"] and solution.metadata.tags == ["solution"]
    assert "\ndef solution(width, height):\n    ### BEGIN SOLUTION\n" in solution.source
    assert solution.source.endswith('teach.exercises.check_solution("09.1", solution)')
    assert cells[start + 6].source == ending


def test_a_new_decision_asks_for_a_value_and_has_no_cases(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "_known", {})
    path = tmp_path / "09_gradient_flops.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 09 · A toy")]), path)
    maintain.new("09.1", "what_to_buy()", "decide: what to buy", tmp_path, tmp_path)
    exec((tmp_path / "lesson_09" / "exercises.py").read_text().replace('"09.', '"97.'), {})
    found = exercises.load("97.1")
    assert found.decision and found.calls("what_to_buy") == [("what_to_buy()", ())]
    task, stub, solution = nbformat.read(path, as_version=4).cells[1:]
    assert task.source == "### Exercise 09.1 ★ 10 min · decide: what to buy\n\n…"
    assert stub.source == 'answer = ...   # what it is, and its unit\nteach.exercises.check("09.1", answer)'
    assert solution.source == (
        "# Solution of 09.1: unfold it when you have tried\n### BEGIN SOLUTION\nsolution = ...\n### END SOLUTION\n"
        'teach.exercises.check_solution("09.1", solution)'
    )


def test_a_new_exercise_needs_a_clone_and_the_kit_of_that_clone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["exercise", "new", "07.9"]) == 2 and "no lessons here" in capsys.readouterr().err
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "07_time.ipynb").touch()
    before = sorted((ROOT / "cs336kit" / "lessons").iterdir())
    assert cli.main(["exercise", "new", "07.9"]) == 2
    assert f"this command runs the one in {ROOT}: install that of the clone" in capsys.readouterr().err
    assert sorted((ROOT / "cs336kit" / "lessons").iterdir()) == before
