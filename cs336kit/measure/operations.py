"""Count the operations of plain Python code by running it on numbers that record what is done to them."""

import math
import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

from cs336kit.predict import Breakdown


def operations(function: Callable[..., object], *values: Any) -> Breakdown:
    """Run `function(*values)` with every number replaced by a counting one, and return how often each operation ran.

    Nested lists stay lists. Counted: add, subtract, multiply, divide, compare and exp (as `x.exp()`), one FLOP each; -x is
    a subtract, `if x:` a compare. Left out: integers for indices and loops. Errors: TypeError if `function` cannot be
    called, and for anything that would turn a counting number into a plain float, such as math.exp.
    """
    if not callable(function):
        raise TypeError(f"measure.operations runs a function on the values, but got {type(function).__name__} first.")
    counts: Counter[str] = Counter()
    function(*(_counting(value, counts) for value in values))
    return Breakdown(dict(counts), unit="FLOPs")


def _counting(value: object, counts: Counter) -> Any:
    if isinstance(value, (list, tuple)):
        return [_counting(item, counts) for item in value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"measure.operations counts on numbers and nested lists of them, got a {type(value).__name__}: "
            "write x.tolist() for a tensor."
        )
    return Number(float(value), counts)


def _counted(operation: str, function: Callable[[float, float], float | bool], *, swapped: bool = False) -> Callable:
    def method(self: "Number", other: Any) -> Any:
        if not hasattr(other, "__float__"):
            return NotImplemented
        self.counts[operation] += 1
        pair = self.value, other.value if isinstance(other, Number) else float(other)
        result = function(*(pair[::-1] if swapped else pair))
        return result if isinstance(result, bool) else Number(result, self.counts)

    return method


class Number:
    """A float that counts each operation on it."""

    def __init__(self, value: float, counts: Counter):
        self.value, self.counts = value, counts

    __add__ = __radd__ = _counted("add", operator.add)
    __mul__ = __rmul__ = _counted("multiply", operator.mul)
    __sub__ = _counted("subtract", operator.sub)
    __rsub__ = _counted("subtract", operator.sub, swapped=True)
    __truediv__ = _counted("divide", operator.truediv)
    __rtruediv__ = _counted("divide", operator.truediv, swapped=True)
    __gt__ = _counted("compare", operator.gt)
    __lt__ = _counted("compare", operator.lt)
    __ge__ = _counted("compare", operator.ge)
    __le__ = _counted("compare", operator.le)
    __eq__ = _counted("compare", operator.eq)
    __ne__ = _counted("compare", operator.ne)
    __hash__ = None  # type: ignore[assignment] # equal by value, as a list

    def __neg__(self) -> "Number":
        self.counts["subtract"] += 1
        return Number(-self.value, self.counts)

    def __bool__(self) -> bool:
        self.counts["compare"] += 1
        return self.value != 0

    def exp(self) -> "Number":
        self.counts["exp"] += 1
        return Number(math.exp(self.value), self.counts)

    def __float__(self) -> float:
        raise TypeError(
            "a counting number was passed to float() or to a function of math, which would count nothing: write x.exp() for "
            "math.exp(x), and express other functions in its operations."
        )

    def __repr__(self) -> str:
        return repr(self.value)
