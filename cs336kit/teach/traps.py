"""Show a mistake without stopping the lesson: run it, print what Python says, and go on."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def expect(exception: type[Exception], lines: int = 1) -> Iterator[None]:
    """Run a block that must fail, and print ``Type: message`` (the first `lines` lines of it).

    Raises AssertionError when the block does not fail, so that a trap that no longer works is noticed.
    """
    try:
        yield
    except exception as error:
        message = "\n".join(line.rstrip() for line in str(error).strip().splitlines()[:lines])
        for line in f"{type(error).__name__}: {message}".splitlines():
            # Longer lines are broken in the middle of a word: the site shows 88 columns beside its menus on 1,280 pixels.
            print(textwrap.fill(line, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))
    else:
        raise AssertionError(f"this block was expected to raise {exception.__name__}, but it did not")
