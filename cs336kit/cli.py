"""The `cs336kit` command: `plan`, `serve`, `optimal` and `models` answer without torch; the others run or serve the course."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from cs336kit import __version__
from cs336kit._cli import lessons, models, optimal, plan, serve, sweep, train
from cs336kit._cli.arguments import Parser
from cs336kit._cli.refusals import in_options


def _exercise(arguments: list[str]) -> int:
    from cs336kit.course.exercise import main

    # `exercise try` reads the package alone, and works anywhere.
    with lessons.in_clone() if arguments[:1] == ["new"] else nullcontext():
        return int(main(arguments))


#: Name → what it is for, and what does it.
_COMMANDS = {
    "plan": (plan.PURPOSE, plan.run),
    "serve": (serve.PURPOSE, serve.run),
    "optimal": (optimal.PURPOSE, optimal.run),
    "models": (models.PURPOSE, models.run),
    "train": (train.PURPOSE, train.run),
    "sweep": (sweep.PURPOSE, sweep.run),
    "lessons": (lessons.PURPOSE, lessons.run),
    "exercise": ("new 07.3 writes an exercise's stub, try 07.3 says which case tells which mistakes apart", _exercise),
}
#: What a terminal that knows only ASCII shows instead.
_ASCII = {"×": "x", "–": "-", "−": "-", "…": "...", "·": "-", "→": "->"}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _run(arguments: list[str] | None) -> int:
    parser = Parser(prog="cs336kit", description="Resource accounting for language models.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"cs336kit {__version__}")
    listed = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, (purpose, _) in _COMMANDS.items():
        listed.add_parser(name, help=purpose, add_help=False)
    asked, rest = parser.parse_known_args(arguments)
    return _COMMANDS[asked.command][1](rest)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (2 with a sentence on stderr for what cannot be, 130 after Ctrl-C)."""
    with _ascii_where_nothing_else():
        return _answered(arguments)


@contextmanager
def _ascii_where_nothing_else() -> Iterator[None]:
    """What a stream cannot encode is replaced, and afterwards the stream does as it did before."""
    codecs.register_error("cs336kit", _in_ascii)
    before = [(stream, stream.errors) for stream in (sys.stdout, sys.stderr) if isinstance(stream, io.TextIOWrapper)]
    for stream, _ in before:
        stream.reconfigure(errors="cs336kit")
    try:
        yield
    finally:
        for stream, errors in before:
            stream.reconfigure(errors=errors)


def _answered(arguments: list[str] | None) -> int:
    try:
        try:
            return _run(arguments)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough.
        _forget_output()
        return 0
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except ValueError as error:
        sentence = in_options(str(error))
    except OSError as error:
        sentence = f"{error.filename or 'The output'} cannot be read or written: {error.strerror}."
        if error.filename is None:
            _forget_output()
    except ModuleNotFoundError as error:
        if str(error.name).startswith("cs336kit"):
            raise
        sentence = f'This command needs {error.name}: pip install "cs336kit[lab,test]"'
    print(sentence, file=sys.stderr)
    return 2


def _forget_output() -> None:
    """What is left in the buffer goes nowhere, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
