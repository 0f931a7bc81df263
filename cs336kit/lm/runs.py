"""What a run needs besides its arithmetic: seeds, the states of the random generators, eval mode, a progress bar."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import numpy as np
import torch
from torch import nn

from cs336kit.predict.checks import boolean, non_negative_int


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators, the last one on the CPU and on every GPU.

    What it does not fix:
    - generators of your own (`torch.Generator`, `numpy.random.default_rng`): seed each where you make it;
    - `DataLoader` workers, whose NumPy seeds are set by `worker_init_fn` and `generator`;
    - the order of additions: another number of threads, another device or another version of torch may round differently,
      and some CUDA kernels add in no fixed order unless `torch.use_deterministic_algorithms(True)` is on;
    - hashes of strings, which Python fixes when it starts (`PYTHONHASHSEED`).

    A seed outside 0 … 2**32 - 1 (NumPy's range) raises ValueError.
    """
    seed = non_negative_int("seed", seed)
    if seed >= 2**32:
        raise ValueError(f"seed must be below 2**32 = {2**32}, because NumPy takes 32 bits; got {seed}.")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # seeds the generators of all CUDA devices too


def rng_state() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's global generators, including those of all GPUs."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": [version, torch.tensor(internal, device="cpu"), gauss],
        "numpy": [kind, torch.tensor(np.asarray(keys).tolist(), device="cpu"), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned. States of GPUs that this machine lacks are ignored.

    An invalid state raises ValueError or another error; some of the generators may then be changed already.
    """
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    if not 0 <= position <= len(keys):  # NumPy would read outside its state and could crash Python
        raise ValueError(f"NumPy's position is {position!r}, and a state has {len(keys)} numbers.")
    np.random.set_state((kind, np.array(keys.tolist(), dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put all modules of the models into eval mode; afterward each is in its former mode, also after an error."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class ProgressBar:
    """Count `total` units of work; on a terminal as one moving line, elsewhere as one line per tenth of the work.

    A bar redraws its line with carriage returns, which a log would keep as one endless line; so a stream that is not a
    terminal gets separate lines at 10 %, 20 %, … They depend only on the count, never on the clock.
    `update(n, loss=…)` adds `n` and shows the given values; with `shown=False` nothing is printed. Use it in a `with`
    statement, or call `close()`.
    """

    def __init__(self, total: int, *, unit: str, label: str = "", file: TextIO | None = None, shown: bool = True):
        self.total, self.unit, self.label, self.shown = total, unit, label, boolean("shown", shown)
        self.file, self.done, self.bar = sys.stderr if file is None else file, 0, None
        if shown and self.file.isatty():
            # Only where somebody is watching: a machine that only measures may lack tqdm.
            from tqdm import tqdm

            self.bar = tqdm(total=total, unit=f" {unit}", desc=label, file=self.file, dynamic_ncols=True)

    def update(self, n: int = 1, **facts: float) -> None:
        """Add `n` finished units; `facts` (name=number) are shown after the count."""
        before, self.done = self.done, self.done + n
        shown = " · ".join(f"{name} {value:.4g}" for name, value in facts.items())
        if self.bar is not None:
            self.bar.set_postfix_str(shown, refresh=False)
            self.bar.update(n)
        elif self.shown and self.total and self.done * 10 // self.total > before * 10 // self.total:
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
