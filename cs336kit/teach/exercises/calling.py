"""Call a learner's function: whatever happens in there becomes a sentence."""

import re
import reprlib
import signal
import threading
from contextlib import contextmanager

#: Seconds after which a call is given up: an endless loop is a usual mistake.
LIMIT = 10


class Failed(Exception):
    """The call gave no value; the text continues a sentence that begins with the call."""


class TooLong(BaseException):
    """Not an Exception, so that an `except Exception` inside the answer does not swallow it."""


class _Short(reprlib.Repr):
    def __init__(self):
        super().__init__()
        self.maxstring = self.maxother = 160
        self.maxlong = 60
        self.maxtuple = self.maxlist = self.maxdict = 12


def shorten(value) -> str:
    """A short repr of any value, even of one whose own repr fails or never ends."""
    try:
        with limit(2):
            return re.sub(r" at 0x[0-9a-f]+", "", " ".join(_Short().repr(value).split()))
    except (Exception, TooLong):
        return f"<{type(value).__name__} that cannot be shown>"


def call(function, args: tuple, kwargs: dict):
    """Call `function`; raise Failed with a sentence when it raises, never ends, or asks for other arguments."""
    try:
        with limit(LIMIT):
            return function(*args, **kwargs)
    except TooLong:
        raise Failed(f"did not return within {LIMIT} seconds: is there a loop that never ends?") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = " ".join(str(error).split()) or "no message"
        raise Failed(f"raised {type(error).__name__}: {text[:200]}{_line(error, function)}") from None


def _line(error: BaseException, function) -> str:
    """Where in the answer itself it happened, as the line number that Jupyter can show."""
    code = getattr(function, "__code__", None)
    trace, found = error.__traceback__, None
    while trace is not None:
        if code is not None and trace.tb_frame.f_code is code:
            found = trace.tb_lineno - code.co_firstlineno + 1
        trace = trace.tb_next
    return f" (line {found} of your function)" if found else ""


@contextmanager
def limit(seconds: int):
    """Interrupt the block after `seconds`, where the system has an alarm and this is the main thread."""
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum, frame):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    remaining, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining)
        signal.signal(signal.SIGALRM, before)
