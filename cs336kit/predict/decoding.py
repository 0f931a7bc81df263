"""A token on one accelerator: between which bounds its time lies, and from which batch on it computes."""

from cs336kit.predict._common.checks import finite_results, positive_int
from cs336kit.predict._planner.chip import Chip
from cs336kit.predict._serving.bounds import Bounds, token_bounds
from cs336kit.predict._serving.question import LARGEST_BATCH, ServingQuestion, chip_of, settled
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.training import largest
from cs336kit.predict.transformer import TransformerConfig, check_config


@finite_results()
def decode_bounds(
    config: TransformerConfig, *, accelerator: str | Accelerator, batch: int = 1, cached: int, weights: str | None = None,
    cache: str = "bf16", count: int = 1,
) -> Bounds:  # fmt: skip
    """Seconds of one step of decoding, one new token for each of `batch` sequences beside `cached` tokens of each.

    `least`: weights and cache read once, or computed, whichever takes longer; `most`: every operation's tensors, and nothing
    overlaps. Both at the datasheet's rates, with the FLOPs and bytes of `predict.program(phase="decode")`. `weights` and
    `cache`: types as `ServingQuestion` has them; products run in fp8 for fp8 weights where the chip can. `count`
    accelerators divide every layer. Tokens choose the experts of a mixture by chance, and as many of them are read as that is
    on average: where they agree more, fewer are, and a step may be quicker than both.
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
    """The smallest batch at which a step of decoding computes for as long as it reads weights and cache.

    With `cached=1` the cache hardly counts: it is where the weights' reading takes as long as the products. Each sequence
    brings a cache of its own, so that with a long one no batch is large enough: then it is None.
    """
    q, what = _asked(config, accelerator, cached, weights, cache, count)

    def reads(batch: int) -> bool:
        return _reads_longer(token_bounds(q, what, batch), what)

    below = largest(reads, LARGEST_BATCH)
    return None if below >= LARGEST_BATCH else below + 1


def _reads_longer(bounds: Bounds, what: Chip) -> bool:
    assert what.bandwidth
    return bounds.bytes / what.bandwidth > bounds.compute


def _asked(
    config: TransformerConfig, accelerator: str | Accelerator, tokens: int, weights: str | None, cache: str, count: int
) -> tuple[ServingQuestion, Chip]:  # fmt: skip
    """The question whose cache holds so many tokens, and a new one."""
    check_config(config)
    question = ServingQuestion(
        config, accelerator=accelerator, prompt=positive_int("tokens", tokens), output=1, weights=weights, cache=cache,
        count=count,
    )  # fmt: skip
    q = settled(question)
    return q, chip_of(q)
