"""How a claim of the ledger is settled: what it says and what a machine computes, side by side; the verdict follows."""

import ast
import importlib
import inspect
import random
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cs336course import claims_page
from cs336course.arithmetic import FACTORS, NUMBER, RAISED, equations
from cs336course.prose import Number, Pool, literals, numbers, values_of
from cs336course.spoilers import WORDS
from cs336kit.lessons.claims import Claim, claims, stored
from cs336kit.predict import FORMATS, MODELS, parameters
from cs336kit.predict.hardware import accelerators


@dataclass(frozen=True)
class Cited:
    """What settles a claim that no machine can: where it can be read, and what stands there."""

    source: str
    says: str


Outcome = tuple[Any, Any] | tuple[Any, Any, Any] | Cited


def settles(id: str) -> Callable[[Callable[[], Outcome]], Callable[[], None]]:
    """Make a function without arguments the test of claim `id`.

    The function returns what is said and what is so: plain values, the second one computed. For a claim that holds with
    a condition it returns three: what is said, what is so where the condition holds, and what is so where it does not.
    The test has the function as `settle` and the claim as `claim`. Errors: ValueError for an id the ledger lacks, and for
    a function that pytest would not run.
    """
    known = {claim.id: claim for claim in claims()}
    if id not in known:
        raise ValueError(f"the ledger has no claim {id!r}: take an id from cs336kit/lessons/claims/<topic>.yml.")

    def as_test(function: Callable[[], Outcome]) -> Callable[[], None]:
        # Else the ledger would count the claim as settled, and no test would have compared its verdict with the outcome.
        if not function.__name__.startswith("test_"):
            raise ValueError(f"{id}: pytest would not run {function.__name__}; call it test_{function.__name__}.")

        @wraps(function)
        def settle() -> Outcome:
            # What a reader is shown does not depend on what drew random numbers before.
            random.seed(0)
            torch.manual_seed(0)
            return function()

        @wraps(function)
        def test() -> None:
            outcome = settle()
            judge(known[id], outcome)
            compare_with_file(known[id], outcome)

        test.claim, test.settle = known[id], settle  # type: ignore[attr-defined]
        return test

    return as_test


def judge(claim: Claim, outcome: Outcome) -> None:
    """Raise AssertionError where the ledger's verdict does not follow from the outcome."""
    __tracebackhide__ = True
    if isinstance(outcome, Cited):
        assert outcome.source and outcome.says, f"{claim.id}: a citation names its source and what stands there."
        return
    said, *computed = outcome
    wanted = 2 if claim.verdict == "holds-with-condition" else 1
    assert len(computed) == wanted, (
        f"{claim.id} is {claim.verdict!r}: return what is said and {wanted} computed value(s), got {len(computed)}."
    )
    for so in computed:
        assert _comparable(said, so), f"{claim.id}: {said!r} and {so!r} cannot be compared; return values of one type."
    equal = [bool(said == so) for so in computed]
    expected = {"holds": [True], "holds-with-condition": [True, False]}.get(claim.verdict, [False])
    assert equal == expected, (
        f"{claim.id} is {claim.verdict!r} in the ledger, but what is said is {said!r} and what is so is "
        f"{' and, without the condition, '.join(map(repr, computed))}. Correct the verdict and its truth, or the test."
    )


def compare_with_file(claim: Claim, outcome: Outcome) -> None:
    """Raise AssertionError where a reader would be shown other values than those that were just computed."""
    __tracebackhide__ = True
    shown, fresh = stored().get(claim.id), claims_page.entry(outcome)
    assert shown and claims_page.same(shown, fresh), (
        f"{claim.id}: {claims_page.FILE.name} says {shown}, and what was just computed is {fresh}. "
        "Is the test right? Then run `cs336kit lessons claims`."
    )


def untied(claim: Claim, settle: Callable[[], Outcome]) -> list[str]:
    """Numbers that only one of a claim and its test has: a number that is typed as said, and one of the claim's own.

    settle: the function under `settles`. If a claim names no number, what is typed as said is an example, and not looked at.
    Of the claim's numbers, those of two digits and more have to stand in the test's module.
    """
    told = _numbers(claim.claim)
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(settle))))
    outcomes = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    found = []
    for said in (outcome.elts[0] for outcome in outcomes):
        typed = not any(isinstance(node, ast.Name | ast.Call) for node in ast.walk(said))
        if told and typed and not _is_one(eval(ast.unparse(said)), told):
            literals = [abs(value) for value in _literals(said) if not _is_one(value, told)]
            found += [f"{value:g} is typed as said, and is not in the claim" for value in literals]
    module = inspect.getmodule(inspect.unwrap(settle))
    assert module is not None
    known = set(_literals(ast.parse(inspect.getsource(module))))
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    known |= {value for text in strings for value in _numbers(text)}  # of its id, and of a citation
    known |= {abs(v) for node in ast.walk(tree) if isinstance(node, ast.BinOp) and (v := _value(node)) is not None}
    for text, value in _written(claim.claim):
        if len(re.sub(r"\D", "", text).lstrip("0")) > 1 and not _is_one(value, known):
            found.append(f"{text} is in the claim, and not in its test")
    return found


def untied_truth(claim: Claim, settle: Callable[[], Outcome]) -> list[Number]:
    """The numbers in a claim's `truth` that are tied to nothing.

    settle: the function under `settles`. A number is tied by its test's module, the claim, the values that readers are shown,
    a true equation in the truth itself, and the kit's tables of accelerators, formats and models.
    """
    module = inspect.getmodule(inspect.unwrap(settle))
    assert module is not None
    shown = stored()[claim.id]
    texts = [claim.claim, str(shown["said"]), *map(str, shown["so"])]
    pool = Pool([*_typed(module), *_tables(), *(value for text in texts for value in values_of(text))])
    equal = [(begin, end) for begin, end, true in equations(claim.truth) if true]
    loose = [number for number in numbers(claim.truth) if number.telling and number not in pool]
    return [number for number in loose if not any(begin <= number.start < end for begin, end in equal)]


@cache
def _typed(module: ModuleType) -> list[tuple[float, str]]:
    return [*literals(ast.parse(inspect.getsource(module)))]


@cache
def _tables() -> list[tuple[float, str]]:
    """The numbers of the kit's tables; peaks also in TFLOP/s."""
    facts = [cell.value for chip in accelerators() for cell in chip.facts.values()]
    peaks = [cell.value for chip in accelerators() for cell in chip.peaks.values()]
    traits = [getattr(f, name, 0) for f in FORMATS.values() for name in ("max", "min_normal", "min_subnormal", "eps")]
    sizes = [size for config in MODELS.values() for size in [*vars(config).values(), parameters(config).total]]
    values = [*facts, *peaks, *(peak / 1e12 for peak in peaks), *traits, *sizes]
    return [(float(value), "") for value in values if isinstance(value, int | float) and value]


def _written(text: str) -> list[tuple[str, float]]:
    """The numbers of a claim, as written and by value: 1,024, 6.3e24, 10⁹; digits of a name (H100, fp16) are none."""
    found = re.finditer(rf"(?<![\w.])({NUMBER})(?:e([-+]?\d+))?([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?", text)
    values = [(m[0], float(m[1].replace(",", "")) * 10.0 ** int(m[2] or 0), m[3]) for m in found]
    return [(text, value ** int(power.translate(RAISED)) if power else value) for text, value, power in values]


def _numbers(text: str) -> set[float]:
    """All numbers that a claim may be said to name: in digits, also within names and formulas, and in words."""
    found = re.finditer(rf"({NUMBER})(?:e([-+]?\d+))?", text.translate(RAISED))
    values = {float(m[1].replace(",", "")) * 10.0 ** int(m[2] or 0) for m in found}
    return values | {value for word in re.findall("[a-z]+", text.lower()) for value in WORDS.get(word, ())}


def _literals(tree: ast.AST) -> list[float]:
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]


def _value(node: ast.expr) -> float | None:
    """What an expression of numbers alone gives."""
    if any(not isinstance(part, ast.BinOp | ast.Constant | ast.operator) for part in ast.walk(node)):
        return None
    try:
        return float(eval(ast.unparse(node)))
    except (ArithmeticError, TypeError, ValueError):  # it is no number, or too large
        return None


def _is_one(value: Any, values: set[float]) -> bool:
    """Whether it is one of the values, perhaps in another unit: 80e9 of "80 GB"."""
    if not isinstance(value, int | float):
        return False
    scales = {1.0, *FACTORS.values()}
    return any(abs(abs(value) - one * scale) <= 1e-9 * abs(value) or abs(abs(value) * scale - one) <= 1e-9 * one
               for one in values for scale in scales)  # fmt: skip


def _comparable(a: object, b: object) -> bool:
    # A list and a tuple, or dicts with different keys, would always differ, and that would settle nothing.
    if isinstance(a, Real) and isinstance(b, Real):
        return isinstance(a, bool) == isinstance(b, bool)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_comparable(a[key], b[key]) for key in a)
    return type(a) is type(b) and type(a).__module__ == "builtins"


def settlements() -> list[Callable[[], None]]:
    """All tests of claims in this folder: each has its `claim` and, as `settle`, the function that computes."""
    modules = [
        importlib.import_module(f"claims.{path.stem}") for path in sorted(Path(__file__).parent.glob("test_*.py"))
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if hasattr(value, "claim") and hasattr(value, "settle")
    ]


def near(value: Any, to: Any, *, relative: float) -> Any:
    """`to` where `value` differs from it by at most that part of it, and `value` itself elsewhere; in lists, each number.

    For rounding errors and for random draws; a comment at the call says why the width is right.
    """
    if isinstance(value, list) and isinstance(to, list) and len(value) == len(to):
        return [near(v, t, relative=relative) for v, t in zip(value, to, strict=True)]
    return to if abs(value - to) <= relative * abs(to) else value


def figures(value: float, digits: int) -> float:
    """The value with so many significant digits, which is how many the claim gives."""
    return float(f"{value:.{digits}g}")


def outcome_of(action: Callable[[], object]) -> str:
    """'runs', or the name of the error that the action raises."""
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "runs"


def native_dropout(x: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Dropout as a GPU runs it, with a mask of one byte an element."""
    return torch.native_dropout(x, p, training)[0]
