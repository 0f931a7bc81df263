"""`cs336kit plan …`: time, memory and the largest model of a training run, from a shell."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

from cs336kit.predict._common.checks import known
from cs336kit.predict.models import MODELS
from cs336kit.predict.plan import Question, plan
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.transformer import TransformerConfig

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class _Parser(argparse.ArgumentParser):
    """Bad input is one sentence and exit code 2, without the usage text."""

    def error(self, message):
        self.exit(2, f"{message}\n")


def _number(text: str) -> float:
    """70e9, 70B or 15T as a number."""
    try:
        factor = _SUFFIXES.get(text[-1:].upper(), 1)
        return float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write 70e9, 70B or 15T") from None


def _count(text: str) -> int:
    number = _number(text)
    if not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(number)


def _without_blanks(precision: str) -> str:
    return precision.replace(",", "").replace(" ", "-")


def _fields(pairs: list[tuple[str, object]]) -> dict:
    """A JSON object, in which the last of two equal names would win silently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Contradiction(f"the configuration gives {twice} twice: leave one of them out")
    return values


class _Contradiction(Exception):
    """Two values for one name."""


def _model(text: str) -> tuple[str, TransformerConfig | float]:
    """A configuration from a name or a JSON file, or a number of parameters."""
    if text in MODELS:
        return text, MODELS[text]
    if text.lower().endswith(".json"):
        try:
            values = json.loads(Path(text).read_text(encoding="utf-8"), object_pairs_hook=_fields)
        except OSError as error:
            raise ValueError(f"{text} cannot be read: {error.strerror}.") from None
        except _Contradiction as error:
            raise ValueError(f"{text}: {error}") from None
        except (ValueError, RecursionError):
            raise ValueError(f'{text} is not JSON: it must hold an object such as {{"layers": 12, …}}.') from None
        return Path(text).stem, TransformerConfig.from_dict(values)
    try:
        return text, _number(text)
    except argparse.ArgumentTypeError:
        return text, known("model (or the number of its parameters, or a .json file)", text, MODELS)


def _arguments() -> argparse.ArgumentParser:
    parser = _Parser(prog="cs336kit", description=__doc__, allow_abbrev=False)
    command = parser.add_subparsers(dest="command", required=True, parser_class=_Parser).add_parser(
        "plan", help="time, memory and the largest model of a training run", allow_abbrev=False
    )
    default = {f.name: f.default for f in dataclasses.fields(Question)}
    command.add_argument(
        "model", help="a name (llama-3-8b), a .json file of a TransformerConfig, or P alone (70e9, 70B)"
    )
    command.add_argument("--accelerator", default=default["accelerator"], help="such as h100-sxm or a100-sxm-80gb")
    command.add_argument("--count", type=_count, default=1, help="number of accelerators")
    command.add_argument("--tokens", type=_number, help="tokens to train on, such as 15T; without it no time")
    command.add_argument("--batch", type=_count, help="sequences that one accelerator works on at a time")
    command.add_argument("--sequence", type=_count, help="tokens of a sequence")
    precisions = [_without_blanks(name) for name in TRAINING_PRECISIONS]
    command.add_argument("--precision", type=_without_blanks, default=default["precision"], choices=precisions)
    command.add_argument("--optimizer", default=default["optimizer"], choices=OPTIMIZER_NAMES)
    command.add_argument("--attention", choices=["eager", "sdpa"])
    command.add_argument("--checkpointing", action="store_true", help="keep only the input of each block")
    command.add_argument("--mfu", type=_number, default=default["mfu"], help="model FLOPs utilization, 0.4 by default")
    command.add_argument("--replicated", action="store_true", help="a whole model on each accelerator, not sharded")
    command.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (2 with a sentence on stderr for input that cannot be)."""
    values = vars(_arguments().parse_args(arguments))
    as_json, replicated = values.pop("json"), values.pop("replicated")
    del values["command"]
    values["precision"] = next(name for name in TRAINING_PRECISIONS if _without_blanks(name) == values["precision"])
    try:
        name, model = _model(values.pop("model"))
        answer = plan(Question(model=model, name=name, sharded=not replicated, **values))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        print(json.dumps(answer.as_dict(), indent=2) if as_json else answer, flush=True)
    except BrokenPipeError:
        # The reader (head, a pager) has seen enough. What is left in the buffer goes nowhere, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
