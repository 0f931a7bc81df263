"""A progress bar that is a bar on a terminal and a few whole lines in a log."""

import sys
from typing import TextIO

from tqdm import tqdm


class ProgressBar:
    """Count `total` units of work; on a terminal as one moving line, elsewhere as one line per tenth of the work.

    A bar redraws its line with carriage returns, which a log keeps as one endless line; so a stream that is no terminal
    gets lines that end, at 10 %, 20 %, … Those depend on the count alone, never on the clock.
    `update(n, loss=…)` adds `n` and shows the facts given. Use it in a `with`, or call `close()`.
    """

    def __init__(self, total: int, *, unit: str, label: str = "", file: TextIO | None = None):
        self.total, self.unit, self.label = total, unit, label
        self.file = sys.stderr if file is None else file
        self.done = 0
        self.bar = None
        if self.file.isatty():
            self.bar = tqdm(
                total=total, unit=f" {unit}", desc=label, file=self.file, mininterval=0.5, dynamic_ncols=True
            )

    def update(self, n: int = 1, **facts: float) -> None:
        """Add `n` units done; `facts` (name=number) stand behind the count."""
        before, self.done = self.done, self.done + n
        shown = " · ".join(f"{name} {value:.4g}" for name, value in facts.items())
        if self.bar is not None:
            self.bar.set_postfix_str(shown, refresh=False)
            self.bar.update(n)
        elif not self.total:
            return
        elif self.done * 10 // self.total > before * 10 // self.total:
            label = f"{self.label} " if self.label else ""
            line = f"{label}{self.done:,}/{self.total:,} {self.unit} ({self.done * 100 // self.total} %)"
            print(line + (f" · {shown}" if shown else ""), file=self.file, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
