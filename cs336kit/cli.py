"""The `cs336kit` command: `plan`, `serve`, `optimal` and `models` answer without torch; the others run or serve the course."""

import argparse
import codecs
import io
import json
import os
import sys
from pathlib import Path

from cs336kit import __version__
from cs336kit._cli import lessons, models, optimal, plan, serve, sweep, train
from cs336kit._cli.arguments import Parser, number
from cs336kit.predict.models import MODELS, unknown
from cs336kit.predict.transformer import TransformerConfig


def _fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, in which the last of two equal names would win silently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Contradiction(f"the configuration gives {twice} twice: leave one of them out")
    return values


class _Contradiction(Exception):
    """Two values for one name."""


def model_of(text: str) -> tuple[str, TransformerConfig | float]:
    """A configuration from a name, a JSON file or a folder with its config.json; or a number of parameters."""
    folder = os.path.isdir(text)  # a name, but no path, goes before a folder that is called so
    if text in MODELS and not (folder and any(sign in text for sign in ("/", os.sep))):
        return text, MODELS[text]
    if folder:
        path = Path(text) / "config.json"
        if not path.is_file():
            raise ValueError(f"the folder {text} has no config.json: give the folder or the file of a model.")
        return _read(path, Path(text).resolve().name)
    if text.lower().endswith(".json"):
        return _read(Path(text), Path(text).stem)
    try:
        return text, number(text)
    except argparse.ArgumentTypeError:
        unknown("model (or the number of its parameters, a folder, or a .json file)", text)


def _read(path: Path, name: str) -> tuple[str, TransformerConfig]:
    """The configuration in a file, Hugging Face's or ours, and what it calls itself or else `name`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_fields)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except _Contradiction as error:
        raise ValueError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f'{path} is not JSON: it must hold an object such as {{"layers": 12, …}}.') from None
    if isinstance(values, dict) and "model_type" in values:  # Hugging Face's format
        from cs336kit.predict.hugging_face import from_hf

        return str(values.get("_name_or_path") or name), from_hf(values)
    return name, TransformerConfig.from_dict(values)


def _plan(arguments: list[str]) -> int:
    return plan.run(arguments, model_of)


def _serve(arguments: list[str]) -> int:
    return serve.run(arguments, model_of)


def _optimal(arguments: list[str]) -> int:
    return optimal.run(arguments, model_of)


def _exercise(arguments: list[str]) -> int:
    from cs336kit.course.exercise import main

    return int(main(arguments))


_COMMANDS = {
    "plan": plan.PURPOSE,
    "serve": serve.PURPOSE,
    "optimal": optimal.PURPOSE,
    "models": models.PURPOSE,
    "train": train.PURPOSE,
    "sweep": sweep.PURPOSE,
    "lessons": lessons.PURPOSE,
    "exercise": "new 07.3 writes an exercise's stub, try 07.3 says which case tells which mistakes apart",
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
    for name, purpose in _COMMANDS.items():
        listed.add_parser(name, help=purpose, add_help=False)
    asked, rest = parser.parse_known_args(arguments)
    commands = {
        "plan": _plan, "serve": _serve, "optimal": _optimal, "models": models.run, "train": train.run, "sweep": sweep.run,
        "lessons": lessons.run, "exercise": _exercise,
    }  # fmt: skip
    return commands[asked.command](rest)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (2 with a sentence on stderr for what cannot be)."""
    codecs.register_error("cs336kit", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="cs336kit")
    try:
        try:
            return _run(arguments)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough.
        _forget_output()
        return 0
    except ValueError as error:
        sentence = str(error)
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
