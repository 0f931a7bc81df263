"""Explorers with controls to move by hand; a notebook stores a still picture of each, and shows it without a kernel."""

from cs336kit.teach.explorers.bits import BitExplorer, bits
from cs336kit.teach.explorers.claims import claim_counts, claims, every_claim
from cs336kit.teach.explorers.decoding import decoding
from cs336kit.teach.explorers.memory import memory
from cs336kit.teach.explorers.roofline import roofline
from cs336kit.teach.explorers.strides import strides

__all__ = ["BitExplorer", "bits", "claim_counts", "claims", "decoding", "every_claim", "memory", "roofline", "strides"]


def __dir__() -> list[str]:
    return list(__all__)
