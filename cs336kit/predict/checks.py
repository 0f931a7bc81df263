"""Refuse bad input in one sentence: what was given, what is allowed, what to do."""

import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from numbers import Integral, Real
from typing import Any, TypeVar

T = TypeVar("T")

#: The most characters of a value in a sentence.
_WIDTH = 80
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _WIDTH
#: The most entries of a list that is computed step by step: a longer one is a typing error.
LONGEST = 10**6


def shown(value: object) -> str:
    """A value as shown in a sentence: on one line, and truncated."""
    if isinstance(value, int) and value.bit_length() > 3 * _WIDTH:  # Python refuses to write the longest
        return f"a number of about {value.bit_length() * math.log10(2):.0f} digits"
    text = " ".join(_SHORT.repr(value).split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."


@contextmanager
def finite_results() -> Iterator[None]:
    """Raise ValueError if a result is too large for a float; as a decorator, in a whole function."""
    try:
        yield
    except OverflowError:
        raise ValueError(
            "these numbers lead to a result that no float can hold (1.8e308): give smaller ones."
        ) from None


def _integer(name: str, value: object, *, minimum: int, allowed: str) -> int:
    if type(value) is int and value >= minimum:  # the usual case, without asking an abstract class
        return value
    if isinstance(value, bool) or not isinstance(value, Integral):
        advice = ""
        if isinstance(value, float) and value.is_integer():
            advice = f" Write int({name}) if the whole number is meant."
        raise ValueError(f"{name} must be {allowed}, got {shown(value)} of type {type(value).__name__}.{advice}")
    if value < minimum:
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}.")
    return int(value)


def positive_int(name: str, value: object) -> int:
    """Return `value` as an int if it is a whole number of at least 1; otherwise raise ValueError.

    Floats (even 2.0), bools and strings are refused: a count that was computed as a float may already be rounded.
    """
    return _integer(name, value, minimum=1, allowed="a positive whole number (int)")


def non_negative_int(name: str, value: object) -> int:
    """Return `value` as an int if it is a whole number of at least 0; otherwise raise ValueError."""
    return _integer(name, value, minimum=0, allowed="a whole number (int) of at least 0")


def steps(name: str, value: object) -> int:
    """Return `value` as an int if it is a whole number from 1 to LONGEST; otherwise raise ValueError."""
    return at_most(name, positive_int(name, value), LONGEST)


def _number(
    name: str, value: object, *, allowed: str, fits: Callable[[Any], bool] = lambda number: True
) -> int | float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name} must be {allowed}, got {shown(value)} of type {type(value).__name__}.")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        raise ValueError(f"{name} must be {allowed}, got a number that no float can hold.") from None
    if not finite or not fits(value):
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}.")
    return int(value) if isinstance(value, Integral) else float(value)


def finite_number(name: str, value: object) -> int | float:
    """Return `value` if it is a finite int or float; otherwise raise ValueError. An int stays an int."""
    return _number(name, value, allowed="a finite number")


def positive_number(name: str, value: object) -> int | float:
    """Return `value` if it is a finite int or float above 0; otherwise raise ValueError. An int stays an int."""
    return _number(name, value, allowed="a finite number above 0", fits=lambda number: number > 0)


def non_negative_number(name: str, value: object) -> int | float:
    """Return `value` if it is a finite int or float of at least 0; otherwise raise ValueError. An int stays an int."""
    return _number(name, value, allowed="a finite number of at least 0", fits=lambda number: number >= 0)


def count(name: str, value: object) -> int:
    """Return `value` as an int if it is a whole number of at least 1, also when written as a float (70e9).

    For napkin arithmetic, where sizes are read from a paper; dimensions of tensors go through `positive_int`.
    """
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return _integer(name, value, minimum=1, allowed="a positive whole number, such as 7 or 70e9")


def fraction(name: str, value: object, *, zero: bool = False) -> float:
    """Return `value` as a float if it lies in (0, 1], or in [0, 1] with `zero=True`; otherwise raise ValueError."""
    allowed = "a fraction from 0 to 1" if zero else "a fraction above 0 and at most 1"
    number = _number(name, value, allowed=allowed)
    if number < 0 or number > 1 or (number == 0 and not zero):
        advice = f" If {shown(value)} is a percentage, divide it by 100." if 0 < number <= 100 else ""
        raise ValueError(f"{name} must be {allowed}, got {shown(value)}.{advice}")
    return float(number)


def at_most(name: str, value: int, largest: int) -> int:
    """Return `value` if it is not above `largest`; otherwise raise ValueError."""
    if value > largest:
        power = len(str(largest)) - 1
        raise ValueError(
            f"{name} must be at most {f'10**{power}' if largest == 10**power else largest}, got {shown(value)}."
        )
    return value


def boolean(name: str, value: object) -> bool:
    """Return `value` if it is True or False; otherwise raise ValueError ("no" would count as true)."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}.")
    return value


def several(name: str, value: object, kind: str = "names") -> tuple[Any, ...]:
    """Return an iterable as a tuple, a single text as a tuple of one; anything else raises ValueError."""
    if isinstance(value, str):
        return (value,)
    try:
        return tuple(value)  # type: ignore[arg-type] # whether it can be iterated over is the question
    except TypeError:
        raise ValueError(f"{name} must be {kind} in a row, such as a tuple, got {shown(value)}.") from None


def known(kind: str, name: object, table: Mapping[str, T]) -> T:
    """Return `table[name]`; an unknown name raises a ValueError that lists the known ones and suggests the closest."""
    if isinstance(name, str) and name in table:
        return table[name]
    names = [str(key) for key in table]
    suggestion = ""
    if isinstance(name, str):
        import difflib  # only when something is wrong: importing predict stays fast

        by_folded = {key.casefold(): key for key in names}
        close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1)
        if close:
            suggestion = f" Did you mean {by_folded[close[0]]!r}?"
    raise ValueError(f"unknown {kind} {shown(name)}.{suggestion} Known: {', '.join(names)}.")


def one_of(kind: str, name: object, names: Iterable[str]) -> str:
    """Return `name` if it is one of `names`; otherwise raise the ValueError of `known`."""
    return known(kind, name, {each: each for each in names})


#: What the annotation of a field asks of its value.
_OF_TYPES: dict[Any, Callable[[str, object], Any]] = {
    bool: boolean, int: positive_int, int | None: positive_int, tuple[str, ...]: several,
    float: positive_number, float | None: positive_number, int | float | None: positive_number,
}  # fmt: skip


def checked(
    instance: Any, *, limits: Mapping[str, int] = {}, choices: Mapping[str, Iterable[str]] = {},
    **others: Callable[[str, object], Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """The fields of a dataclass as their annotations ask for them; ValueError for one that cannot be.

    What is None by default may be None, and a count may be 0 where that is the default. `limits` are the largest values,
    `choices` the names of which a field is one, and `others` have a check of their own, or none. The returned values are to be
    used: an integer of numpy overflows, and JSON cannot write it.
    """
    found: dict[str, Any] = {}
    for f in fields(instance):
        if not f.init or ((value := getattr(instance, f.name)) is None and f.default is None):
            continue
        usual = non_negative_int if f.type is int and f.default == 0 else _OF_TYPES.get(f.type)
        if f.name in choices:
            one_of(f.name, value, choices[f.name])
        elif check := others.get(f.name, usual):
            found[f.name] = check(f.name, value)
            if f.name in limits:
                at_most(f.name, found[f.name], limits[f.name])
    return found
