"""Things to move by hand; each has a static twin, so that a stored notebook reads well without a kernel."""

from cs336kit.teach.explorers.bits import BitExplorer, bits
from cs336kit.teach.explorers.strides import strides

__all__ = ["BitExplorer", "bits", "strides"]
