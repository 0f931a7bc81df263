"""Read the equations in a text, such as `6 · 64 · 4 bytes = 1.5 KiB` or `$3 \\cdot 4 = 12$`, and whether they are true.

A side is what can be computed from it: numbers with units and powers, the four operations, brackets, roots and logarithms. An
equation with a letter on one side says nothing that can be computed here.
"""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
#: The factor that a word after a number stands for.
FACTORS = {
    "%": 0.01, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12, "B": 1e9, "M": 1e6, "T": 1e12,
    "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "ms": 1e-3, "milliseconds": 1e-3, "µs": 1e-6, "microseconds": 1e-6, "ns": 1e-9,
    "GFLOP": 1e9, "GFLOPs": 1e9, "TFLOP": 1e12, "TFLOPs": 1e12, "PFLOP": 1e15, "PFLOPs": 1e15,
}  # fmt: skip
#: A formula in LaTeX.
LATEX = re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.S)
#: How far the sides of a ≈ may be apart, as a share.
ABOUT = 0.05
_POWER = r"⁻?(?:⁰(?![⁰¹²³⁴⁵⁶⁷⁸⁹])|[¹²³⁴⁵⁶⁷⁸⁹][⁰¹²³⁴⁵⁶⁷⁸⁹]*)"
_TOKEN = re.compile(
    rf"""(?P<number>(?<![\w#^_])(?<!\w-)(?<!\d[.,])(?!0\d)(?P<digits>{NUMBER})(?P<e>[eE][-+]?\d+)?(?P<power>{_POWER})?(?![\w⁻]))
    |(?P<operator>[·×÷/+−])|(?P<open>\()|(?P<close>\))|(?P<root>√)|(?P<log>\bl(?:n|og)\b)|(?P<raised>{_POWER})
    |(?P<equal>[=≈])|(?P<verb>,?\s(?:which\s)?(?:is|are|makes?|comes?(?:\sto)?)\s(?:about\s)?)|(?P<space>\s+)|(?P<other>\w+|.)""",
    re.S | re.X,
)
_VERBS = r"(?:which|is|are|makes?|comes?)\b"
_UNIT = re.compile(
    rf"\s?(?!{_VERBS})(?P<unit>{'|'.join(sorted(FACTORS, key=len, reverse=True))}|[A-Za-zµ]{{2,}})(?:/s)?(?![\w^])"
)


#: What stands between the sides of an equation.
_EQUAL = "equal", "verb"


class _Token(NamedTuple):
    """A number with its unit, an operator, a bracket, or something else, and where it stands."""

    kind: str
    text: str
    start: int
    end: int
    value: float = 0.0
    factor: float = 1.0
    #: Half of the value of the last digit.
    half: float = 0.0


def equations(text: str) -> Iterator[tuple[int, int, bool]]:
    """Where each equation of a text begins and ends, and whether it is true; LaTeX goes through :func:`plain` first.

    With a verb for the equals sign, as in `48 · 15/16 is 45`, only true ones are found: the words around it may belong to it,
    as in `half of 1/1024, which is 0.05 %`.
    """
    tokens = list(_tokens(text))
    for place, token in enumerate(tokens):
        if token.kind not in _EQUAL:
            continue
        left, right = _before(tokens, place, text), _after(tokens, place, text)
        computed = any(part.kind in ("operator", "root", "log") for part in [*left, *right])
        if not left or not right or not computed:
            continue
        with suppress(_NoValue, ArithmeticError, ValueError):
            true = _agree(left, right, ABOUT if token.text == "≈" else 0.0)
            if true or token.kind == "equal":
                yield left[0].start, right[-1].end, true


def plain(latex: str) -> str:
    """The numbers and operations of LaTeX as they are written in prose."""
    for pattern, written in _LATEX:
        latex = re.sub(pattern, written, latex)
    return latex


_LATEX = [
    (r"\{,\}", ","), (r"\\[,;:! ]", ""), (r"\\(?:cdot|times)\b", "·"), (r"\\div\b", "÷"), (r"\\approx\b", "≈"),
    (r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))"), (r"\\sqrt\{([^{}]*)\}", r"√(\1)"),
    (r"\\(ln|log)\b", r"\1 "), (r"\\(?:text|mathrm)\{([^{}]*)\}", r"\1"), ("-", "−"),
]  # fmt: skip


class _NoValue(Exception):
    """What is left of a side is no expression of numbers."""


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        assert found is not None  # the last alternative is any character
        kind, place = found.lastgroup or "", found.end()
        if found["number"]:
            digits = found["digits"]
            exponent = int(found["e"][1:]) if found["e"] else 0
            power = int(found["power"].translate(RAISED)) if found["power"] else 1
            base = float(digits.replace(",", "")) * 10.0**exponent
            half = 0.5 * 10.0 ** (exponent - len(digits.partition(".")[2]))
            unit = _UNIT.match(text, place)
            place = unit.end() if unit else place
            factor = FACTORS.get(unit["unit"], 1.0) if unit else 1.0
            yield _Token("number", found[0], found.start(), place, base**power, factor, half if power == 1 else 0.0)
        elif kind != "space":
            yield _Token(kind, found[0], found.start(), place)


def _before(tokens: list[_Token], place: int, text: str) -> list[_Token]:
    """The expression that ends before a place; empty if there is none, or if it goes on with something unknown."""
    depth, first = 0, place
    while first and tokens[first - 1].kind not in (*_EQUAL, "other"):
        token = tokens[first - 1]
        depth += (token.kind == "close") - (token.kind == "open")
        # Two numbers beside each other are not one expression.
        if depth < 0 or (
            first < place and token.kind == "number" and tokens[first].kind in ("number", "open", "root", "log")
        ):
            break
        first -= 1
    run = tokens[first:place]
    joined = (
        bool(run)
        and run[0].start > 0
        and not text[run[0].start - 1].isspace()
        and text[run[0].start - 1] not in "(*,:;$|"
    )
    return [] if not run or run[0].kind in ("operator", "raised") or joined else run


def _after(tokens: list[_Token], place: int, text: str) -> list[_Token]:
    """The expression that begins behind a place; empty if there is none, or if it goes on with something unknown."""
    depth, end = 0, place + 1
    while end < len(tokens) and tokens[end].kind not in (*_EQUAL, "other"):
        token = tokens[end]
        depth += (token.kind == "open") - (token.kind == "close")
        if depth < 0 or (
            end > place + 1
            and tokens[end - 1].kind in ("number", "close")
            and token.kind in ("number", "open", "root", "log")
        ):
            break
        end += 1
    run = tokens[place + 1 : end]
    joined = bool(run) and bool(re.match(r"[\w^_]", text[run[-1].end :]))
    return [] if not run or run[-1].kind == "operator" or joined else run


def _agree(left: list[_Token], right: list[_Token], about: float) -> bool:
    """Whether both sides are equal to the digits of one that is a single number, with all units or without them."""
    for ours, theirs in ((False, False), (True, True), (False, True), (True, False)):
        a, b = _worth(left, ours), _worth(right, theirs)
        half = max(_half(left, a), _half(right, b), abs(b) * max(about, 1e-9))
        if abs(a - b) <= half * (1 + 1e-9):
            return True
    return False


def _half(side: list[_Token], value: float) -> float:
    """Half of the last digit of a side that is one number, perhaps with a power of ten; else nothing."""
    rest = side[1:]
    single = not rest or (len(rest) == 2 and rest[0].text in "·×" and rest[1].text.startswith("10"))
    known = side[0].kind == "number" and single and side[0].value
    return abs(side[0].half * value / side[0].value) if known else 0.0


def _worth(side: list[_Token], units: bool) -> float:
    """The value of an expression; raises _NoValue if it has none."""
    rest = list(side)
    value = _sum(rest, units)
    if rest:
        raise _NoValue
    return value


def _sum(rest: list[_Token], units: bool) -> float:
    value = _product(rest, units)
    while rest and rest[0].text in "+−":
        sign = 1 if rest.pop(0).text == "+" else -1
        value += sign * _product(rest, units)
    return value


def _product(rest: list[_Token], units: bool) -> float:
    value = _factor(rest, units)
    while rest and rest[0].text in "·×÷/":
        over = rest.pop(0).text in "÷/"
        factor = _factor(rest, units)
        value = value / factor if over else value * factor
    return value


def _factor(rest: list[_Token], units: bool) -> float:
    if not rest:
        raise _NoValue
    token = rest.pop(0)
    if token.kind == "number":
        return token.value * (token.factor if units else 1.0)
    if token.kind == "root":
        return math.sqrt(_factor(rest, units))
    if token.kind == "log":
        return math.log(_factor(rest, units))
    if token.text == "−":
        return -_factor(rest, units)
    if token.kind != "open":
        raise _NoValue
    value = _sum(rest, units)
    if not rest or rest.pop(0).kind != "close":
        raise _NoValue
    return float(value ** int(rest.pop(0).text.translate(RAISED))) if rest and rest[0].kind == "raised" else value
