"""The help of the command: every example in it is run."""

import shlex

import pytest

from cs336kit.command import main


def test_help_shows_examples_that_work(capsys):
    for command in ("plan", "serve", "optimal", "models"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert all(len(line) <= 80 for line in text.splitlines())
        examples = [line.strip() for line in text.splitlines() if line.strip().startswith("cs336kit ")]
        assert len(examples) >= 3
        for example in examples:
            assert main(shlex.split(example)[1:]) == 0
            assert capsys.readouterr().out
