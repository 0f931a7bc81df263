"""The reader's journal without torch: where it is, what the listing shows of it, and how it is forgotten."""

import io
import json
import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from cs336course.lab import settings
from cs336kit import files as _replacing
from cs336kit import journal as _journal
from cs336kit.command import main
from cs336kit.journal import Journal

ROOT = Path(__file__).parents[2]
GUESSES = {"00 days": {"guess": 10, "answer": 20, "unit": "days"}, "00 a word": {"guess": "view", "answer": "copy"}}


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "my" / "guesses.json"
    monkeypatch.setenv(_journal.VARIABLE, str(path))
    return path


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A clone with two lessons, of two exercises each."""
    for number in ("00", "01"):
        texts = [f"# {number}\n\n**Why?**", *(f"### Exercise {number}.{i} ★ 5 min · build it: x" for i in (1, 2))]
        cells = [{"cell_type": "markdown", "source": [text], "metadata": {}} for text in texts]
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        (tmp_path / "notebooks" / f"{number}_topic.ipynb").write_text(json.dumps({"cells": cells}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(capsys):
    assert main(["lessons"]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_is_written_is_read_again_and_nothing_is_left_beside_it(file):
    _journal.write(Journal(GUESSES, ("00.1", "01.2")))
    assert _journal.read() == Journal(GUESSES, ("00.1", "01.2")) and list(file.parent.iterdir()) == [file]
    _journal.write(Journal())
    assert not file.exists() and _journal.read() == Journal()


def test_a_file_of_guesses_alone_is_read_and_goes_on(file):
    file.parent.mkdir()
    file.write_text(json.dumps(GUESSES))
    assert _journal.read() == Journal(GUESSES)
    assert _journal.note("It", solved="00.1")[1] == ""
    assert _journal.read() == Journal(GUESSES, ("00.1",))


def test_the_first_guess_stays_and_an_exercise_is_noted_once(file):
    _journal.note("It", {"00 days": {"guess": 1, "answer": 2}})
    kept, problem = _journal.note("It", {"00 days": {"guess": 2, "answer": 2}}, solved="00.1")
    assert kept.guesses["00 days"]["guess"] == 1 and problem == ""
    assert _journal.note("It", solved="00.1")[0].solved == ("00.1",)


def test_two_that_note_at_once_are_both_kept(file, monkeypatch):
    write, others = _journal.write, []

    def after_another(journal):
        if not others:
            others.append(threading.Thread(target=_journal.note, args=("It", GUESSES, "00.2")))
            others[0].start()
            others[0].join(0.2)  # it would be done by then, and waits
        write(journal)

    monkeypatch.setattr(_journal, "write", after_another)
    _journal.note("It", solved="00.1")
    others[0].join()
    assert _journal.read() == Journal(GUESSES, ("00.1", "00.2"))


def test_a_link_to_a_journal_elsewhere_stays_a_link(file, tmp_path):
    kept = tmp_path / "synced.json"
    kept.write_text(json.dumps({"guesses": {}, "solved": ["01.1"]}))
    file.parent.mkdir()
    file.symlink_to(kept)
    _journal.note("", solved="02.1")
    assert file.is_symlink() and json.loads(kept.read_text())["solved"] == ["01.1", "02.1"]


@pytest.mark.parametrize(
    "kept", [{"guesses": {"a": ["guess", "answer"]}, "solved": []}, {"guesses": {}, "solved": "01.1"}]
)
def test_entries_that_are_none_make_a_damaged_file(file, kept):
    file.parent.mkdir()
    file.write_text(json.dumps(kept))
    with pytest.raises(ValueError, match="no file of guesses"):
        _journal.read()


def test_a_guess_that_is_off_by_more_than_a_float_holds_is_left_out():
    near, far = {"guess": 2, "answer": 1}, {"guess": 5e-324, "answer": 1e300}
    guesses = {"near": near, "below": far, "above": {"guess": 1e300, "answer": 5e-324}}
    assert _journal.ratios(guesses) == {"near": 2} and _journal.middle(guesses) == pytest.approx(2)


def test_where_nothing_is_to_be_kept_nothing_is_and_nothing_is_said(monkeypatch):
    monkeypatch.setenv(_journal.VARIABLE, _journal.OFF)
    assert _journal.note("It", GUESSES, solved="00.1") == (Journal(GUESSES, ("00.1",)), "")
    assert _journal.read() == Journal()


def test_without_a_name_the_copies_have_it_and_else_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(_journal.VARIABLE)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.chdir(tmp_path)
    assert _journal.path() == tmp_path / "home" / ".cs336kit" / "guesses.json"
    mine = tmp_path / "my" / "guesses.json"
    mine.parent.mkdir()
    mine.write_text("{}")
    assert _journal.path() == mine
    monkeypatch.chdir(mine.parent)
    assert _journal.path() == mine, "a kernel runs beside the notebook"


def test_where_there_is_no_home_folder_nothing_is_kept_and_that_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(_journal.VARIABLE)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    monkeypatch.chdir(tmp_path)
    why = "there is no home folder for it, and CS336KIT_GUESSES names no file"
    assert _journal.note("It", solved="00.1") == (Journal({}, ("00.1",)), f"It is not kept: {why}.")
    assert main(["lessons", "reset", "--yes"]) == 2 and capsys.readouterr().err == f"{why}\n"


def test_make_lab_a_hub_and_the_command_mean_the_same_file():
    assert settings(ROOT)[_journal.VARIABLE] == str(ROOT / "my" / "guesses.json")
    assert "lessons lab" in (ROOT / "Makefile").read_text()
    assert f'"{_journal.VARIABLE}": "/home/jovyan/my/guesses.json"' in (ROOT / "TEACHING.md").read_text()


def test_the_listing_shows_what_was_done_and_what_is_next(course, file, capsys):
    assert listed(capsys)[-1].startswith("Next: 00 Topic.") and not any("of 2" in line for line in listed(capsys))
    _journal.write(Journal(GUESSES, ("00.1", "99.9")))
    lines = listed(capsys)
    assert lines[2] == "     1 of 2 exercises, 2 guesses, within a factor of 2 in the middle"
    assert lines[-1].startswith("Next: exercise 00.2 in 00 Topic.") and len(lines) == 6
    _journal.write(Journal({}, ("00.1", "01.1", "01.2")))
    assert listed(capsys)[-1].startswith("Next: exercise 00.2"), "what was left out comes after the last lesson"
    _journal.write(Journal({}, ("00.1", "00.2", "01.1", "01.2")))
    assert listed(capsys)[-1] == "Every exercise is solved."
    assert main(["lessons", "list", "1"]) == 0 and "Every" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": {"guess": 1}}', '{"guesses": {}, "solved": [1]}'])
def test_a_damaged_journal_costs_the_marks_and_nothing_else(course, file, capsys, text):
    file.parent.mkdir()
    file.write_text(text)
    lines = listed(capsys)
    assert lines[0] == "00 Topic" and "is no file of guesses" in lines[-1] and str(file) in lines[-1]
    assert main(["lessons", "reset", "--yes"]) == 2 and file.read_text() == text


def test_a_journal_that_cannot_be_read_is_named(course, file, capsys):
    file.mkdir(parents=True)
    assert listed(capsys)[-1] == f"What you have done is not shown: {file} cannot be read (Is a directory)."
    assert _journal.note("It", solved="00.1")[1] == f"It is not kept: {file} cannot be read (Is a directory)."


def test_reset_asks_forgets_and_refuses_where_nothing_is(course, file, capsys, monkeypatch):
    assert main(["lessons", "reset", "--yes"]) == 2
    assert "there is nothing to forget" in capsys.readouterr().err
    for answer, code in (("", 2), ("no\n", 2), ("yes\n", 0)):
        _journal.write(Journal(GUESSES, ("00.1",)))
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert main(["lessons", "reset"]) == code and file.exists() == bool(code)
    assert "Forgotten: 2 guesses and 1 solved exercise." in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["lessons", "reset", "1"])


@pytest.mark.parametrize(("busy", "kept"), [(3, True), (100, False)])
def test_windows_waits_until_a_reader_has_closed_the_file(course, file, monkeypatch, busy, kept):
    tries, replace = [], os.replace

    def in_use(new, old):
        tries.append(old)
        if len(tries) <= busy:
            error = PermissionError(13, "Permission denied")
            error.winerror = 32
            raise error
        replace(new, old)

    monkeypatch.setattr(os, "replace", in_use)
    monkeypatch.setattr(_replacing.time, "sleep", lambda seconds: None)
    said = _journal.note("It", solved="00.1")[1]
    assert (file.exists(), said == "") == (kept, kept) and [*file.parent.iterdir()] == [file] * kept
    assert kept or (said.endswith("cannot be written (Permission denied).") and len(tries) == 20)


def test_what_is_denied_otherwise_is_not_tried_again(course, file, monkeypatch):
    tries = []

    def denied(new, old):
        tries.append(old)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", denied)
    assert "cannot be written" in _journal.note("It", solved="00.1")[1] and len(tries) == 1


def test_where_nothing_is_kept_nothing_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(_journal, "path", lambda: tmp_path)  # a folder: it could not be read
    monkeypatch.setenv(_journal.VARIABLE, _journal.OFF)
    assert _journal.read() == Journal()
