"""Judge the words of direction in a text that stand with two numbers: "rises from 3 to 5", "40 is more than 30"."""

import re
from collections.abc import Iterator

from cs336course.arithmetic import FACTORS
from cs336course.prose import Number, numbers

_UP = r"more|larger|greater|higher|longer|bigger|wider|slower|above|over"
_DOWN = r"less|fewer|smaller|lower|shorter|narrower|faster|below|under"
_RISES = r"ris(?:es?|ing)|rose|gr(?:ows?|ew|owing)|climb(?:s|ed)?|increas(?:es?|ed|ing)|went up|goes up"
_FALLS = r"f(?:alls?|ell|alling)|drop(?:s|ped)?|shr(?:inks?|ank)|sinks?|sank|decreas(?:es?|ed|ing)|went down|goes down"
#: A number with its unit, marked, so that the words between two of them can be read.
_N = r"«(\d+)»"
#: Words without a number, a bracket or the end of a sentence between them.
_WORDS = r"(?:[^«».;:()|]|\.(?=\S))"
#: What is said of two numbers, and whether the first is then the smaller one.
_SAID = [
    (re.compile(rf"{_N}(?:, which is)?(?: \w+){{0,3}} (?:{_UP}) than (?:\w+ )?{_N}"), False),
    (re.compile(rf"{_N}(?:, which is)?(?: \w+){{0,3}} (?:{_DOWN}) than (?:\w+ )?{_N}"), True),
    (re.compile(rf"\b(?:{_RISES})\b{_WORDS}{{0,40}}\bfrom {_N} to {_N}"), True),
    (re.compile(rf"\b(?:{_FALLS})\b{_WORDS}{{0,40}}\bfrom {_N} to {_N}"), False),
    (re.compile(rf"{_N}{_WORDS}{{0,40}}\b(?:{_RISES}) to {_N}"), True),
    (re.compile(rf"{_N}{_WORDS}{{0,40}}\b(?:{_FALLS}) to {_N}"), False),
    (re.compile(rf"\bbetween {_N} and {_N}"), True),
    (re.compile(rf"\bat least {_N}{_WORDS}{{0,20}}\bat most {_N}"), True),
]


def wrong(text: str) -> Iterator[str]:
    """What a text says of two numbers and is the other way round, as it is written; numbers of two units are not compared."""
    found = list(numbers(text))
    marked, places, end = "", [], 0
    for place, number in enumerate(found):
        length = len(re.match(r"[\d.,]*\d(?:[eE][-+]?\d+|\s?[·×]\s?10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?", text[number.start :])[0])  # type: ignore[index]
        unit = (
            re.match(rf"\s?{re.escape(number.word)}(?:/s)?", text[number.start + length :])
            if number.word in FACTORS
            else None
        )
        stop = number.start + length + (unit.end() if unit else 0)
        marked += text[end : number.start] + f"«{place}»"
        places.append((number.start, stop))
        end = stop
    marked += text[end:]
    for pattern, first_is_less in _SAID:
        for said in pattern.finditer(marked):
            a, b = int(said[1]), int(said[2])
            if _comparable(found[a], found[b]) and (_worth(found[a]) < _worth(found[b])) != first_is_less:
                words = re.sub(r"«(\d+)»", lambda mark: text[slice(*places[int(mark[1])])], said[0])
                yield " ".join(words.split())


def _comparable(a: Number, b: Number) -> bool:
    """Whether both have a unit or neither has."""
    return (a.word in FACTORS) == (b.word in FACTORS) and not (a.raised or b.raised)


def _worth(number: Number) -> float:
    return number.value * FACTORS.get(number.word, 1.0)
