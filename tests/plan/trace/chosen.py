"""Of what is traced and run for many architectures, `make test` takes a few of each kind, and `make proof` all others."""

from collections.abc import Iterable
from typing import Any

import pytest

#: Dense, latents and a mixture, a state space, convolutions and a mixture; one from before Llama and linear attention are among
#: the caches that are counted by hand, and windows among the files with more than text.
QUICK = {"llama", "deepseek_v3", "mamba2", "lfm2_moe"}


def few_first(names: Iterable[str]) -> list[Any]:
    """The names as parameters, those that are not quick with the mark of `make proof`."""
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.proof) for name in names]
