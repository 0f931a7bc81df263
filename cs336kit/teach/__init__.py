"""What the lessons call: comparison tables, figures, explorers, exercises, and the ledger of claims."""

from cs336kit import _needs_torch as _needs_torch
from cs336kit.teach import exercises, explorers, figures
from cs336kit.teach.comparison import compare
from cs336kit.teach.content import named
from cs336kit.teach.devices import on_gpu
from cs336kit.teach.drills import drill
from cs336kit.teach.folding import folded
from cs336kit.teach.numbers import gib
from cs336kit.teach.predictions import Revealed, calibration, first_guess, reveal
from cs336kit.teach.progress import progress
from cs336kit.teach.side_by_side import side_by_side
from cs336kit.teach.tables import Table, table
from cs336kit.teach.traps import expect

__all__ = [
    "Revealed",
    "Table",
    "calibration",
    "claims",
    "compare",
    "config_file",
    "drill",
    "exercises",
    "expect",
    "explorers",
    "figures",
    "first_guess",
    "folded",
    "gib",
    "on_gpu",
    "progress",
    "reveal",
    "side_by_side",
    "table",
]

#: Of the texts that several lessons share: name → where it is.
_SHARED = {"claims": "claims:claims", "config_file": "configs:config_file"}


def __getattr__(name: str) -> object:
    if name not in _SHARED:
        raise AttributeError(f"cs336kit.teach has no {name!r}")
    value = globals()[name] = named(_SHARED[name])
    return value


def __dir__() -> list[str]:
    return list(__all__)
