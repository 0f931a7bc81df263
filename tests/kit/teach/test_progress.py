"""Progress is seen by whoever looks on, and leaves nothing behind."""

import io
import sys

import IPython.display
import pytest

from cs336kit import teach
from cs336kit.teach import progress

pytestmark = pytest.mark.torch


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Display:
    """What a notebook shows in one place, from first to last."""

    def __init__(self):
        self.seen = []

    def show(self, data, *, raw, display_id):
        assert raw and display_id
        self.seen.append(data)
        return self

    def update(self, data, *, raw):
        assert raw
        self.seen.append(data)


@pytest.fixture
def notebook(monkeypatch):
    place = Display()
    monkeypatch.setenv("JPY_SESSION_NAME", "my/10_lesson.ipynb")
    monkeypatch.setattr(IPython.display, "display", place.show)
    monkeypatch.setattr(sys.modules["cs336kit.teach.progress"], "_PAUSE", 0)
    return place


@pytest.fixture
def nobody(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return sys


def test_nothing_is_shown_where_nobody_looks_on(nobody, capsys):
    assert list(progress("abc", "letters")) == ["a", "b", "c"]
    assert nobody.stderr.getvalue() == "" and capsys.readouterr().out == ""


def test_a_terminal_gets_a_bar_that_goes_away(nobody, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert list(progress(iter("abc"), "letters", total=3)) == ["a", "b", "c"]
    shown = sys.stderr.getvalue()
    assert "letters" in shown and "/3" in shown and "\n" not in shown
    assert shown.rstrip("\r").split("\r")[-1].strip() == ""


def test_a_notebook_gets_a_bar_that_leaves_an_empty_place(notebook):
    assert list(teach.progress([7, 8], "steps")) == [7, 8]
    assert [data["text/plain"] for data in notebook.seen] == ["steps: 0 of 2", "steps: 1 of 2", "steps: 2 of 2", ""]
    assert '<progress value="1" max="2">' in notebook.seen[1]["text/html"] and list(notebook.seen[-1]) == ["text/plain"]


def test_without_a_length_the_count_is_shown(notebook):
    assert sum(progress((n for n in range(3)), "<parts>")) == 3
    assert notebook.seen[1]["text/plain"] == "<parts>: 1" and "&lt;parts&gt;" in notebook.seen[1]["text/html"]


@pytest.mark.parametrize("end", ["stops", "fails"])
def test_the_bar_goes_away_when_the_items_are_not_all_taken(notebook, end):
    def work():
        for n in progress(range(1000), "steps", total=3):
            if n == 2:
                if end == "fails":
                    raise RuntimeError("no")
                return

    if end == "fails":
        with pytest.raises(RuntimeError, match="no"):
            work()
    else:
        work()
    assert notebook.seen[-1] == {"text/plain": ""} and notebook.seen[0]["text/plain"] == "steps: 0 of 3"
