import io

import pytest

from cs336kit.lm import ProgressBar

pytestmark = pytest.mark.torch


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_gets_whole_lines_at_every_tenth():
    log = io.StringIO()
    with ProgressBar(25, unit="steps", label="train", file=log) as bar:
        for step in range(25):
            bar.update(loss=2 + step / 100)
    lines = log.getvalue().splitlines()
    assert len(lines) == 10 and "\r" not in log.getvalue()
    assert lines[0] == "train 3/25 steps (12 %) · loss 2.02" and lines[-1] == "train 25/25 steps (100 %) · loss 2.24"


def test_big_strides_and_empty_work():
    log = io.StringIO()
    with ProgressBar(3, unit="files", file=log) as bar:
        bar.update(3)
    assert log.getvalue() == "3/3 files (100 %)\n"
    with ProgressBar(0, unit="files", file=log) as bar:
        bar.update(0)
    assert log.getvalue() == "3/3 files (100 %)\n"


def test_a_terminal_gets_a_bar():
    terminal = Terminal()
    with ProgressBar(4, unit="steps", label="train", file=terminal) as bar:
        bar.update(4, loss=1.5)
    assert "\r" in terminal.getvalue() and "4/4" in terminal.getvalue() and "loss 1.5" in terminal.getvalue()
