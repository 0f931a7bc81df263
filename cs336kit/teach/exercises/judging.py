"""Compare two answers, and say in words how they differ."""

import math
import re
import reprlib
from fractions import Fraction
from typing import Any


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 160
        self.maxlong = 60
        self.maxtuple = self.maxlist = self.maxdict = 12

    def repr1(self, value: Any, level: int) -> str:
        if _is_tensor(value) and value.numel() > 6:
            return f"a tensor of shape {tuple(value.shape)}"
        return super().repr1(value, level)


def shorten(value: object) -> str:
    """A short repr of any value, even of one whose own repr fails."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", " ".join(_Short().repr(value).split()))
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


def difference(given: Any, expected: Any, tolerance: float) -> str | None:
    """None when `given` equals `expected`, else the rest of a sentence that begins ``for this case``.

    Numbers are compared with a relative tolerance, floating-point tensors with one relative to their largest element,
    tensors by shape and dtype too, sequences and mappings element by element; with a tolerance of 0, an int has to be an int.
    The first part that differs is named if it is one of a mapping, or if the two look the same when they are printed. Values
    of classes that the answer made itself are read without their own methods, so they cannot claim to be equal. Only lists,
    tuples and mappings are iterated over, so an endless iterator cannot hang the check.
    """
    try:
        return _difference(given, expected, tolerance)
    except Exception as error:
        return f"your answer {shorten(given)} cannot be compared with {shorten(expected)} ({type(error).__name__})"


def _difference(given: Any, expected: Any, tolerance: float) -> str | None:
    if _is_tensor(expected):
        return _tensor_difference(given, expected, tolerance)
    given = plain(given)
    if isinstance(expected, (tuple, list)):
        given = given.tolist() if _is_tensor(given) else given
        if not isinstance(given, (tuple, list)):
            return _wrong_type(given, expected)
        if len(given) != len(expected):
            return f"you returned {len(given)} values, {shorten(given)}, but {len(expected)} are right: {shorten(expected)}"
        same = all(_difference(g, e, tolerance) is None for g, e in zip(given, expected, strict=True))
        if not same and shorten(given) == shorten(expected):
            pairs = enumerate(zip(given, expected, strict=True), start=1)
            return _part_difference({f"item {i} of {len(given)}": pair for i, pair in pairs}, tolerance)
    elif isinstance(expected, dict):
        if not isinstance(given, dict):
            return _wrong_type(given, expected)
        if set(given) != set(expected):
            return f"the keys are {shorten(sorted(given, key=str))}, but should be {shorten(sorted(expected, key=str))}"
        return _part_difference({repr(key): (given[key], expected[key]) for key in expected}, tolerance)
    elif type(expected) in (int, float):
        if type(given) not in (int, float, Fraction) or (
            tolerance == 0 and type(given) is float and type(expected) is int
        ):
            return _wrong_type(given, expected)
        same = _close(given, expected, tolerance)
    else:
        if type(given) is not type(expected):
            return _wrong_type(given, expected)
        same = bool(given == expected)
    return None if same else f"you returned {shorten(given)}, but {shorten(expected)} is right"


def _part_difference(parts: dict[str, tuple[Any, Any]], tolerance: float) -> str | None:
    """The difference of the first part that differs, with its name, and whether it is the only one."""
    wrong = {name: text for name, pair in parts.items() if (text := _difference(*pair, tolerance))}
    if not wrong:
        return None
    name, text = next(iter(wrong.items()))
    only = "only " if len(wrong) == 1 < len(parts) else ""
    return f"{only}{name} is not right: {re.sub('^you returned', 'you have', text)}"


#: How a value of a subclass is read without the subclass's own methods. Looked up here, before any answer runs.
_READ: Any = (
    (int, int.__index__), (float, float.__float__), (tuple, tuple.__iter__), (list, list.__iter__), (dict, dict.items),
)  # fmt: skip


def plain(value: Any) -> Any:
    """The value as a plain int, float, bool, tuple, list or dict, if it is a subclass of one, NumPy's, or a scalar tensor."""
    if (_is_tensor(value) and value.ndim == 0) or type(value).__module__ == "numpy":
        return value.tolist()
    for kind, read in _READ:
        if isinstance(value, kind) and type(value) not in (kind, bool):
            return kind(read(value))
    return value


def whole(value: Any) -> Any:
    """The next whole number, where a fraction is as good an answer; as it is if it is not above 1, or no number."""
    number = plain(value)
    # A product of floats may lie just above the whole number that it is.
    return math.ceil(number * (1 - 1e-9)) if type(number) in (int, float) and 1 < number < math.inf else value


def _tensor_difference(given: Any, expected: Any, tolerance: float) -> str | None:
    import torch

    if not _is_tensor(given):
        return _wrong_type(given, expected)
    if tuple(given.shape) != tuple(expected.shape):
        return f"you returned a tensor of shape {tuple(given.shape)}, but {tuple(expected.shape)} is right"
    if given.dtype != expected.dtype:
        return f"you returned a tensor of {given.dtype}, but {expected.dtype} is right"
    if torch.equal(given, expected):
        return None
    differs = given != expected
    if expected.is_floating_point() and tolerance:
        finite = expected.detach()[expected.isfinite()]
        scale = finite.abs().max().item() if finite.numel() else 0.0
        differs = ~torch.isclose(given, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if not differs.any():
            return None
    where = differs.nonzero()[0].tolist()
    got, want = given[tuple(where)].item(), expected[tuple(where)].item()
    return f"the first different element is at {where}: you have {got!r}, but {want!r} is right"


def _wrong_type(given: Any, expected: Any) -> str:
    if given is None or expected is None:
        return f"you returned {shorten(given)}, but {shorten(expected)} is right"
    given_type, wanted_type = (_article(type(v).__name__) for v in (given, expected))
    return f"you returned {shorten(given)}, {given_type}; {wanted_type} is expected"


def _article(name: str) -> str:
    return ("an " if name[0].lower() in "aeiou" else "a ") + name


def _close(given: Any, expected: Any, tolerance: float) -> bool:
    if math.isnan(expected):
        return math.isnan(given)
    if isinstance(given, int) and isinstance(expected, int):
        return given == expected
    # math.isclose turns whole numbers into floats, so 2**53 + 1 would equal 2.0**53.
    return given == expected or (tolerance > 0 and math.isclose(given, expected, rel_tol=tolerance))


def _is_tensor(value: object) -> bool:
    """Whether this is a tensor or a parameter, and not a subclass, which could answer a comparison as it likes."""
    return (type(value).__module__, type(value).__name__) in (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))
