"""Read the shares and multiples that a text says in words: "nearly a third of", "more than twice as", "two percent larger".

Each stands for a range of values, by which what is listed for it (tests/notebooks/constants.toml) is judged.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

#: What a word for a number counts.
COUNTS = {
    word: float(number)
    for number, words in {
        1: "a an one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten",
        11: "eleven", 12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen", 20: "twenty", 30: "thirty",
        40: "forty", 50: "fifty", 60: "sixty", 100: "hundred", 1000: "thousand", 1e6: "million",
    }.items()
    for word in words.split()
}  # fmt: skip
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9, "tenth": 10,
    "twelfth": 12, "sixteenth": 16, "twentieth": 20, "fortieth": 40,
    "hundredth": 100, "thousandth": 1e3, "millionth": 1e6, "billionth": 1e9,
}  # fmt: skip
#: What comes before a share, and between which multiples of it the value then lies.
_HEDGES = {
    "nearly": (0.8, 1), "almost": (0.8, 1), "not quite": (0.8, 1), "just under": (0.9, 1), "just over": (1, 1.1),
    "a little more than": (1, 1.15), "a little less than": (0.85, 1), "more than": (1, 2), "over": (1, 2),
    "less than": (0.4, 1), "fewer than": (0.4, 1), "under": (0.4, 1), "below": (0.4, 1), "above": (1, 2),
    "not even": (0.5, 1), "at most": (0.5, 1), "up to": (0.5, 1),
    "at least": (1, 1.5), "about": (0.85, 1.15), "roughly": (0.85, 1.15), "some": (0.8, 1.2), "only": (0.9, 1.1),
    "exactly": (1, 1), "": (0.88, 1.12),
}  # fmt: skip
_COUNT = "|".join(COUNTS)
#: What follows a share of something, and no name: "a third of", and not "a third vector".
_OF = (
    r"(?=\s(?:of|more|less|fewer|as|a|to|too|or|again|below|above|than|larger|smaller|longer|shorter|wider|faster|slower|out"
    r"|have|has|needs?|takes?|would|without|does|is|are|was|and|in)\b|[.,;:)])"
)
#: What follows a multiple: "twice the work", and not "it runs twice".
_AS = r"(?=\s(?:as|the|that|what|its|their|more|less|fewer|too|smaller|larger|slower|faster|\d|[A-Z])\b|\s[A-Z]\w*'s)"
#: Behind a percentage they say whether it is on top or missing.
_MORE, _LESS = (
    "more|larger|longer|higher|wider|slower|above|over",
    "less|fewer|smaller|shorter|lower|faster|below|under",
)
_SHARE = re.compile(
    rf"(?<![\w-])(?:(?P<hedge>{'|'.join(hedge for hedge in _HEDGES if hedge)})\s+)?(?:"
    rf"(?P<digits>\d+(?:\.\d+)?) % (?P<sign>{_MORE}|{_LESS})\b"
    rf"|one (?:part )?in (?!two\b)(?P<among>{_COUNT})\b"
    rf"|(?P<percent>half a|(?!an? )(?:{_COUNT})) percent\b"
    rf"|(?P<count>{_COUNT}) (?P<part>{'|'.join(_PARTS)})s?\b{_OF}"
    rf"|(?P<half>half)\b(?=\s(?:of|a|as|the|without)\b|[.,;:)])"
    rf"|(?P<twice>twice)\b{_AS}"
    rf"|(?:a )?(?P<times>(?!an?\b|one\b)(?:{_COUNT}))(?: (?P<more>hundred|thousand|million))? times\b{_AS})",
    re.IGNORECASE,
)


class Share(NamedTuple):
    """A share or multiple as it is said, the least and the most that it may stand for, and where it begins."""

    said: str
    least: float
    most: float
    start: int

    def holds(self, value: float) -> bool:
        """Whether a value may be called so."""
        return self.least * (1 - 1e-9) <= value <= self.most * (1 + 1e-9)


def shares(text: str) -> Iterator[Share]:
    """Every share and multiple of a text, in words; a bare "half" may be a word like "the first half" and counts with a hedge."""
    for found in _SHARE.finditer(text):
        hedge = " ".join((found["hedge"] or "").lower().split())
        if found["half"] and not hedge:
            continue
        if found["digits"]:
            yield _percentage(found[0], found["digits"], found["sign"].lower(), found.start())
            continue
        value = _value({name: (part or "").lower() for name, part in found.groupdict().items()})
        low, high = _HEDGES[hedge]
        yield Share(found[0], low * value, high * value, found.start())


def _percentage(said: str, digits: str, sign: str, start: int) -> Share:
    """A percentage on top, or one that is missing, which is negative; to half of its last digit."""
    value, half = float(digits) / 100, 0.005 * 10.0 ** -len(digits.partition(".")[2])
    ends = (value - half, value + half) if re.fullmatch(_MORE, sign) else (-value - half, half - value)
    return Share(said, *ends, start)


def _value(found: dict[str, str]) -> float:
    if found["part"]:
        return COUNTS[found["count"]] / _PARTS[found["part"]]
    if found["among"]:
        return 1 / COUNTS[found["among"]]
    if found["percent"]:
        return COUNTS.get(found["percent"], 0.5) / 100
    if found["half"] or found["twice"]:
        return 0.5 if found["half"] else 2.0
    return COUNTS[found["times"]] * (COUNTS[found["more"]] if found["more"] else 1)
