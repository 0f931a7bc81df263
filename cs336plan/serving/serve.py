"""Serving a model: what weights and cache take, and a lower and an upper bound on the time of a token.

Every number is computed from `predict.program(phase="prefill")` and `(phase="decode")`. A prompt is processed in chunks, as
engines do. The lower bound is a roofline: each pass reads the weights and the cache once and computes meanwhile, and nothing
else takes time, so the longer of the two counts. In the upper bound, nothing overlaps: it is the sum over all operations of
the times to read and write their tensors and to compute. Both use the datasheet's rates, or the share of them that the question
gives as `efficiency`. Left out of both: kernel launches, the latency of links, sampling, the scheduler, kernels that do not
reach bandwidth or peak. So a real step takes longer than the lower bound, and often longer than the upper one.
"""

from collections.abc import Iterator
from dataclasses import replace

from cs336kit.predict.accounting import parameters
from cs336kit.predict.checks import finite_results
from cs336kit.predict.decoding.bounds import answer_seconds, prompt_bounds, token_bounds, visited_experts
from cs336kit.predict.decoding.load import CHUNK, LARGEST_BATCH, chip_of
from cs336kit.predict.decoding.memory import copied
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.training import largest
from cs336plan.answers import Note, plain_values
from cs336plan.serving.advice import serving_advice
from cs336plan.serving.answer import ServingAnswer, memory_fields
from cs336plan.serving.question import ServingQuestion, settled
from cs336plan.serving.schema import ROWS
from cs336plan.serving.text import text


class Served(ServingAnswer):
    """The answer, as text and as plain values."""

    def __str__(self) -> str:
        """The answer as text, in GiB and milliseconds."""
        return text(self)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of `schema.KEYS`."""
        return plain_values(self, ROWS)


@finite_results()
def serve(question: ServingQuestion) -> Served:
    """Answer a question about serving; impossible ones raise a ValueError that says what to change.

    Weights are as the model is published, in bf16, fp16, fp32, or quantized (the matrices of blocks, or of experts alone, with
    their scales). Matrix products run in bf16, or in fp8 for fp8 matrices where the chip has a sourced peak for it. The cache is
    paged. Each token chooses its experts at random. Left out: see the module.
    """
    q = settled(question)
    what, sourced = chip_of(q)
    answer = Served(
        question=q, chip=what, parameters=parameters(q.config).total,
        prefill=prompt_bounds(q, what), tokens=(), batch_for_latency=None,
        facts=(*sourced, *_notes(q)), **memory_fields(q, what),
    )  # fmt: skip
    most = answer.largest_batch
    within = _for_latency(q, what, most)
    batches = _batches(most, q.batch, *(within or ()))
    tokens = tuple((batch, token_bounds(q, what, batch)) for batch in batches)
    advice = () if most else serving_advice(answer)
    answer = replace(answer, tokens=tokens, batch_for_latency=within, advice=advice)
    steady = answer.sustained_batch
    return replace(answer, average=answer_seconds(q, what, steady)) if steady else answer


def _notes(q: ServingQuestion) -> Iterator[Note]:
    """What the numbers take for granted.

    Several accelerators hold the same keys and values; the bounds of a mixture assume a routing, told at the smallest batch that
    could read every expert; and a prompt may not be processed in chunks, or a chunk do more with the tokens before it than read
    their cache.
    """
    c, n = q.config, q.count
    if n > 1 and (c.kv_latent or n > c.kv_heads):
        weights, cache = copied(q)
        kind = "latents copied" if c.kv_latent else "head copied" if c.kv_heads == 1 else "heads copied"
        numbers = {
            "heads": c.kv_heads,
            "each": n // c.kv_heads,
            "count": n,
            "cache_bytes": cache,
            "weight_bytes": weights,
        }
        yield Note(kind, numbers)
    E, k = c.experts, c.experts_per_token
    if k < E:
        every = -(-E // k)
        yield Note("routing", {"chosen": k, "experts": E, "every": every, "read": visited_experts(E, k, every)})
    if (q.chunk or CHUNK) < q.pass_tokens:
        yield Note("one pass", {"head_dim": c.head_dim})
    elif c.kv_latent and q.pass_tokens < q.prompt_tokens:
        yield Note("latents again")


def _batches(most: int, asked: int | None, *others: int) -> tuple[int, ...]:
    """Powers of two up to what fits or to a table's end, the largest that fits, the batch asked for, and those of a latency."""
    rows = {2**i for i in range(min(most, LARGEST_BATCH).bit_length())} | {most, asked or 0, *others} - {0}
    return tuple(sorted(rows)) or (1,)


def _for_latency(q: ServingQuestion, what: Accelerator, most: int) -> tuple[int, int] | None:
    """More sequences take longer, so a search finds the largest batch; memory is a limit, too."""
    if q.latency is None:
        return None
    target = q.latency
    best = largest(lambda batch: token_bounds(q, what, batch).least <= target, most)
    sure = largest(lambda batch: token_bounds(q, what, batch).most <= target, most)
    return best, sure
