"""What a reader has done, in one local file: the first guess at each question, and the exercises solved.

The environment variable CS336KIT_GUESSES names the file (`make lab` puts it into ``my/``). Without it, that of a clone's
``my/`` is used where there is one, and else ``.cs336kit/guesses.json`` in the home folder. Needs the standard library alone.
"""

import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from cs336kit.files import alone_in, write_whole

VARIABLE = "CS336KIT_GUESSES"
#: As the value of VARIABLE: nothing is kept, and nothing is said about it.
OFF = os.devnull + "/none"

#: A question → the guess, the answer and their unit.
Guesses = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Journal:
    """First guesses by question, and the ids of solved exercises."""

    guesses: Guesses = field(default_factory=dict)
    solved: tuple[str, ...] = ()


def path() -> Path:
    """Where the journal is, or would be; ValueError where there is no place for one."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    # A kernel runs in the copies' folder, the command in the clone.
    for beside in (Path("my"), Path("../my")):
        if (beside / "guesses.json").exists():
            return (beside / "guesses.json").resolve()
    try:
        return Path.home() / ".cs336kit" / "guesses.json"
    except RuntimeError:
        raise ValueError(f"there is no home folder for it, and {VARIABLE} names no file") from None


def read() -> Journal:
    """The journal, empty where there is none; ValueError, with the file's name, for one that is damaged or cannot be read."""
    if os.environ.get(VARIABLE) == OFF:  # what a system says about a file below its null device differs
        return Journal()
    file = path()
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        # Before exercises were noted, the file held the guesses alone.
        kept = kept if set(kept) == {"guesses", "solved"} else {"guesses": kept, "solved": []}
        if not all(isinstance(entry, dict) and {"guess", "answer"} <= set(entry) for entry in kept["guesses"].values()):
            raise ValueError
        if not isinstance(kept["solved"], list) or not all(isinstance(id, str) for id in kept["solved"]):
            raise ValueError
        return Journal(kept["guesses"], tuple(kept["solved"]))
    except (FileNotFoundError, NotADirectoryError):
        return Journal()
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ValueError(f"{file} is no file of guesses: move it away, and a new one is begun") from None


def write(journal: Journal) -> None:
    """Replace the file as a whole, so that nobody reads a part, and nothing is lost when the disk is full.

    What others have written since it was read is lost: `note` and `forget` let them wait. An empty journal is no file.
    OSError where it cannot be written.
    """
    file = Path(os.path.realpath(path()))  # a link to where the reader keeps it stays one
    if journal == Journal():
        return file.unlink(missing_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    kept = {"guesses": journal.guesses, "solved": journal.solved}
    write_whole(file, json.dumps(kept, indent=1, ensure_ascii=False))


@contextmanager
def _alone() -> Iterator[None]:
    """Let others that write wait, where the system has locks: that of the folder, so that no file is left beside."""
    folder = path().parent
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        yield


def note(what: str, guesses: Guesses | None = None, solved: str | None = None) -> tuple[Journal, str]:
    """Add guesses at questions that have none yet, or a solved exercise; returns the journal with them, and a sentence
    that begins with `what` if they cannot be kept, else "". Two lessons may note at once; where the system
    locks no folder (Windows, some network drives) one guess of two may be lost.
    """
    new = Journal(guesses or {}, (solved,) if solved else ())
    if os.environ.get(VARIABLE) == OFF:
        return new, ""
    try:
        if _with(kept := read(), new) == kept:
            return kept, ""
        with _alone():
            both = _with(read(), new)
            write(both)
        return both, ""
    except ValueError as error:
        return new, f"{what} is not kept: {error}."
    except OSError as error:
        return new, f"{what} is not kept: {path()} cannot be written ({error.strerror})."


def forget() -> None:
    """Drop all guesses and solved exercises. Raises as `write` does."""
    with _alone():
        write(Journal())


def _with(kept: Journal, new: Journal) -> Journal:
    """Both: a first guess stays, and a solved exercise is there once."""
    return Journal({**kept.guesses, **new.guesses, **kept.guesses}, tuple(sorted({*kept.solved, *new.solved})))


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether this is a finite number that a float can hold, and no truth value."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def ratios(guesses: Guesses) -> dict[str, float]:
    """Guess ÷ answer for each question where both are positive numbers, and it is one that a float can hold.

    A guess among choices is right or wrong, and has none.
    """
    found = {
        question: entry["guess"] / entry["answer"]
        for question, entry in guesses.items()
        if "choices" not in entry and all(is_number(entry[side]) and entry[side] > 0 for side in ("guess", "answer"))
    }
    return {question: ratio for question, ratio in found.items() if 0 < ratio < math.inf}


def middle(guesses: Guesses) -> float | None:
    """The factor within which half of the guesses lie, or None without numbers."""
    found = ratios(guesses).values()
    return math.exp(statistics.median(abs(math.log(ratio)) for ratio in found)) if found else None
