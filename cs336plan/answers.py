"""What answers are made of, about training and about serving alike: quantities by rows, and notes that are facts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from cs336kit.predict.breakdown import Breakdown

Answer = TypeVar("Answer")


class Row(NamedTuple, Generic[Answer]):
    """One quantity of an answer."""

    #: in JSON, with the unit
    key: str
    #: what it is, when it is null, and its unit where the key does not say it
    words: str
    #: its value; None: the attribute of the answer, or of its question, that is called as the key
    value: Callable[[Answer], object] | None = None
    #: what each number is, where there are several
    parts: tuple[str, ...] = ()
    #: names and formulas with their numbers, of this quantity and of what leads to it or follows from it alone
    explained: Callable[[Answer], Iterable[tuple[str, str]]] | None = None


#: Of numbers that have two bounds.
BOUNDS = ("lower", "upper")


def plain_values(answer: Any, rows: Iterable[Row[Any]]) -> dict[str, object]:
    """The value of each row under its key: what --json prints."""
    found: dict[str, object] = {}
    for key, _, value, parts, _ in rows:
        one: Any = value(answer) if value else getattr(answer if hasattr(answer, key) else answer.question, key)
        if isinstance(one, Breakdown):
            one = dict(one.items())
        found[key] = one if one is None or not parts else dict(zip(parts, one, strict=True))
    return found


def explained(answer: Any, rows: Iterable[Row[Any]]) -> Iterator[tuple[str, str]]:
    """Where the numbers come from, in the order of the rows: each quantity's name and its formula."""
    return ((name, formula) for row in rows if row.explained for name, formula in row.explained(answer))


class Note(NamedTuple):
    """A fact about an answer whose numbers are not all there is to say."""

    #: key of the sentence
    kind: str
    #: what the sentence says of it: names that end in `bytes` are bytes, in `share` fractions
    numbers: Mapping[str, Any] = {}


def sentences(notes: Iterable[Note | str], table: Mapping[str, str]) -> tuple[str, ...]:
    """Each note as a sentence, with bytes in GiB and shares in per cent; what the kit says of a chip or a model stays."""

    def shown(name: str, value: Any) -> Any:
        return f"{value / 2**30:,.2f}" if name.endswith("bytes") else 100 * value if name.endswith("share") else value

    return tuple(
        note
        if isinstance(note, str)
        else table[note.kind].format(**{name: shown(name, value) for name, value in note.numbers.items()})
        for note in notes
    )
