"""The ledger of claims as a reader sees it: what is said, what a machine computed, and the verdict.

The tests that settle the claims (`tests/claims`) are handed in, since this package does not import its tests.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from cs336kit.teach.claims import Claim
from cs336kit.teach.numbers import text

#: Characters of a value at most; of a longer one its beginning stands there.
WIDTH = 60
#: Who else says so, or how others put it: of use to whoever keeps the ledger, and nothing to a reader.
_SOURCES = re.compile(r"\s*\([^()]*\b(?:long|short|timestamped|fit-first|decoder)-notes\b[^()]*\)")
#: The number of an equation that a reader does not have.
_EQUATION = re.compile(r"^\([A-Z\d]+\.\d+\)\s*(?:is\s+)?|\s*\(equation [A-Z]\.\d+\)")


class Settlement(Protocol):
    """A test of a claim: the claim, and the function that returns what is said and what is so."""

    claim: Claim
    settle: Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One claim for a reader: `so` is what was computed, with a condition first where it holds; None where a source says it."""

    id: str
    topic: str
    statement: str
    said: str | None
    so: tuple[str, ...]
    verdict: str
    truth: str


def row(test: Settlement) -> Row:
    """Settle a claim and write it down."""
    claim, outcome = test.claim, test.settle()
    said, so = (value(outcome[0]), tuple(map(value, outcome[1:]))) if isinstance(outcome, tuple) else (None, ())
    truth = "" if claim.truth == "as stated" else without_sources(claim.truth)
    if said is None:
        truth = f"{truth} ({outcome.source})"
    return Row(claim.id, claim.topic, without_sources(claim.claim), said, so, claim.verdict, truth)


def without_sources(sentence: str) -> str:
    """A sentence of the ledger without the names of those who say so, and without numbers of their equations."""
    return _EQUATION.sub("", _SOURCES.sub("", sentence)).strip()


def value(outcome: object) -> str:
    """A value in the course's digits; a long one ends in an ellipsis."""
    written = _written(outcome)
    return written if len(written) <= WIDTH else written[: WIDTH - 2].rstrip(" ,") + " …"


def _written(outcome: object) -> str:
    if isinstance(outcome, Mapping):
        return ", ".join(f"{name}: {_written(part)}" for name, part in outcome.items())
    if isinstance(outcome, Sequence) and not isinstance(outcome, str):
        return "[" + ", ".join(map(_written, outcome)) + "]"
    return text(outcome)


def stored(tests: Iterable[Settlement]) -> list[dict[str, Any]]:
    """Every row, ready for JSON, in the order of the tests."""
    return [asdict(row(test)) for test in tests]


def table(rows: Iterable[Row]) -> str:
    """Rows of one topic in Markdown."""
    lines = ["| said | its value | computed | verdict |", "|---|---|---|---|"]
    for one in rows:
        computed = " · otherwise ".join(f"`{so}`" for so in one.so) or "cited"
        verdict = f"**{one.verdict}**" + (f": {one.truth}" if one.truth else "")
        cells = (one.statement, f"`{one.said}`" if one.said is not None else "", computed, verdict)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
