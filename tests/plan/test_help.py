"""The help of the command: every example in it is run."""

import shlex

import pytest
from few import one_in

from cs336kit.command import main

COMMANDS = ("plan", "serve", "optimal", "models")


def shown(command, capsys):
    """The text of a command's help, and the examples in it."""
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    return text, [line.strip() for line in text.splitlines() if line.strip().startswith("cs336kit ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_shows_examples(command, capsys):
    text, examples = shown(command, capsys)
    assert all(len(line) <= 80 for line in text.splitlines()) and len(examples) >= 3


@pytest.mark.parametrize("part", one_in(3, range(3)))
@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_help_work(command, part, capsys):
    for example in shown(command, capsys)[1][part::3]:
        assert main(shlex.split(example)[1:]) == 0
        assert capsys.readouterr().out
