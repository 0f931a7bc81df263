"""One question that every instrument asks first: is this a function that can be run?"""

import inspect
from collections.abc import Callable


def runnable(instrument: str, function: object) -> Callable[[], object]:
    """Return `function` if it can be called without arguments; otherwise raise TypeError with what to write instead."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(
            f"{instrument} runs a function, such as lambda: x @ w, but got a {kind}: put 'lambda:' before it."
        )
    try:
        # A module's own signature takes anything; its forward says what it needs.
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):  # some built-in functions have none
        return function
    try:
        signature.bind()
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{instrument} calls the function without arguments, but {name}{signature} needs some: "
            f"write lambda: {name if name != '<lambda>' else 'f'}(…)."
        ) from None
    return function
