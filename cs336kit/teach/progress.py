"""Progress of cells that take long: shown to a reader in JupyterLab or at a terminal, and never stored with a lesson."""

import html
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")
#: Seconds between two updates: often enough to look alive, and rarely enough to cost nothing.
_PAUSE = 0.2


def progress(iterable: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """Iterate over `iterable`, and show how far it is while somebody is watching; the display disappears at the end.

    label: what is counted, such as "steps". total: how many items will be taken, if `iterable` has no length or has more.
    Nothing is shown, and so nothing is stored, when a lesson is verified or refreshed, or when output goes to a file.
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    if "JPY_SESSION_NAME" in os.environ:
        # A Jupyter server gives its kernels the path of their notebook in this variable; nbclient and nbval do not.
        yield from _in_a_notebook(iterable, label, total)
    elif sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(iterable, desc=label, total=total, leave=False, dynamic_ncols=True)
    else:
        yield from iterable


def _in_a_notebook(iterable: Iterable[T], label: str, total: int | None) -> Iterator[T]:
    """A bar that is updated in place. tqdm's own bar for notebooks is a widget, and a saved copy would keep a dead one."""
    from IPython.display import display

    shown = display(_bar(label, 0, total), raw=True, display_id=True)
    drawn = time.monotonic()
    try:
        for done, item in enumerate(iterable, start=1):
            yield item
            if shown is not None and time.monotonic() - drawn >= _PAUSE:
                shown.update(_bar(label, done, total), raw=True)
                drawn = time.monotonic()
    finally:
        # Also when the caller stops early.
        if shown is not None:
            shown.update({"text/plain": ""}, raw=True)


def _bar(label: str, done: int, total: int | None) -> dict[str, str]:
    text = f"{label}: {done:,}" + (f" of {total:,}" if total is not None else "")
    limits = f' value="{done}" max="{total}"' if total is not None else ""
    return {"text/html": f"<progress{limits}></progress> {html.escape(text)}", "text/plain": text}
