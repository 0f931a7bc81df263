"""One call of an answer: what it raises as a sentence, and everything that the judge uses restored after it."""

import _thread
import operator
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

#: Whether this process was forked from the reader's to run an answer.
forked = False


class Failed(Exception):
    """The call returned nothing that can be judged; the text continues a sentence that begins with the call."""


class TooLong(BaseException):
    """Raised by whoever limits a call further; no Exception, so that an `except Exception` in the answer does not swallow it."""


class NoAutograd(BaseException):
    """Torch had started threads for backward passes, which a forked process does not have, so it refuses to run any there."""


def attempt(function: Callable, args: tuple, restore: Callable[[], None]) -> Any:
    """Call `function`; raise Failed with a sentence when it raises, takes different arguments or leaves a thread behind."""
    threads = _thread._count
    before = threads()
    try:
        result = function(*args)
    except (KeyboardInterrupt, TooLong):
        raise
    except BaseException as error:
        restore()
        if forked and isinstance(error, RuntimeError) and not _has_autograd():
            raise NoAutograd from None
        raise Failed(f"raised {type(error).__name__}: {_text(error)[:200]}{_line(error, function)}") from None
    finally:
        restore()
    if threads() > before:  # which could change what judges the result, while it is judged
        raise Failed("left a thread running: end it before you return.")
    return result


def _has_autograd() -> bool:
    """Whether a backward pass runs in this process."""
    try:
        sys.modules["torch"].ones(1, requires_grad=True).sum().backward()
    except RuntimeError:
        return False
    except KeyError:  # torch was not imported
        pass
    return True


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split()) or "no message"
    except Exception:
        return "its message cannot be shown"


def _line(error: BaseException, function: object) -> str:
    """Where in the answer the error happened, as the line number that Jupyter shows."""
    code = getattr(function, "__code__", None)
    trace, found = error.__traceback__, None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            found = trace.tb_lineno - code.co_firstlineno + 1
        trace = trace.tb_next
    return f" (line {found} of your function)" if found else ""


#: Modules that the judge uses, besides the kit's own.
_USED = {"builtins", "copy", "inspect", "math", "operator", "os", "re", "reprlib", "torch"}


def keeper() -> Callable[[], None]:
    """A function that restores what the judge uses, whatever an answer may have changed in it since."""
    owners: list = [m for name, m in sys.modules.items() if name.startswith("cs336") or name in _USED]
    own = {id(m) for m in owners if m.__name__.startswith(__package__)}
    # Classes written in Python, with whose methods values are compared; those in C cannot be changed.
    kinds = {v for m in owners if id(m) in own for v in vars(m).values() if isinstance(v, type) and _of_the_judge(v)}
    torch = sys.modules.get("torch")
    kinds |= {Fraction, *([torch.Tensor, torch.nn.Parameter] if torch else [])}
    # Each with its names, a copy of them, and how one is set and deleted. What was added to the judge's own modules or to
    # classes is removed; other modules gain names by lazy imports.
    places = []
    for owner in [*owners, *kinds]:
        kind = type if isinstance(owner, type) else object
        put, drop, strict = kind.__setattr__, kind.__delattr__, kind is type or id(owner) in own
        places.append((owner, vars(owner), dict(vars(owner)), put, drop, strict))
    missing, size, every, pairs, same = object(), len, all, map, operator.is_

    # Every name used below is a local or a method of a dict: the answer may have replaced any other.
    def untouched(now: dict[str, Any], before: dict[str, Any]) -> bool:
        names = size(now) == size(before) and every(pairs(same, now, before))
        return names and every(pairs(same, now.values(), before.values()))

    def restore() -> None:
        for owner, now, before, put, drop, strict in places:
            if untouched(now, before):  # without a Python loop: there are thousands of names, after each call
                continue
            for name, value in before.items():
                if now.get(name, missing) is not value:
                    put(owner, name, value)
            for name in [*now] if strict else ():
                if name not in before:
                    drop(owner, name)

    return restore


def _of_the_judge(kind: type) -> bool:
    return kind.__module__.startswith(__package__)
