"""Count the operations of a plain Python loop, by feeding it numbers that count."""

import math
from collections import Counter
from collections.abc import Callable

from cs336kit.predict import Breakdown


def operations(function: Callable[..., object], *values) -> Breakdown:
    """Run `function(*values)` with every number replaced by one that counts, and return how often each operation ran.

    Nested lists stay lists. Counted: add, subtract, multiply, divide, compare and exp (as `x.exp()`), one FLOP each.
    Left out: what happens to whole numbers that index and loop. Errors: TypeError for what cannot be called.
    """
    if not callable(function):
        raise TypeError(f"measure.operations runs a function on the values, but got {type(function).__name__} first.")
    counts: Counter[str] = Counter()
    function(*(_counting(value, counts) for value in values))
    return Breakdown(dict(counts), unit="FLOPs")


def _counting(value, counts: Counter):
    if isinstance(value, (list, tuple)):
        return [_counting(item, counts) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"measure.operations counts on numbers and nested lists of them, got a {type(value).__name__}: "
            "write x.tolist() for a tensor."
        )
    return Number(float(value), counts)


class Number:
    """A float that notes each operation done to it."""

    def __init__(self, value: float, counts: Counter):
        self.value, self.counts = value, counts

    def _done(self, operation: str, value):
        self.counts[operation] += 1
        return Number(value, self.counts) if operation != "compare" else value

    def __add__(self, other):
        return self._done("add", self.value + float(other))

    def __sub__(self, other):
        return self._done("subtract", self.value - float(other))

    def __mul__(self, other):
        return self._done("multiply", self.value * float(other))

    def __truediv__(self, other):
        return self._done("divide", self.value / float(other))

    def __gt__(self, other):
        return self._done("compare", self.value > float(other))

    def __lt__(self, other):
        return self._done("compare", self.value < float(other))

    def exp(self):
        return self._done("exp", math.exp(self.value))

    __radd__, __rmul__ = __add__, __mul__

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)
