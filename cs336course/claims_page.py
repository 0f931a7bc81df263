"""Compute the values that settle the claims with the functions of the tests, and store them as texts for readers.

The tests (`tests/claims`) are passed in or found in a clone, because this package does not import its tests.
"""

import importlib
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cs336kit.files import write_whole
from cs336kit.lessons.claims import SETTLED

#: The most characters of a value: a longer one tells a reader nothing, and is only counted.
WIDTH = 56
#: Where the values are stored in a clone, and where their tests are.
FILE, TESTS = Path("cs336kit/lessons/claims") / SETTLED, Path("tests")
#: How far a number may be from the stored one: other versions of torch draw or round differently in the last digits.
RELATIVE = 0.01
_SAME, _OTHER = "as said", "not as said"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def entry(outcome: Any) -> dict[str, Any]:
    """What a test of a claim returned, as it is stored: texts of what is claimed and what is true, or the source.

    A bare True or False, or a value too long to read, is replaced with a phrase: whether it is as said.
    """
    if not isinstance(outcome, tuple):
        return {"said": "", "so": [], "source": f"{outcome.source}: {outcome.says}"}
    said, *computed = outcome
    texts = [value(one) for one in outcome]
    if not isinstance(said, bool) and all(len(text) <= WIDTH for text in texts):
        return {"said": texts[0], "so": texts[1:]}
    count = sum(1 for _ in _leaves(said))
    how_many = f", in all of {count} values" if count > 1 else ""
    return {"said": "", "so": [_SAME + how_many if bool(one == said) else _OTHER for one in computed]}


def value(outcome: Any) -> str:
    """A value in few digits: whole numbers in full below a billion, others with four digits; yes and no for a bool."""
    if isinstance(outcome, Mapping):
        return ", ".join(f"{name}: {value(part)}" for name, part in outcome.items())
    if isinstance(outcome, list | tuple):
        if len(outcome) == 1 and isinstance(outcome, list):  # a tuple may be a shape
            return value(outcome[0])
        return "[" + ", ".join(map(value, outcome)) + "]"
    if isinstance(outcome, bool):
        return "yes" if outcome else "no"
    if isinstance(outcome, int | float) and float(outcome).is_integer() and abs(outcome) < 1e9:
        return f"{int(outcome):,}"
    return f"{outcome:.4g}".replace("e+", "e") if isinstance(outcome, int | float) else str(outcome)


def _leaves(outcome: Any) -> Iterable[Any]:
    if isinstance(outcome, Mapping):
        outcome = list(outcome.values())
    if isinstance(outcome, list | tuple):
        for part in outcome:
            yield from _leaves(part)
    else:
        yield outcome


def same(stored: Mapping[str, Any], fresh: Mapping[str, Any]) -> bool:
    """Whether two entries say the same: the same words, and numbers that differ by RELATIVE at most."""
    texts = [[one["said"], *one["so"], one.get("source", "")] for one in (stored, fresh)]
    words = [[_NUMBER.sub("#", text) for text in side] for side in texts]
    numbers = [[float(n.replace(",", "")) for text in side for n in _NUMBER.findall(text)] for side in texts]
    return words[0] == words[1] and all(abs(a - b) <= RELATIVE * abs(a) for a, b in zip(*numbers, strict=True))


def write(tests: Iterable[Any] | None = None) -> str:
    """Run every test's function and write the file; returns what changed, in words.

    tests: those of the clone, unless given; each has its `claim`, and `settle`, which returns what is claimed and what is
    true. Errors: ValueError outside a clone.
    """
    old = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    new = {test.claim.id: entry(test.settle()) for test in (_of_the_clone() if tests is None else tests)}
    # A value that differs only in its last digits stays, so that a different machine rewrites nothing.
    kept = {id: old[id] if id in old and same(old[id], one) else one for id, one in new.items()}
    lines = [f"{json.dumps(id)}: {json.dumps(one, ensure_ascii=False)}" for id, one in kept.items()]
    write_whole(FILE, "{\n" + ",\n".join(lines) + "\n}\n")
    changed = [id for id in kept if old.get(id) != kept[id]] + [id for id in old if id not in kept]
    return f"{FILE}: " + (f"new or changed: {', '.join(changed)}" if changed else "unchanged")


def _of_the_clone() -> Iterable[Any]:
    settled = TESTS / "claims" / "settled.py"
    if not settled.exists():
        raise ValueError(f"there is no {settled} here: the tests of the claims are in a clone of the course.")
    if str(TESTS.resolve()) not in sys.path:
        sys.path.insert(0, str(TESTS.resolve()))
    tests: Iterable[Any] = importlib.import_module("claims.settled").settlements()
    return tests
