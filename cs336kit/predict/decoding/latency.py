"""One token on one accelerator: a lower and an upper bound on its time, and the batch from which on it is compute-bound."""

from cs336kit.predict.checks import finite_results, positive_int
from cs336kit.predict.decoding.bounds import Bounds, token_bounds
from cs336kit.predict.decoding.load import LARGEST_BATCH, Load, chip_of, settled_load
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.training import largest
from cs336kit.predict.transformer import TransformerConfig, check_config


@finite_results()
def decode_bounds(
    config: TransformerConfig, *, accelerator: str | Accelerator, batch: int = 1, cached: int, weights: str | None = None,
    cache: str = "bf16", count: int = 1,
) -> Bounds:  # fmt: skip
    """Seconds of one decoding step: one new token for each of `batch` sequences with `cached` tokens in the cache of each.

    - `least`: weights and cache are read once, while the chip computes; the longer of the two counts.
    - `most`: every operation reads and writes its tensors, and nothing overlaps.
    - `weights` and `cache`: types as served, WEIGHT_TYPES and CACHE_TYPES; products run in fp8 for fp8 weights if the chip can.
    - `count`: accelerators that divide every layer.

    Both bounds are at the datasheet's rates, with the FLOPs and bytes of `predict.program(phase="decode")`. Tokens choose the
    experts of a mixture at random, and as many experts are read as that is on average. Where tokens agree more, fewer are
    read, and a step may be faster than both bounds.
    """
    q, what = _asked(config, accelerator, cached, weights, cache, count)
    return token_bounds(q, what, positive_int("batch", batch))


def critical_batch(
    config: TransformerConfig,
    *,
    accelerator: str | Accelerator,
    cached: int = 1,
    weights: str | None = None,
    cache: str = "bf16",
    count: int = 1,
) -> int | None:
    """The smallest batch at which a decoding step computes for at least as long as it reads weights and cache.

    With `cached=1` the cache hardly counts: it is where reading the weights takes as long as the matrix products. Each sequence
    brings a cache of its own, so with a long one there may be no batch that is large enough: then it is None.
    """
    q, what = _asked(config, accelerator, cached, weights, cache, count)

    def reads(batch: int) -> bool:
        return _reads_longer(token_bounds(q, what, batch), what)

    below = largest(reads, LARGEST_BATCH)
    return None if below >= LARGEST_BATCH else below + 1


def _reads_longer(bounds: Bounds, what: Accelerator) -> bool:
    return bounds.bytes / what.bandwidth > bounds.compute


def _asked(
    config: TransformerConfig, accelerator: str | Accelerator, tokens: int, weights: str | None, cache: str, count: int
) -> tuple[Load, Accelerator]:  # fmt: skip
    """The load whose cache holds so many tokens, and a new one."""
    check_config(config)
    q = settled_load(
        Load(
            config, accelerator=accelerator, prompt=positive_int("tokens", tokens), output=1, weights=weights, cache=cache,
            count=count,
        )
    )  # fmt: skip
    return q, chip_of(q)[0]
