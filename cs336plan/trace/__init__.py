"""Any causal language model that transformers can build from a config.json, counted on its own module without running it."""

from cs336plan.trace.result import CacheLayer, Traced
from cs336plan.trace.tracing import traced

__all__ = ["CacheLayer", "Traced", "traced"]
