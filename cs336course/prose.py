"""Tie each number in a lesson's prose to the same number in an output, the code, an equation, or elsewhere in the prose.

A number is tied when it equals one of those after rounding to its own digits. With three or more digits, that can be
anywhere in the lesson's code or in an output above it, because a wrong number rarely matches by accident. A shorter one must
be in the cells near it, with the same unit if it has one. What only an output below shows ties nothing, so that a text which
is moved above the table that it speaks of is noticed. A number that is tied to nothing is wrong, or has to be listed with its
source.
"""

import ast
import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cs336course import cells as kind
from cs336course import flow
from cs336course.arithmetic import FACTORS, LATEX, NUMBER, RAISED, equations, plain
from cs336course.cells import Cell

#: To how many code cells before and after it a short number may be tied; of those after it, to their code alone.
BEFORE, AFTER = 4, 2
#: How many cells a slide has at most, and the one after it.
SLIDE = 6
#: A number with its power of ten and the word after it; digits that are part of a name (H100, GPT-3, 04.1) do not count.
#: Of a square, the number that is squared.
_NUMBER = re.compile(
    rf"(?<![\w,/^_#-])(?<!\d\.)(?P<digits>{NUMBER})(?![\d_])(?P<raised>⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)?"
    r"(?:[eE](?P<e>[-+]?\d+)|\s?[·×]\s?10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?"
    r"(?:\s?(?P<word>%|[A-Za-zµ]+))?"
)
#: A word for what is counted, such as tokens; not one that merely ends so.
_COUNTED = re.compile(
    r"(?!.*ss$|.*us$|(?:is|was|has|as|its|this|less|does|plus|minus|times|makes|comes|takes|moves|goes)$)[a-z]{2,}s"
)
#: What the lesson does not itself state: code, formulas, links, the numbers of sections, references, and the line of times.
_APART = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|^\d+ minutes\b.*? more for .*?$"
    r"|^#+ (?:\d+ ·|Exercise [\d.]+ ★* \d+ min|Drills \d+ min)|\*\*(?:Discuss|Read on)\*\*.*|^\d+\. ",
    re.S | re.M,
)
#: A year with the word before it, mostly the name of who published something in it.
_YEAR = re.compile(
    r"(?P<name>[^\W\d_][\w-]*)(?: et al\.| and others)?,? \(?(?P<year>(?:19[5-9]|20[0-3])\d)\b(?![\d.,]*\d)"
)
_REFERENCE = re.compile(
    r"\b(?:[Ll]essons?|[Ss]ections?|[Ee]xercises?|[Tt]able|[Ss]tage|IEEE|RTX|CUDA|[Tt]orch|PyTorch|PCIe|NVLink|Llama)"
    r"(?: [\d.]+(?:, | and | to ))* [\d.]+"
)


class Number(NamedTuple):
    """A number with the word after it, and by how much its value may be off: half of its last digit."""

    digits: str
    word: str
    scale: float
    start: int
    raised: bool = False

    @property
    def value(self) -> float:
        """Its value, without its unit."""
        return float(self.digits.replace(",", "")) * self.scale

    @property
    def half(self) -> float:
        """Half of the value of its last digit."""
        return 0.5 * self.scale * 10.0 ** -len(self.digits.partition(".")[2])

    @property
    def short(self) -> bool:
        """Whether it has only one or two digits, so that it may match a different number by accident."""
        return len(self.digits.replace(",", "").replace(".", "").lstrip("0")) < 3

    @property
    def telling(self) -> bool:
        """Whether it is checked: three digits, or two with a decimal point, "times" or what they count, or a unit."""
        if self.raised or not self.short:
            return not self.short
        two = len(self.digits.replace(".", "").lstrip("0")) > 1
        return self.word in FACTORS or (
            two and ("." in self.digits or self.word == "times" or bool(_COUNTED.fullmatch(self.word)))
        )

    def slips(self) -> Iterator["Number"]:
        """The same number with one wrong digit, in all possible ways."""
        for place, digit in enumerate(self.digits):
            for wrong in "0123456789" if digit.isdigit() else "":
                slip = self.digits[:place] + wrong + self.digits[place + 1 :]
                if wrong != digit and not re.match(r"0[\d,]", slip):
                    yield self._replace(digits=slip)


def numbers(text: str) -> Iterator[Number]:
    """Every number of a text."""
    for found in _NUMBER.finditer(text):
        power = int(found["e"] or 0) + int((found["power"] or "0").translate(RAISED))
        yield Number(found["digits"], found["word"] or "", 10.0**power, found.start(), bool(found["raised"]))


def said(text: str) -> str:
    """A text with what the lesson does not itself state blanked: code, formulas, links, and questions to discuss."""
    return _APART.sub(_blank, text)


def stated(text: str) -> list[Number]:
    """The numbers that a cell of prose states, apart from what :func:`said` blanks, references and years."""
    blank = _YEAR.sub(_blank, _REFERENCE.sub(_blank, said(text)))
    return [number for number in numbers(blank) if number.telling]


def years(text: str) -> list[tuple[str, int]]:
    """Each year that a text names, with the word before it: `("Hoffmann", 2022)`."""
    return [(found["name"], int(found["year"])) for found in _YEAR.finditer(re.sub(r"`[^`]*`", _blank, text))]


def _blank(found: re.Match[str]) -> str:
    return "¤" * len(found[0])


#: Values, each with the word after it.
Values = Iterable[tuple[float, str]]


class Pool:
    """Values with the word after each; `number in pool` asks whether a number of the prose is one of them.

    shown: further values, those that each cell shows; `upto` asks only for those of cells that far.
    """

    def __init__(self, values: Values, shown: Sequence[Values] = ()) -> None:
        groups: dict[float | None, dict[float, int]] = {}
        for place, part in enumerate([values, *shown]):
            for value, word in part:
                groups.setdefault(FACTORS.get(word), {}).setdefault(abs(value), place)
        self._sorted = {factor: sorted(group.items()) for factor, group in groups.items()}

    def __contains__(self, number: Number) -> bool:
        return self.upto(number, sys.maxsize)

    def upto(self, number: Number, most: int) -> bool:
        """Whether a value, rounded to the digits of the number, is that number, even if only one of them has a unit.

        A short number with a unit does not match every bare number with the same digits. most: how many of the cells that
        show something count.
        """
        ours = FACTORS.get(number.word)
        for factor, group in self._sorted.items():
            if ours is None or ours == factor:
                scales = [1.0]
            elif factor is None:
                scales = [ours] if number.short else [1.0, ours]
            else:
                scales = [ours / factor]
            for scale in scales:
                value, half = number.value * scale, number.half * scale * (1 + 1e-9)
                for place in range(bisect_left(group, (max(value - half, 5e-324), -1)), len(group)):
                    if group[place][0] > value + half:
                        break
                    if group[place][1] <= most:
                        return True
        return False


def _shown(cell: Cell) -> list[tuple[float, str]]:
    """All values that a code cell shows, each with the word after it."""
    found: list[tuple[float, str]] = []
    for output in cell.get("outputs", []):
        about = output.get("metadata", {}).get("image/svg+xml", {}).get("alt", "")
        for text in (output.get("text", ""), output.get("data", {}).get("text/plain", ""), about):
            found += values_of("".join(text))
    return found


def values_of(text: str) -> Iterator[tuple[float, str]]:
    """The numbers of an output, each with the unit after it; a number without one may have any that the output names."""
    units = {word for word in re.findall(r"%|[A-Za-zµ]+", text) if word in FACTORS}
    for number in numbers(text):
        yield number.value, number.word
        if number.word not in FACTORS:
            yield from ((number.value, unit) for unit in units)


def literals(tree: ast.AST) -> Iterator[tuple[float, str]]:
    """The numbers in code, including those in its strings, and what it computes from literals alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (value := _folded(node)) is not None:
            yield value, ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from values_of(node.value)


def _folded(node: ast.expr) -> float | None:
    if isinstance(node, ast.Constant):
        value = node.value
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value) if abs(value) < 1e300 else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _folded(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        # An operand may not be a number, and the root of a negative number is complex.
        with suppress(ArithmeticError, TypeError):
            return float(_OPERATIONS[type(node.op)](_folded(node.left), _folded(node.right)))
    return None


_OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}


#: A letter of a formula, with its index and its power, or a bracket; and a whole number before several of these.
_LETTER = r"(?:[A-Za-zμλ](?:_ff)?[²³⁴]?|\([A-Z][^()]*\)[²³⁴]?)"
_TERM = re.compile(
    rf"(?<![\w.,^/√])(?<![·/÷×−] )(?<![-·×])(?P<number>\d+)(?P<joined> ?· ?)?"
    rf"(?P<letters>(?:{_LETTER}(?: ?· ?(?={_LETTER}(?![A-Za-z])))?)+)(?![\w(])"
)


def formulas(text: str) -> Iterator[tuple[str, int, int]]:
    """Each term of a formula with a number before its letters, such as `6PN` for `6 · P · N`, and where it begins and ends.

    Of a formula in LaTeX, it is the formula's own place.
    """
    told = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|^#+ \d+ ·", _blank, text, flags=re.S | re.M)
    yield from _terms(LATEX.sub(_blank, told))
    for latex in LATEX.finditer(told):
        yield from ((term, *latex.span()) for term, *_ in _terms(plain(latex[0])))


def _terms(told: str) -> Iterator[tuple[str, int, int]]:
    for found in _TERM.finditer(told):
        letters = re.sub(r"[ ·]", "", found["letters"])
        # A word, a size (70B) and a bare letter behind a dot, as in "2 · A", are no formula.
        if (
            found["number"] != "1"
            and not re.match(r"B$|[a-z]{2}", letters)
            and not (found["joined"] and len(letters) == 1)
        ):
            yield found["number"] + letters, found.start(), found.end()


class Prose:
    """The prose of a lesson's cells, and what its numbers may be tied to."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.texts = [
            kind.source(c) if c["cell_type"] == "markdown" and "page" not in kind.tags(c) else "" for c in cells
        ]
        code = [cell for cell in cells if kind.is_code(cell)]
        typed = [list(literals(flow.parse(kind.source(cell)))) for cell in code]
        shown = [_shown(cell) for cell in code]
        #: How many code cells stand above each cell.
        self._above = [sum(map(kind.is_code, cells[:place])) for place in range(len(cells))]
        self._near = [
            Pool(
                value
                for part in [*typed[max(0, n - BEFORE) : n + AFTER], *shown[max(0, n - BEFORE) : n]]
                for value in part
            )
            for n in self._above
        ]
        self._said = Counter((n.digits, n.word) for text in self.texts for n in stated(text))
        self._all = Pool((value for part in typed for value in part), shown)

    def tied(self, place: int, number: Number) -> bool:
        """Whether the number in the cell at this place equals something that the lesson computes, is given, or says elsewhere."""
        if (number.word in FACTORS or not number.short or _COUNTED.fullmatch(number.word)) and (
            self._said[number.digits, number.word] > 1
        ):
            return True
        return number in self._near[place] if number.short else self._all.upto(number, self._above[place])

    def untitled(self) -> Iterator[tuple[int, Number]]:
        """Every number in the title or the notes of a slide that the lesson neither shows nor says, with its cell."""
        told = {(n.digits, n.word) for text in self.texts for n in numbers(text)}
        for place, cell in enumerate(self.cells):
            for text in kind.for_slide(cell).values():
                for number in stated(text):
                    # A title stands above what the slide shows.
                    near = self._near[place : place + SLIDE]
                    shown = any(number in pool for pool in near) or (not number.short and number in self._all)
                    if not shown and (number.digits, number.word) not in told:
                        yield place, number

    def untied(self) -> Iterator[tuple[int, Number]]:
        """Every number that is tied to nothing, with the index of its cell."""
        for place, text in enumerate(self.texts):
            equal = [(a, b) for a, b, true in equations(text) if true]
            for number in stated(text):
                if not any(a <= number.start < b for a, b in equal) and not self.tied(place, number):
                    yield place, number
