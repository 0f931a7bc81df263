"""Explorers with controls to move by hand; a notebook stores a still picture of each, and shows it without a kernel."""

from cs336kit.teach.content import named
from cs336kit.teach.explorers.bits import BitExplorer, bits
from cs336kit.teach.explorers.decoding import decoding
from cs336kit.teach.explorers.memory import memory
from cs336kit.teach.explorers.roofline import roofline
from cs336kit.teach.explorers.strides import strides

__all__ = ["BitExplorer", "bits", "claim_counts", "claims", "decoding", "every_claim", "memory", "roofline", "strides"]

#: Of lesson 21, which shows the ledger with them.
_OF_CLAIMS = ("claim_counts", "claims", "every_claim")


def __getattr__(name: str) -> object:
    if name not in _OF_CLAIMS:
        raise AttributeError(f"there is no explorer {name!r}; there are {', '.join(__all__)}")
    value = globals()[name] = named(f"lesson_21.explorer:{name}")
    return value


def __dir__() -> list[str]:
    return list(__all__)
