"""Drills of a minute: the reader says what an expression gives, and sees at once whether it does, with a picture."""

import ast
from typing import Any

from cs336kit.teach import figures
from cs336kit.teach.figures.style import Figure

#: Elements of the largest tensor, or strip, that is still drawn.
DRAWN = 40


def drill(expression: str, guess: Any, **names: Any) -> None:
    """Print whether the guess is what the expression gives, and draw the tensor that it is about.

    expression: code with the given names, torch and the functions of einops, whose result is a number, numbers in brackets
    (a shape, strides, a tensor) or a bool, which is guessed as "yes" or "no". guess: ``...`` for none. An expression
    with a pattern draws the axes before and after, any other one the strip.
    """
    import einops
    import torch
    from IPython.display import display

    known = {**vars(einops), "torch": torch, **names}
    result = _plain(eval(expression, known))
    given = _plain({"yes": True, "no": False}.get(guess, guess) if isinstance(guess, str) else guess)
    if given is ... or (isinstance(given, tuple) and ... in given):
        print(f"{expression}: waiting for your guess in place of the ...")
    elif _kind(given) != _kind(result):
        print(f"{expression} asks for {_kind(result)}, and your guess {guess!r} is {_kind(given)}.")
    else:
        print(f"{expression}: " + ("right, " if given == result else f"not {_said(given)} but ") + _said(result))
        if picture := _picture(expression, known):
            display(picture)


def _plain(value: Any) -> Any:
    """A tensor or a list as tuples, and a number of torch as Python's."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return '"yes" or "no"'
    if isinstance(value, tuple):
        inner = _kind(value[0]) if value else "a number"
        return f"{len(value)} in brackets, each {inner}"
    if isinstance(value, (int, float)):
        return "a number"
    return "a word" if isinstance(value, str) else f"a {type(value).__name__}"


def _said(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _picture(expression: str, known: dict[str, Any]) -> Figure | None:
    """The axes before and after a pattern; else the strip of the longest part of the expression that is a tensor."""
    nodes = list(ast.walk(ast.parse(expression)))
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        for place, pattern in enumerate(call.args):
            if isinstance(pattern, ast.Constant) and "->" in str(pattern.value):
                return _axes(call, str(pattern.value), call.args[:place], known)
    kinds = (ast.Call, ast.Attribute, ast.Subscript, ast.Name)
    for part in sorted({ast.unparse(node) for node in nodes if isinstance(node, kinds)}, key=len, reverse=True):
        tensor = eval(part, known)
        if hasattr(tensor, "untyped_storage"):
            strip = tensor.new_empty(0).set_(tensor.untyped_storage())
            drawn = tensor.ndim in (1, 2) and max(len(strip), tensor.numel()) <= DRAWN
            view = ("tensor", tensor.shape, tensor.stride(), tensor.storage_offset())
            return figures.strided(strip.tolist(), [view]) if drawn else None
    return None


def _axes(call: ast.Call, pattern: str, given: list[ast.expr], known: dict[str, Any]) -> Figure | None:
    """What goes into a pattern and what comes out; elements that only move keep the color of the first axis."""
    before, after = pattern.split("->")
    operands = {ast.unparse(node): eval(ast.unparse(node), known) for node in given}
    result = eval(ast.unparse(call), known)
    tensors = [*operands.values(), result]
    if max(tensor.ndim for tensor in tensors) > 3 or max(tensor.numel() for tensor in tensors) > DRAWN:
        return None
    panels: dict[str, tuple] = {
        name: (names, tensor) for (name, tensor), names in zip(operands.items(), before.split(","), strict=True)
    } | {pattern: (after, result)}
    if ast.unparse(call.func).endswith(("rearrange", "repeat")):
        name, tensor = next(iter(operands.items()))
        first = tensor.new_tensor(range(len(tensor))).view(-1, *[1] * (tensor.ndim - 1)).expand_as(tensor)
        moved = eval(ast.unparse(call), {**known, name: first})
        panels = {name: (before, tensor, first), pattern: (after, result, moved)}
    return figures.named_axes(panels)
