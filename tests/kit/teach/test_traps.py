import pytest

from cs336kit.teach import expect

pytestmark = pytest.mark.torch


def test_the_message_is_printed(capsys):
    with expect(ValueError):
        raise ValueError("first line\nsecond line")
    assert capsys.readouterr().out == "ValueError: first line\n"


def test_more_lines_on_request(capsys):
    with expect(ValueError, lines=2):
        raise ValueError("first line\nsecond line")
    assert capsys.readouterr().out == "ValueError: first line\nsecond line\n"


def test_a_trap_that_does_not_snap_is_noticed():
    with pytest.raises(AssertionError, match="expected to raise ValueError"), expect(ValueError):
        pass


def test_another_exception_passes_through():
    with pytest.raises(KeyError), expect(ValueError):
        raise KeyError("x")


def test_long_messages_break_between_words(capsys):
    with expect(ValueError):
        raise ValueError("word " * 60)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 and all(len(line) <= 100 and line.split()[-1] == "word" for line in lines)
