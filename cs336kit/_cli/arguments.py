"""How the command line reads numbers, units and lists; bad input is one sentence."""

import argparse
import math
import re
from collections.abc import Callable
from textwrap import dedent
from typing import NoReturn

from cs336kit.predict.transformer import TransformerConfig

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_BYTES = {
    "": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_FLOPS = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "": 1.0}

#: Reads a model's name, file or number: (name, configuration or number of parameters).
Reader = Callable[[str], tuple[str, TransformerConfig | float]]


class Parser(argparse.ArgumentParser):
    """Bad input is one sentence and exit code 2, without the usage text."""

    @classmethod
    def of(cls, name: str, usage: str, *, purpose: str, examples: str) -> "Parser":
        """The parser of one command, whose help ends with examples."""
        return cls(
            prog=f"cs336kit {name}", usage=f"cs336kit {name} {usage}", description=purpose, epilog=dedent(examples),
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}\n")


def number(text: str) -> float:
    """70e9, 70B or 15T as a number."""
    try:
        factor = _SUFFIXES.get(text[-1:].upper(), 1)
        return float(text[:-1] if factor > 1 else text) * factor
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number: write 70e9, 70B or 15T") from None


def count(text: str) -> int:
    value = number(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def _split(text: str) -> tuple[float, str] | None:
    match = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/%]*)", text.strip())
    try:
        return (float(match[1]), match[2]) if match and math.isfinite(float(match[1])) else None
    except ValueError:
        return None


def size(text: str) -> int:
    """80GB (10⁹), 80GiB (2³⁰) or bytes as a number of bytes."""
    parts = _split(text)
    if parts is None or parts[1].upper() not in _BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 80GB (10^9 bytes), 80GiB (2^30 bytes) or bytes")
    return int(parts[0] * _BYTES[parts[1].upper()])


def rate(text: str) -> float:
    """989TFLOPs, 0.99P or FLOP/s as a number."""
    parts = _split(text)
    prefix = re.fullmatch(r"([GTPE]?)(FLOPS?|FLOP/S)?", parts[1].upper()) if parts else None
    if parts is None or prefix is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write 989TFLOPs, 1.9PFLOPs or 9.89e14")
    return parts[0] * _FLOPS[prefix[1]]


def bandwidth(text: str) -> float:
    """3.35TB/s, 400Gb/s (bits) or bytes per second as a number of bytes."""
    bits = re.fullmatch(r"([0-9.]+)\s*([GT])(b|bit)(ps|/s)", text.strip())
    try:
        if bits:
            return float(bits[1]) * {"G": 1e9, "T": 1e12}[bits[2]] / 8
        return float(size(re.sub(r"/s$", "", text.strip())))
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bandwidth: write 3.35TB/s, 400Gb/s (bits) or 50e9 bytes per second"
        ) from None


def allowance(text: str) -> int | float:
    """2GiB as bytes, 8% as a fraction."""
    parts = _split(text)
    if parts is not None and parts[1] == "%" and 0 <= parts[0] < 100:
        return parts[0] / 100 or 0
    try:
        return size(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no allowance: write 2GiB or 8%") from None


def seconds(text: str) -> float:
    """50ms or 0.05 as seconds."""
    parts = _split(text)
    if parts is None or parts[1] not in _SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 50ms or 0.05s")
    return parts[0] * _SECONDS[parts[1]]


def names(text: str) -> tuple[str, ...]:
    """query,value as a tuple; a name may have blanks."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
