"""Predictions: an answer beside a guess, the file that keeps guesses, and what their drawing says."""

import json
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from cs336kit import files as _replacing
from cs336kit import journal as _journal
from cs336kit import teach
from cs336kit.teach import predictions

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """A place for guesses, in a folder that is not there yet."""
    path = tmp_path / "my" / "guesses.json"
    monkeypatch.setenv("CS336KIT_GUESSES", str(path))
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    return path


def test_without_a_guess_there_is_the_answer_and_where_it_comes_from(file):
    shown = repr(teach.reveal(..., of="the two products", counted=4.0, unit="× N·D·F"))
    assert "counted (× N·D·F)" in shown and "4" in shown and "guess" not in shown
    assert not file.exists()


def test_no_guess_is_too_small_to_be_compared():
    assert predictions._off(1e-310, 1e20) == "inf × too low"


@pytest.mark.parametrize(
    ("guess", "off"),
    [(2, "2 × too low"), (8, "2 × too high"), (4, "nothing"), (4.01, "less than 1 %"), (-4, "-8"), (0, "-4")],
)
def test_a_number_is_off_by_a_factor_where_there_is_one(guess, off):
    assert teach.reveal(guess, of="products", counted=4).rows == (("products", "4", str(guess), off),)


@given(guess=st.floats(1e-6, 1e6), answer=st.floats(1e-6, 1e6))
def test_the_factor_is_symmetric(guess, answer):
    one, two = predictions._off(guess, answer), predictions._off(answer, guess)
    swap = {"high": "low", "low": "high"}
    assert two == " ".join([*one.split()[:-1], swap.get(one.split()[-1], one.split()[-1])])


def test_parts_are_guessed_together_and_a_missing_one_is_named(file):
    parts = {"only the last layer": 5, "only the first": 8}
    result = teach.reveal((6, 8), of="products", counted=parts)
    assert [row[-1] for row in result.rows] == ["1.2 × too high", "nothing"] and result.headers[0] == "products"
    assert set(_journal.read().guesses) == {"products, only the last layer", "products, only the first"}
    assert "One part of the guess is still missing" in repr(teach.reveal((6, ...), of="other", counted=parts))
    assert "has 1 part, but the answer has 2: " in repr(teach.reveal(6, of="other", counted=parts))
    assert "has 3 parts, but the answer has 2: " in repr(teach.reveal((6, 8, 1), of="other", counted=parts))


def test_words_are_compared_as_words_and_scalars_as_numbers():
    assert teach.reveal(" View", of="view or copy", counted="view").rows[0][-1] == "nothing"
    assert teach.reveal("copy", of="view or copy", counted="view").rows[0][-1] == "a different answer"
    assert teach.reveal(torch.tensor(2.0), of="a sum", measured=torch.tensor(4.0)).rows[0][-1] == "2 × too low"


@pytest.mark.parametrize("guess", ["many", True, [], [1, 2], float("nan"), object()])
def test_what_is_no_guess_is_not_kept_and_opens_nothing(guess, file):
    shown = teach.reveal(guess, of="days", computed=1.5)
    note, _, answer = shown._repr_html_().partition("<details><summary")
    assert ("is not compared" in note or "part" in note) and "1.5" in answer and "1.5" not in note
    assert "1.5" in repr(shown) and not file.exists()


@pytest.mark.parametrize("guess", [object(), [["view"]], {"view": 1}])
def test_what_is_no_word_is_not_compared_with_one(guess, file):
    shown = teach.reveal(guess, of="view or copy", counted="view")
    assert "is not compared: the answer is a word" in repr(shown) and not file.exists()


def test_yes_and_no_are_guesses_where_the_answer_is_one_of_them(file):
    assert teach.reveal(True, of="a view", counted=True).rows[0][-1] == "nothing"
    assert teach.reveal(False, of="a view", counted=True).rows[0][-1] == "a different answer"
    assert set(_journal.read().guesses) == {"a view"}


def test_the_answer_is_closed_until_there_is_a_guess_or_the_reader_asks_to_be_shown(file):
    def html(guess, answer=4):
        return teach.reveal(guess, of="products", counted=answer)._repr_html_()

    assert html(...).startswith("<details><summary") and "off by" not in html(...)
    assert html(5).startswith("<details open><summary") and "1.25 × too high" in html(5)
    assert html(None).startswith("<details open><summary") and "guess" not in html(None)
    two = {"first": 2, "last": 4}
    assert html((None, None), two).startswith("<details open>") and html((..., ...), two).startswith("<details><")
    assert html((2, None), two).startswith("<p>") and "<details open" not in html((2, ...), two)
    assert list(_journal.read().guesses) == ["products"]  # that of 5


def test_among_choices_a_guess_is_right_or_wrong(file):
    def off(guess):
        return teach.reveal(guess, of="1.003 in bf16", measured=1.0, choices=(0.99609375, 1.0, 1.0078125)).rows[0][-1]

    assert (off(1.0), off(1), off(1.003), off(1.008), off(0.996)) == (
        "nothing", "nothing", "a different answer", "a different answer", "a different answer",
    )  # fmt: skip
    rounded = teach.reveal(1.008, of="1.006 in bf16", measured=1.0078125, choices=(1.0, 1.0078125))
    assert rounded.rows[0][-1] == "nothing"
    word = teach.reveal("bigger", of="it", computed="larger", choices=("larger", "smaller"))
    assert "choose from 'larger', 'smaller'" in repr(word) and word._repr_html_().startswith("<p>")
    with pytest.raises(ValueError, match="is none of the choices"):
        teach.reveal(1, of="it", computed=3, choices=(1, 2))
    # It has no factor, so it is not drawn among the factors.
    assert "No guesses yet" in teach.calibration()


def test_what_tells_an_answer_is_folded_and_stays_itself_as_text():
    figure = teach.figures.show(
        teach.figures.style.axes()[0], alt="A figure whose text is at least forty letters long."
    )
    table = teach.table(("a", "b"), [(1, 2)])
    for what in (figure, table, "Half of it.\n<b>"):
        shown = teach.folded(what, "The picture")
        assert repr(shown) == (what if isinstance(what, str) else repr(what))
        html = shown._repr_html_()
        assert html.startswith("<details><summary") and html.endswith("</details>") and "The picture</summary>" in html
        assert "<b>" not in html and not hasattr(shown, "_repr_mimebundle_")
    with pytest.raises(ValueError, match="folded takes a figure, a table or a text, not int"):
        teach.folded(3)


@pytest.mark.parametrize("answer", [3, {"first": 2, "last": 4}])
def test_every_column_has_a_name(answer, file):
    assert all(teach.reveal(..., of="products", counted=answer).headers)
    assert teach.reveal(..., of="products", counted=answer).rows[0][0] == ("products" if answer == 3 else "first")


def test_one_answer_is_asked_for():
    for answers in ({}, {"counted": 1, "measured": 1}, {"guessed": 1}):
        with pytest.raises(ValueError, match="one answer, as measured= or counted= or computed= or datasheet="):
            teach.reveal(1, of="x", **answers)


@pytest.mark.parametrize(
    ("guess", "answer", "off"),
    [
        (1.004, 1.0, "less than 1 %"), (1.0, 1.004, "less than 1 %"), (1.006, 1.0, "1.01 × too high"),
        (1.0, 1.02, "1.02 × too low"), (-4, -2, "2 × too high"), (-2, -4, "2 × too low"), (-1, 2, "-3"), (0, 2, "-2"),
    ],
)  # fmt: skip
def test_how_far_a_guess_is_off(guess, answer, off):
    assert predictions._off(guess, answer) == off


def test_a_guess_that_may_be_several_choices_is_none_of_them():
    choices = (1.001, 1.004, 2.0)
    assert predictions._off(1.0, 1.001, choices) == predictions._off(1.0, 1.004, choices) == "a different answer"
    assert predictions._off(1.001, 1.001, choices) == predictions._off(2.04, 2.04, (1.0, 2.04)) == "nothing"


def test_the_first_guess_counts(file):
    teach.reveal(2, of="products", counted=4)
    again = teach.reveal(4, of="products", counted=4)
    assert "Your first guess, 2, is the one that counts" in repr(again) and "first guess" in again._repr_html_()
    assert _journal.read().guesses["products"]["guess"] == 2


def test_the_lesson_is_part_of_the_key_where_jupyterlab_tells_it(file, monkeypatch):
    monkeypatch.setenv("JPY_SESSION_NAME", "/some/where/09_gradient_flops.ipynb")
    teach.reveal(2, of="products", counted=4)
    assert list(_journal.read().guesses) == ["09 products"]


def test_calibration_draws_factors():
    assert "No guesses yet" in teach.calibration() and len(teach.calibration()) <= 86  # a line of JupyterLab's
    teach.reveal(2, of="products", counted=4)
    teach.reveal(9, of="days", computed=3)
    teach.reveal("copy", of="a word", counted="view")
    drawn = teach.calibration()
    assert "2 predictions" in drawn.alt and "products 0.5, days 3" in drawn.alt and "factor of 2.4" in drawn.alt


def test_a_first_guess_is_found_again_until_it_is_forgotten(monkeypatch):
    assert teach.first_guess("00", "days") == "none kept"
    teach.reveal(1000, of="days", computed=3)
    monkeypatch.setenv("JPY_SESSION_NAME", "/some/where/00_napkin_math.ipynb")
    teach.reveal(200.5, of="memory", computed=3)
    teach.reveal((1, 8), of="both", computed={"left": 1, "right": 2})
    monkeypatch.setenv("JPY_SESSION_NAME", "/some/where/21_claims.ipynb")
    teach.reveal(7, of="memory", computed=3)
    found = [teach.first_guess("00", of) for of in ("days", "memory", "both, right", "both")]
    assert found == ["1,000", "200.5", "8", "none kept"]
    # In the lesson itself the same question may have been guessed once more.
    monkeypatch.setenv("JPY_SESSION_NAME", "/some/where/00_napkin_math.ipynb")
    teach.reveal(300, of="days", computed=3)
    assert (teach.first_guess("00", "days"), teach.first_guess("01", "days")) == ("300", "1,000")
    assert teach.first_guess("21", "memory") == "7" and teach.first_guess("01", "memory") == "none kept"
    _journal.forget()
    assert teach.first_guess("00", "memory") == "none kept"


def test_a_guess_counts_for_the_question_it_was_made_at(monkeypatch):
    """A reader writes a guess, or none, and runs the answer alone: `guess` still is that at the question before."""
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(predictions, "_asked", {})
    shell.user_ns["teach"] = teach

    def run(source):
        return repr(shell.run_cell(source, store_history=True).result)

    def answer(of, value):
        return run(f"teach.reveal(guess, of='{of}', counted={value})")

    run("guess = 10   # days")
    assert "2 × too low" in answer("days", 20)
    late = answer("products", 4)
    assert (
        "off by" not in late
        and "10 was your guess at “days”: first run the cell with your guess at this question." in late
    )
    assert "2 × too low" in answer("days", 20)  # as often as one likes
    run("guess = 2   # products")
    assert "2 × too low" in answer("products", 4) and "first guess" not in answer("products", 4)
    assert {key: entry["guess"] for key, entry in _journal.read().guesses.items()} == {"days": 10, "products": 2}


def test_one_guess_is_spoken_of_as_one():
    teach.reveal(2, of="products", counted=4)
    assert "for 1 prediction, half" in teach.calibration().alt


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"guess": 1}}', "null", '{"guesses": {}, "solved": [1]}']
)
def test_a_damaged_file_is_named_and_never_overwritten(text, file):
    file.parent.mkdir()
    file.write_text(text)
    shown = repr(teach.reveal(2, of="products", counted=4))
    assert "2 × too low" in shown and "Your guess is not kept" in shown and str(file) in shown
    assert file.read_text() == text
    with pytest.raises(ValueError, match="is no file of guesses"):
        teach.calibration()


def test_a_folder_that_cannot_be_written_costs_the_memory_alone(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file where the folder should be")
    monkeypatch.setenv("CS336KIT_GUESSES", str(tmp_path / "taken" / "guesses.json"))
    shown = repr(teach.reveal(2, of="products", counted=4))
    assert "2 × too low" in shown and "cannot be written" in shown


def test_a_failed_write_loses_nothing(file, monkeypatch):
    teach.reveal(2, of="products", counted=4)
    before = file.read_text()

    def full(beside, mode):
        beside.write_bytes(b"half of i")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_replacing, "open", full, raising=False)
    assert "No space left on device" in repr(teach.reveal(3, of="days", counted=4))
    assert file.read_text() == before and list(file.parent.iterdir()) == [file]


def test_many_guesses_at_once_leave_a_file_that_can_be_read(file):
    def guess(start):
        for i in range(20):
            teach.reveal(1, of=f"question {start + i}", counted=2)

    threads = [threading.Thread(target=guess, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert json.loads(file.read_text())


def test_a_guess_that_no_float_can_hold_is_not_compared():
    shown = teach.reveal(10**400, of="days", counted=20)
    assert "Your guess 1e+400 is not compared: it is larger than any float." in repr(shown)
