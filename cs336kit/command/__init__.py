"""The `cs336kit` command: `plan`, `serve`, `optimal` and `models` answer without torch; the others run or serve the course."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pkgutil import resolve_name

from cs336kit import __version__
from cs336kit.command.arguments import Parser, refuse

#: Name → the module with its PURPOSE and its `run`: two of the kit's own, and those of the packages beside it, which are imported
#: when they are called.
_COMMANDS = {
    "plan": "cs336plan.commands.plan",
    "serve": "cs336plan.commands.serve",
    "optimal": "cs336plan.commands.optimal",
    "models": "cs336plan.commands.models",
    "train": "cs336kit.command.train",
    "sweep": "cs336kit.command.sweep",
    "lessons": "cs336course.commands.lessons",
    "exercise": "cs336course.commands.exercise",
}
#: What the API says of the fields of a question, in the words of the command line.
_IN_OPTIONS = "cs336plan.commands.refusals:in_options"
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
    words = sys.argv[1:] if arguments is None else arguments
    for name, module in _COMMANDS.items():
        # Only who asks for no command sees what each is for.
        purpose = "" if words[:1] and words[0] in _COMMANDS else resolve_name(f"{module}:PURPOSE")
        listed.add_parser(name, help=purpose, add_help=False)
    asked, rest = parser.parse_known_args(words)
    code: int = resolve_name(f"{_COMMANDS[asked.command]}:run")(rest)
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code: 2 for what cannot be, 130 after Ctrl-C.

    What cannot be is a sentence on stderr, or {"error": sentence} on stdout with --json.
    """
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
        sentence = resolve_name(_IN_OPTIONS)(str(error))
    except OSError as error:
        sentence = f"{error.filename or 'The output'} cannot be read or written: {error.strerror}."
        if error.filename is None:
            _forget_output()
    except ModuleNotFoundError as error:
        if str(error.name).startswith("cs336"):
            raise
        sentence = f'This command needs {error.name}: pip install "cs336kit[lab,test]"'
    refuse(sentence, sys.argv[1:] if arguments is None else arguments)
    return 2


def _forget_output() -> None:
    """What is left in the buffer goes nowhere, also at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
