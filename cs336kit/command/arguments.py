"""How the command line reads numbers, units and lists; bad input is one sentence."""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from textwrap import dedent, fill
from typing import Any, NoReturn

from cs336kit.command.words import is_sized, not_known, other_value
from cs336kit.predict.hardware import accelerator
from cs336kit.predict.layouts import AXES, SCHEDULES

_POWERS = {"K": 3, "M": 6, "B": 9, "T": 12}
_BYTES = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
#: Kubernetes and numfmt leave the B out: 80G is 80GB, 80Gi is 80GiB.
_BYTES |= {unit[:-1]: power for unit, power in _BYTES.items() if len(unit) > 1}
_FLOPS = {"": 1, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SECONDS = {"s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6")}
#: Fewer bytes, or FLOP/s, than any machine has: a number alone below it lacks its unit.
_TOO_FEW = 10**6
#: The same of tokens and of parameters.
_A_FEW = 1000
#: More sequences than a step of any published run has: tokens are meant.
_TOO_MANY = 10**5


class Parser(argparse.ArgumentParser):
    """Bad input is one sentence and exit code 2, without the usage text."""

    @classmethod
    def of(cls, name: str, usage: str, *, purpose: str, examples: str) -> "Parser":
        """The parser of one command, whose help ends with examples."""
        return cls(
            prog=f"cs336kit {name}", usage=f"cs336kit {name} {usage}", description=purpose, epilog=dedent(examples),
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._words: Sequence[str] = ()
        # -5T is a number, too: not an option, but refused by the one that it stands behind.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """The values of the options; a word that stands for nothing is answered with the option that may be meant."""
        words = self._words = sys.argv[1:] if args is None else [*args]
        asked, rest = self.parse_known_args(words, namespace)
        if rest:
            self.error(not_known(words, words.index(rest[0]), self._option_string_actions))
        return asked

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        option = action.option_strings[0] if action.option_strings else ""
        if action.choices is None or value in action.choices or is_sized(option, str(value)):
            return
        if meant := other_value(option, str(value), list(action.choices)):
            raise argparse.ArgumentError(action, meant)
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        refuse(message.removeprefix("argument "), self._words)
        self.exit(2)


def refuse(sentence: str, words: Sequence[str]) -> None:
    """The sentence of a refusal on stderr, or as {"error": …} on stdout where the words ask for JSON."""
    if "--json" in words:
        print(json.dumps({"error": sentence}, indent=2))
    else:
        print(sentence, file=sys.stderr)


def number(text: str, *, bare: bool = True) -> float:
    """70e9, 70B or 15T as a number: 8.03B is 8030000000, to the last digit. `bare`: one without a unit is no mistake."""
    power = _POWERS.get(text[-1:].upper(), 0)
    try:
        return float(Decimal(text[:-1]).scaleb(power) if power else text)
    except (ValueError, ArithmeticError):
        plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)  # 1,000 is one number; of 10**9, no part is meant
        found = re.search(r"\d+(\.\d+)?(e[+-]?\d+)?[KMBT]?(?![A-Za-z.\d])|\d+(\.\d+)?", plain, re.IGNORECASE)
        alone = found and not re.search(r"\d|[KMGT]i", plain[found.end() :])
        meant = found[0] if found and alone and (bare or found[0][-1].isalpha()) else "70e9, 70B or 15T"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write {meant}") from None


def lacks_unit(text: str, what: str, meant: str) -> str | None:
    """The sentence that says so of tokens or parameters; `meant`: the letter of the likely unit, and of the next."""
    value, unit = _split(text)
    if not _is_bare(value, unit, _A_FEW):
        return None
    likely = " or ".join(f"{value}{letter}" for letter in meant)
    return f"{text!r} without a unit is {what}, too few: did you mean {likely}?"


def tokens(text: str) -> float:
    """15T or 1e12 as a number of tokens."""
    value = number(text, bare=False)
    if sentence := lacks_unit(text, "tokens", "TB"):
        raise argparse.ArgumentTypeError(sentence)
    return value


def share(text: str) -> float:
    """0.4 or 40% as a number."""
    try:
        return float(Decimal(text[:-1]).scaleb(-2) if text.endswith("%") else text)
    except (ValueError, ArithmeticError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write 0.4 or 40%") from None


def count(text: str) -> int:
    value = number(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def length(text: str) -> int:
    """4096, 4k (4,000, as everywhere here) or 4Ki (4,096) as a number of tokens."""
    binary = re.fullmatch(r"(\d+)([KM])i", text.strip(), re.IGNORECASE)
    return int(binary[1]) << {"K": 10, "M": 20}[binary[2].upper()] if binary else count(text)


class Tokens(int):
    """The batch of a step that was given in tokens."""


def step_batch(text: str) -> int:
    """1024 sequences, or 4Mtokens."""
    if given := re.fullmatch(r"(.+?)\s*tok(?:en)?s?", text.strip(), re.IGNORECASE):
        return Tokens(length(given[1]))
    if (value := count(text)) > _TOO_MANY:
        raise argparse.ArgumentTypeError(
            f"{text!r} is a number of sequences, and no step has more than {_TOO_MANY:,}: for tokens write {text}tokens"
        )
    return value


def in_sequences(batch: int | None, sequence: int | None) -> int | None:
    """The batch of a step in sequences; ValueError where tokens are no whole number of them."""
    if not isinstance(batch, Tokens):
        return batch
    if sequence is None:
        raise ValueError("--global-batch in tokens is divided by the tokens of a sequence: give --sequence, too")
    whole, left = divmod(batch, sequence)
    if left or not whole:
        near = f"{whole:,} or {whole + 1:,} sequences" if whole else "1 sequence"
        raise ValueError(
            f"{batch:,} tokens are no whole number of sequences of {sequence:,}: give --global-batch in sequences, and {near} "
            "are the nearest"
        )
    return whole


class LayoutText(argparse.Action):
    """The text of --layout; "help" prints what each of its words means."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *rest: Any) -> None:
        if values != "help":
            setattr(namespace, self.dest, values)
            return
        print("the words of --layout, as in pp=2,fsdp=8,tp=4,microbatches=16:")
        for word, meaning in {**AXES, **{f"schedule={name}": meaning for name, meaning in SCHEDULES.items()}}.items():
            print(fill(f"  {word:<14} {meaning}", width=80, subsequent_indent=" " * 17))
        parser.exit()


class Keys(argparse.Action):
    """Prints what the keys of the JSON output mean."""

    def __init__(self, *, keys: dict[str, str], schema: int, **options: object):
        super().__init__(nargs=0, default=argparse.SUPPRESS, **options)  # type: ignore[arg-type]
        self.keys, self.schema = keys, schema

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        width = max(map(len, self.keys))
        print(f"schema {self.schema}: every key is always there, null where it does not apply")
        print("\n".join(f"{name:<{width}}  {meaning}" for name, meaning in self.keys.items()))
        parser.exit()


def _split(text: str) -> tuple[Decimal, str]:
    """The number, in the digits that were written, and its unit; of what is none, 0 and a unit that nothing has."""
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/%]*)", text.strip())
    with suppress(ValueError, ArithmeticError):
        if match and math.isfinite(float(match[1])):
            return Decimal(match[1]), match[2]
    return Decimal(0), "?"


def _is_bare(value: Decimal, unit: str, too_few: int = _TOO_FEW) -> bool:
    """Whether a number without a unit is too small to be meant so."""
    return not unit and 0 < value < too_few


def size(text: str) -> int:
    """80GB (10⁹), 80GiB (2³⁰) or bytes as a number of bytes."""
    value, unit = _split(text)
    if unit.upper() not in _BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 80GB (10^9 bytes), 80GiB (2^30 bytes) or bytes")
    if unit.endswith("b") and unit != unit.lower():
        raise argparse.ArgumentTypeError(
            f"{text!r} is bits, and a size is in bytes: write {value}{unit[:-1]}B if that is meant"
        )
    if _is_bare(value, unit):
        raise argparse.ArgumentTypeError(f"{text!r} without a unit is bytes, too few: did you mean {value}GB?")
    return int(value * _BYTES[unit.upper()])


def rate(text: str) -> float:
    """989TFLOPs, 0.99P or FLOP/s as a number."""
    value, unit = _split(text)
    prefix = re.fullmatch(r"([GTPE]?)(FLOPS?|FLOP/S)?", unit.upper())
    if prefix is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write 989TFLOPs, 1.9PFLOPs or 9.89e14")
    if _is_bare(value, prefix[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is FLOP/s, too few: did you mean {value}TFLOPs?")
    return float(value * _FLOPS[prefix[1]])


def bandwidth(text: str) -> float:
    """3.35TB/s, 400Gb/s or 400Gb (a small b is bits), or bytes per second as a number of bytes."""
    value, unit = _split(text)
    parts = re.fullmatch(r"(?:([KkMmGgTt]i?)?(B|b|bits?))?(?:ps|/s)?", unit)
    if parts is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bandwidth: write 3.35TB/s, 400Gb/s (bits) or 50e9 bytes per second"
        )
    prefix, what = parts[1] or "", parts[2] or ""
    if _is_bare(value, what):
        meant = f"{value}TB/s" if value < 10 else f"{value}GB/s or {value}Gb/s (bits)"
        raise argparse.ArgumentTypeError(f"{text!r} is bytes per second, too few: did you mean {meant}?")
    return float(value * _BYTES[f"{prefix}B".upper()] / (8 if what.startswith("b") else 1))


def allowance(text: str) -> int | float:
    """2GiB as bytes, 8% as a fraction."""
    value, unit = _split(text)
    if unit == "%" and 0 <= value < 100:
        return float(value / 100) or 0
    if unit.upper() not in _BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no allowance: write 2GiB or 8%")
    if _is_bare(value, unit):
        meant = f"{value}GB or {value}%" if value >= 1 else f"{(100 * value).normalize():f}%"
        raise argparse.ArgumentTypeError(f"{text!r} without a unit is bytes, too few: did you mean {meant}?")
    return size(text)


def seconds(text: str) -> float:
    """50ms or 0.05s as seconds."""
    value, unit = _split(text)
    if not unit:
        meant = f"{value}ms" if value >= 1 else f"{value}s"
        raise argparse.ArgumentTypeError(f"{text!r} has no unit: did you mean {meant}?")
    if unit not in _SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 50ms or 0.05s")
    return float(value * _SECONDS[unit])


def to_write(path: Path) -> Path:
    """The path of --out, if a file can be written there: it is known before hours are spent on what goes in."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"there is no folder {path.parent} for --out: make it first")
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder: name a file in it, such as {path / 'run.json'}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"nothing can be written into the folder {path.parent} of --out: name another")
    return path


def add_links(add: Callable[..., object]) -> None:
    """The options about the links between accelerators, to a group of the parser of plan or of serve."""
    add(
        "--between-nodes", type=bandwidth, metavar="RATE", help="of one accelerator each way, such as 50GB/s or 400Gb/s"
    )
    same = "the same to its neighbors in the node, in place of the table's"
    add("--link", type=bandwidth, metavar="RATE", help=same)
    add("--node", type=count, metavar="N", help="accelerators of a node: 8, 72 of gb200 and gb300, and a pod of TPUs")


def given(parser: argparse.ArgumentParser, values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that are not the parser's own."""
    return {name: value for name, value in values.items() if value is not None and value != parser.get_default(name)}


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Name of a value → the option that sets it."""
    return {action.dest: action.option_strings[0] for action in parser._actions if action.option_strings}


def check_listed(name: str | None, otherwise: str) -> None:
    """Raise ValueError for an accelerator that the table does not have, with the options that describe any other chip."""
    try:
        if name is not None:
            accelerator(name)
    except ValueError as error:
        unknown = str(error).startswith("unknown")
        described = f" Any other chip: {otherwise} in place of --accelerator" if unknown else ""
        raise ValueError(f"{error}{described}") from None


def names(text: str) -> tuple[str, ...]:
    """query,value as a tuple; a name may have blanks."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
