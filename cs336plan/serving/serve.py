"""Serving a model: what weights and cache take, and a lower and an upper bound on the time of a token.

Every number is computed from `predict.program(phase="prefill")` and `(phase="decode")`. A prompt is processed in chunks, as
engines do. The lower bound is a roofline: each pass reads the weights and the cache once and computes meanwhile, and nothing
else takes time, so the longer of the two counts. In the upper bound, nothing overlaps: it is the sum over all operations of
the times to read and write their tensors and to compute. Both use the datasheet's rates, or the share of them that the question
gives as `efficiency`. Left out of both: kernel launches, the latency of links, sampling, the scheduler, kernels that do not
reach bandwidth or peak. So a real step takes longer than the lower bound, and often longer than the upper one.
"""

from dataclasses import replace

from cs336kit.predict.accounting import parameters
from cs336kit.predict.checks import finite_results
from cs336kit.predict.decoding.bounds import answer_seconds, prompt_bounds, token_bounds, visited_experts
from cs336kit.predict.decoding.load import CHUNK, LARGEST_BATCH, chip_of
from cs336kit.predict.decoding.memory import copied
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.training import largest
from cs336kit.predict.transformer import TransformerConfig
from cs336plan.serving.advice import serving_advice
from cs336plan.serving.answer import Served, memory_fields
from cs336plan.serving.question import ServingQuestion, settled


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
        notes=(*sourced, *_copy_notes(q), *_routing_notes(q.config), *_chunk_notes(q)), **memory_fields(q, what),
    )  # fmt: skip
    most = answer.largest_batch
    within = _for_latency(q, what, most)
    batches = _batches(most, q.batch, *(within or ()))
    tokens = tuple((batch, token_bounds(q, what, batch)) for batch in batches)
    advice = () if most else serving_advice(answer)
    answer = replace(answer, tokens=tokens, batch_for_latency=within, advice=advice)
    steady = answer.sustained_batch
    return replace(answer, average=answer_seconds(q, what, steady)) if steady else answer


def _copy_notes(q: ServingQuestion) -> tuple[str, ...]:
    """What several accelerators hold of the same keys and values, which is counted on each of them."""
    c, n = q.config, q.count
    if n == 1 or (not c.kv_latent and n <= c.kv_heads):
        return ()
    weights, cache = copied(q)
    if c.kv_latent:
        who = f"the latents, from which all heads make their keys and values, are whole on each of the {n} accelerators"
    else:
        head = "the key/value head is" if c.kv_heads == 1 else f"each of the {c.kv_heads} key/value heads is"
        who = f"{head} on {n // c.kv_heads} of the {n} accelerators"
    return (
        f"{who}, and counted on each: of what all {n} hold together, {cache / 2**30:,.2f} GiB of a sequence's cache and "
        f"{weights / 2**30:,.2f} GiB of weights are copies",
    )


def _routing_notes(c: TransformerConfig) -> tuple[str, ...]:
    """What the bounds of a mixture assume, at the smallest batch that could read every expert."""
    E, k = c.experts, c.experts_per_token
    if k >= E:
        return ()
    every = -(-E // k)
    read = visited_experts(E, k, every)
    return (
        f"each token chooses {k} of a layer's {E} experts by chance: a step of {every:,} reads {read:,.0f} of them on average. "
        f"Tokens that shared them equally would read all {E}; if all chose the same, {k}: a skewed router reads fewer, so that a "
        "step can be faster than both bounds",
    )


def _chunk_notes(q: ServingQuestion) -> tuple[str, ...]:
    """Notes if a prompt is not processed in chunks, or if a chunk does more with the tokens before it than read their cache."""
    prompt, chunk = q.prompt_tokens, q.chunk or CHUNK
    if chunk < q.pass_tokens:
        return (f"heads of {q.config.head_dim} have their scores written out, and a prompt is taken in one pass",)
    if q.config.kv_latent and q.pass_tokens < prompt:
        return (
            "each pass makes keys and values of what came before it from the latents again, in pieces of as many tokens",
        )
    return ()


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
