"""Tie each number in a lesson's prose to the same number in an output, the code, an equation, or elsewhere in the prose.

A number is tied when it equals one of those after rounding to its own digits. With three or more digits, that can be
anywhere in the lesson, because a wrong number rarely matches by accident. A shorter one must be in the cells near it, with
the same unit if it has one. A number that is tied to nothing is wrong, or has to be listed with its source.
"""

import ast
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from cs336course import cells as kind
from cs336course import flow
from cs336course.cells import Cell

#: To how many code cells before and after it a short number may be tied.
BEFORE, AFTER = 4, 2
_NUM = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
#: A number with its power of ten and the word after it; digits that are part of a name (H100, GPT-3, 04.1) do not count.
_NUMBER = re.compile(
    rf"(?<![\w,/^_#-])(?<!\d\.)(?P<digits>{_NUM})(?![\d_⁰¹²³⁴⁵⁶⁷⁸⁹⁻])(?:[eE](?P<e>[-+]?\d+)|\s?[·×]\s?10(?P<power>[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?"
    r"(?:\s?(?P<word>%|[A-Za-zµ]+))?"
)
#: `6 · 64 · 4 bytes = 1.5 KiB`, also with a word instead of the equals sign.
_TERM = rf"{_NUM}[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]*(?:\s?(?:%|[A-Za-zµ]+(?:/s)?))?"
_IS = r",?\s?(?:=|is|are|makes?|comes? to|which is)\s(?:about\s)?"
_EQUATION = re.compile(
    rf"(?<![\w,/^_#.·×+−-])(?<![·×/÷+−]\s)({_TERM}(?:\s?[·×/÷+−]\s?{_TERM})+){_IS}"
    rf"({_TERM}(?:\s?[·×]\s?10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?)"
)
#: What the lesson does not itself state: code, formulas, links, headings, references, and the line of times.
_APART = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|^#+ .*?$|<[^>]*>|^\d+ minutes\b.*? more for .*?$|\b(?:19|20)\d\d\b"
    r"|\*\*(?:Discuss|Read on)\*\*.*|^\d+\. ",
    re.S | re.M,
)
_REFERENCE = re.compile(
    r"\b(?:[Ll]essons?|[Ss]ections?|[Ee]xercises?|[Tt]able|[Ss]tage|IEEE|RTX|CUDA|[Tt]orch|PyTorch|before|from|PCIe|NVLink|Llama)"
    r"(?: [\d.]+(?:, | and | to ))* [\d.]+"
)
#: The factor that a word after a number stands for.
FACTORS = {
    "%": 0.01, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "B": 1e9, "M": 1e6, "T": 1e12,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "ms": 1e-3, "milliseconds": 1e-3, "µs": 1e-6, "microseconds": 1e-6, "ns": 1e-9,
    "GFLOP": 1e9, "GFLOPs": 1e9, "TFLOP": 1e12, "TFLOPs": 1e12, "PFLOP": 1e15, "PFLOPs": 1e15,
}  # fmt: skip


class Number(NamedTuple):
    """A number with the word after it, and by how much its value may be off: half of its last digit."""

    digits: str
    word: str
    scale: float
    start: int

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
        """Whether it is checked: three digits, or two with a decimal point or a unit, or a percentage."""
        two = len(self.digits.replace(".", "").lstrip("0")) > 1 and (self.word in FACTORS or "." in self.digits)
        return not self.short or two or self.word == "%"

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
        power = int(found["e"] or 0) + int((found["power"] or "0").translate(_RAISED))
        yield Number(found["digits"], found["word"] or "", 10.0**power, found.start())


def stated(text: str) -> list[Number]:
    """The numbers that a cell of prose states, apart from code, formulas, links, references and questions to discuss."""
    blank = _REFERENCE.sub(_blank, _APART.sub(_blank, text))
    return [number for number in numbers(blank) if number.telling]


def _blank(found: re.Match[str]) -> str:
    return "¤" * len(found[0])


#: Values, each with the word after it.
Values = Iterable[tuple[float, str]]


class Pool:
    """Values with the word after each; `number in pool` asks whether a number of the prose is one of them."""

    def __init__(self, values: Values) -> None:
        groups: dict[float | None, set[float]] = {}
        for value, word in values:
            groups.setdefault(FACTORS.get(word), set()).add(abs(value))
        self._sorted = {factor: sorted(group) for factor, group in groups.items()}

    def __contains__(self, number: Number) -> bool:
        """Whether a value, rounded to the digits of the number, is that number, even if only one of them has a unit.

        A short number with a unit does not match every bare number with the same digits.
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
                place = bisect_left(group, max(value - half, 5e-324))
                if place < len(group) and group[place] <= value + half:
                    return True
        return False


def _pool(cell: Cell) -> list[tuple[float, str]]:
    """All values that a code cell contains or shows, each with the word after it."""
    found = list(_literals(flow.parse(kind.source(cell))))
    for output in cell.get("outputs", []):
        about = output.get("metadata", {}).get("image/svg+xml", {}).get("alt", "")
        for text in (output.get("text", ""), output.get("data", {}).get("text/plain", ""), about):
            found += _values("".join(text))
    return found


def _values(text: str) -> Iterator[tuple[float, str]]:
    """The numbers of an output, each with the unit after it; a number without one may have any that the output names."""
    units = {word for word in re.findall(r"%|[A-Za-zµ]+", text) if word in FACTORS}
    for number in numbers(text):
        yield number.value, number.word
        if number.word not in FACTORS:
            yield from ((number.value, unit) for unit in units)


def _literals(tree: ast.AST) -> Iterator[tuple[float, str]]:
    """The numbers in code, including those in its strings, and what it computes from literals alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and (value := _folded(node)) is not None:
            yield value, ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _values(node.value)


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


_SIGNS = str.maketrans({"·": "*", "×": "*", "÷": "/", "−": "-", ",": None})


def equations(text: str) -> Iterator[tuple[int, int]]:
    """Where a text has a true equation, as the place of its first character and the one after its last."""
    for found in _EQUATION.finditer(text):
        value, result = _worth(found[1]), next(numbers(found[2]), None)
        if value is None:
            continue
        if result is None:  # a power, such as 2⁻⁹
            true = value == _worth(found[2])
        else:
            true = result in Pool([(value, "")]) or result._replace(word="") in Pool([(value, "")])
        if true:
            yield found.span()


def _worth(text: str) -> float | None:
    """The value of one side of an equation, without its units; None if it has none."""
    expression = re.sub(r"[A-Za-zµ%]+(?:/s)?", "", text)
    expression = re.sub(r"[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda power: f"**{power[0].translate(_RAISED)}", expression)
    try:
        return _folded(ast.parse(expression.translate(_SIGNS).strip(), mode="eval").body)
    except SyntaxError:  # 007 is not a number
        return None


class Prose:
    """The prose of a lesson's cells, and what its numbers may be tied to."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.texts = [
            kind.source(c) if c["cell_type"] == "markdown" and "page" not in kind.tags(c) else "" for c in cells
        ]
        pools: list[list[tuple[float, str]]] = []
        near: list[tuple[int, int]] = []
        for cell in cells:
            near.append((max(0, len(pools) - BEFORE), len(pools) + AFTER))
            if kind.is_code(cell):
                pools.append(_pool(cell))
        self._near = [Pool(value for pool in pools[first:last] for value in pool) for first, last in near]
        self._said = Counter((n.digits, n.word) for text in self.texts for n in stated(text))
        self._all = Pool(value for pool in pools for value in pool)

    def tied(self, place: int, number: Number) -> bool:
        """Whether the number in the cell at this place equals something that the lesson computes, is given, or says elsewhere."""
        if (number.word in FACTORS or not number.short) and self._said[number.digits, number.word] > 1:
            return True
        return number in (self._near[place] if number.short else self._all)

    def untied(self) -> Iterator[tuple[int, Number]]:
        """Every number that is tied to nothing, with the index of its cell."""
        for place, text in enumerate(self.texts):
            equal = list(equations(text))
            for number in stated(text):
                if not any(a <= number.start < b for a, b in equal) and not self.tied(place, number):
                    yield place, number
