"""What the command prints, word by word, as it stands in transcripts.txt: a changed word or digit is seen, and is meant.

That the numbers are right is shown elsewhere. A new command is a line ``$ cs336kit …`` in the file; to renew what follows each:
``python tests/plan/test_transcripts.py``.
"""

import contextlib
import io
import os
import re
import shlex
from pathlib import Path

import pytest

from cs336kit.command import main

FILE = Path(__file__).with_name("transcripts.txt")
COMMANDS = dict(re.findall(r"^\$ (cs336kit .*)\n((?:(?!\$ ).*\n)*)", FILE.read_text(encoding="utf-8"), re.M))


def printed(command):
    """What a command prints, and its exit code where that is not 0."""
    out = io.StringIO()
    os.environ["COLUMNS"] = "100"
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(shlex.split(command)[1:])
        except SystemExit as ended:
            code = ended.code
    lines = [line.rstrip() for line in out.getvalue().splitlines()] + ([f"(exit code {code})"] if code else [])
    return "\n".join(lines).strip("\n") + "\n\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_it_printed(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    meant = "if the change is meant, write the file anew: python tests/plan/test_transcripts.py"
    assert printed(command) == COMMANDS[command], meant


if __name__ == "__main__":
    FILE.write_text("".join(f"$ {command}\n{printed(command)}" for command in COMMANDS), encoding="utf-8")
