"""Serving a model: what weights and cache take, and between which bounds the time of a token lies.

Every number is a walk over `predict.program(phase="prefill")` and `(phase="decode")`. At best a chip reads the weights and
the cache once, computes meanwhile, and nothing else takes time: the larger of both is the lower bound (a roofline). If
nothing overlaps, each operation reads and writes its tensors and computes, one after the other: the sum is the upper one.
Left out of both: launches, sampling, the scheduler, kernels that do not reach bandwidth or peak.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._common.checks import finite_results, known, positive_int, positive_number, shown
from cs336kit.predict._planner.chip import Chip, allowance, chip
from cs336kit.predict._planner.serving_advice import ServingAdvice, serving_advice
from cs336kit.predict._walk import Walk
from cs336kit.predict.accounting import CACHE_TYPES, parameters
from cs336kit.predict.devices import FLASH
from cs336kit.predict.layouts import Layout, check_layout
from cs336kit.predict.operations import ELEMENT_BYTES, Leaf, Op, Program, Storage, Tensor
from cs336kit.predict.packed import PACKINGS, packed_bytes
from cs336kit.predict.programs import check_sizes, program
from cs336kit.predict.training import largest
from cs336kit.predict.transformer import TransformerConfig, check_config
from cs336kit.predict.wires import NODE, bandwidth

#: Types of served weights: element types, and packings of the matrices in blocks (tables, head and norms stay in bf16).
WEIGHT_TYPES = dict.fromkeys(("bf16", "fp16", "fp32", *PACKINGS))
#: Largest batch that a table or a search looks at.
LARGEST_BATCH = 2**16


@dataclass(frozen=True)
class ServingQuestion:
    """Which model, on what, for prompts and answers of how many tokens."""

    model: TransformerConfig
    name: str = "model"
    accelerator: str | None = "h100-sxm"
    #: accelerators that divide heads, MLP and vocabulary of every layer among them (tensor parallel)
    count: int = 1
    #: tokens of a prompt and of an answer; None: half of the model's context each, at most 2048 and 512
    prompt: int | None = None
    output: int | None = None
    #: sequences that are decoded together; None: as many as the memory holds
    batch: int | None = None
    weights: str = "bf16"
    cache: str = "bf16"
    #: seconds that a token may take
    latency: float | None = None
    #: tokens of one page of the cache
    page: int = 16
    memory_bytes: int | float | None = None
    peak_flops_per_second: float | None = None
    bandwidth: float | None = None
    allowance: int | float | None = None
    #: bytes per second each way that one accelerator has to other nodes, and accelerators of a node
    between_nodes: float | None = None
    node: int = NODE
    price_per_hour: float | None = None


@dataclass(frozen=True)
class Bounds:
    """Seconds of one pass: not less than `least` at these rates, and `most` if nothing overlaps."""

    least: float
    most: float
    flops: int
    #: weights and cache once
    bytes: int
    #: "memory", "compute" or "links": what the lower bound is
    bound: str
    #: bytes that one accelerator sends to the others
    sent: int = 0
    #: those of `bytes` that are the cache's
    cache_bytes: int = 0


@dataclass(frozen=True)
class Served:
    """The answer: bytes, bounds of a prompt and of a token, and the largest batches."""

    question: ServingQuestion
    chip: Chip
    parameters: int
    weights: Breakdown
    #: of one sequence with its prompt and its answer
    cache_bytes: int
    #: of one more token of a sequence
    cache_bytes_per_token: int
    #: of one prompt's pass, beside what its blocks leave in the cache
    working_bytes: int
    #: of one sequence's logits in bf16 and in fp32, which sampling takes
    logits_bytes: int
    allowance: Breakdown
    allowance_reason: str
    #: the most sequences whose cache fits; 0 if not even one does
    largest_batch: int
    prefill: Bounds
    #: (batch, bounds of one token of each of its sequences)
    tokens: tuple[tuple[int, Bounds], ...]
    #: (at best, if nothing overlaps): the largest batch of which a token takes no more than the latency asked for
    batch_for_latency: tuple[int, int] | None
    notes: tuple[str, ...]
    #: where not one sequence fits: changes that were tried, and that make it fit
    advice: tuple[ServingAdvice, ...] = ()

    @property
    def page_waste(self) -> tuple[float, int]:
        """Bytes of a sequence's last page that stay empty: on average over all lengths, and at worst."""
        worst = (self.question.page - 1) * self.cache_bytes_per_token
        return worst / 2, worst

    def total(self, batch: int) -> int:
        """Bytes of weights, working tensors, allowance, and the cache of `batch` sequences in pages."""
        fixed = self.weights.total + self.working_bytes + self.allowance.total
        return fixed + batch * (self.cache_bytes + self.page_waste[1] + self.logits_bytes)

    def __str__(self) -> str:
        from cs336kit.predict._planner.serving_text import text

        return text(self)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of `SERVING_KEYS`."""
        from cs336kit.predict._planner.serving_text import as_dict

        return as_dict(self)


@finite_results()
def serve(question: ServingQuestion) -> Served:
    """Answer a question about serving; impossible ones raise a ValueError that says what to change.

    Weights in bf16, fp16, fp32, or packed (fp8, int8, int4, nf4: the matrices of blocks with their scales). Products run in
    bf16, of fp8 weights in fp8 where the chip has a sourced peak for it. The cache is paged. Experts are taken to share the
    tokens equally. Left out: see the module.
    """
    _check(question)
    q = _settled(question)
    what = _chip(q)
    answer = Served(
        question=q, chip=what, parameters=parameters(q.model).total, largest_batch=0,
        prefill=_bounds(q, what, _prefill(q), head=True), tokens=(), batch_for_latency=None,
        notes=(*what.notes, *_routing_notes(q.model)), **_memory(q, what),
    )  # fmt: skip
    most = largest(lambda batch: answer.total(batch) <= what.memory_bytes, LARGEST_BATCH)
    answer = replace(answer, largest_batch=most)
    within = _for_latency(q, what, most)
    batches = _batches(most, q.batch, *(within or ()))
    tokens = tuple((batch, token_bounds(q, what, batch)) for batch in batches)
    advice = () if most else serving_advice(answer)
    return replace(answer, tokens=tokens, batch_for_latency=within, advice=advice)


def _memory(q: ServingQuestion, what: Chip) -> dict[str, Any]:
    """The fields of an answer that are bytes of one accelerator."""
    free, reason = allowance(q.allowance, memory_bytes=what.memory_bytes, count=q.count)
    length = _length(q)
    each = _cache_bytes(q, length)
    return {
        "weights": _weights(q), "cache_bytes": each, "cache_bytes_per_token": each - _cache_bytes(q, length - 1),
        "working_bytes": _blocks_peak(_prefill(q)), "logits_bytes": q.model.vocab * (2 + 4),
        "allowance": free, "allowance_reason": reason,
    }  # fmt: skip


def with_memory(answer: Served, q: ServingQuestion) -> Served:
    """The answer with the bytes of another question about the same model and chip, and its own numbers else."""
    return replace(answer, question=q, **_memory(q, answer.chip))


def _check(question: object) -> None:
    """Raise ValueError where the name of a model stands for a question, or for a configuration."""
    if not isinstance(question, ServingQuestion):
        raise ValueError(
            f"serve takes a ServingQuestion, got {shown(question)}: give ServingQuestion(predict.model(name))"
        )
    if not isinstance(question.model, TransformerConfig):
        raise ValueError(
            f"model must be a TransformerConfig, got {shown(question.model)}; predict.model('llama-3-8b') gives a known one"
        )


def _settled(q: ServingQuestion) -> ServingQuestion:
    check_config(q.model)
    known("type of weights", q.weights, WEIGHT_TYPES)
    known("precision of a cache", q.cache, CACHE_TYPES)
    positive_int("page", q.page)
    for name in ("latency", "memory_bytes", "peak_flops_per_second", "bandwidth", "price_per_hour", "between_nodes"):
        if getattr(q, name) is not None:
            positive_number(name, getattr(q, name))
    if q.batch is not None:
        positive_int("batch", q.batch)
    positive_int("node", q.node)
    check_layout(q.model, Layout(tp=positive_int("count", q.count)))
    half = max(q.model.context // 2, 1)
    prompt = min(half, 2048) if q.prompt is None else positive_int("prompt", q.prompt)
    output = min(half, 512) if q.output is None else positive_int("output", q.output)
    try:
        check_sizes(q.model, batch=1, sequence=prompt + output)
    except ValueError:
        raise ValueError(
            f"a prompt of {prompt} and an answer of {output} tokens are longer than context={q.model.context}: shorten one"
        ) from None
    return replace(q, prompt=prompt, output=output)


def _chip(q: ServingQuestion) -> Chip:
    """The chip with the peak of the products; fp8 weights use fp8 products where that peak is known."""
    given = {
        "memory_bytes": q.memory_bytes, "peak_flops_per_second": q.peak_flops_per_second, "bandwidth": q.bandwidth,
    }  # fmt: skip
    products = "fp32" if q.weights == "fp32" else "bf16"
    what = chip(q.accelerator, precision=products, **given)  # type: ignore[arg-type]
    if what.bandwidth is None:
        raise ValueError("a latency needs the bandwidth of the memory: give bandwidth, such as 3.35e12")
    if q.weights == "fp8" and q.peak_flops_per_second is None and q.accelerator is not None:
        try:
            return chip(q.accelerator, precision="fp8", **given)  # type: ignore[arg-type]
        except ValueError:
            return replace(what, notes=(*what.notes, f"{what.name} has no sourced fp8 peak: products in bf16"))
    return what


def _routing_notes(c: TransformerConfig) -> tuple[str, ...]:
    """What the bounds of a mixture take for granted, at the batch from which on they read every expert."""
    if c.experts_per_token >= c.experts:
        return ()
    every = -(-c.experts // c.experts_per_token)
    by_chance = c.experts * (1 - (1 - c.experts_per_token / c.experts) ** every)
    return (
        f"the tokens of a step share the experts of a layer equally: {c.experts_per_token} of {c.experts} for one token, all "
        f"from batch {every:,} on. Tokens that choose by chance would visit about {by_chance:,.0f} there, and those that agree "
        f"{c.experts_per_token}: a step that reads fewer takes less time than both bounds say",
    )


def _length(q: ServingQuestion) -> int:
    assert q.prompt is not None and q.output is not None
    return q.prompt + q.output


def _options(q: ServingQuestion) -> dict[str, Any]:
    """Of every program here. Attention is that of serving engines, but for heads that are too wide for it."""
    layout = Layout(tp=q.count) if q.count > 1 else None
    attention = "flash_attention" if q.model.head_dim <= (FLASH.widest or 0) else "sdpa"
    return {"precision": "bf16", "attention": attention, "causal": True, "device": "cuda", "layout": layout}


# -- bytes -----------------------------------------------------------------------------------------------------------


def _is_packed(leaf: Leaf) -> bool:
    return leaf.place == "block" and len(leaf.tensor.shape) == 2 and leaf.component != "router"


def _leaf_bytes(leaf: Leaf, weights: str) -> int:
    """Bytes of one parameter as it is served."""
    if weights in PACKINGS:
        if _is_packed(leaf):
            return packed_bytes(leaf.tensor.elements, weights)
        return 2 * leaf.tensor.elements
    return ELEMENT_BYTES[weights] * leaf.tensor.elements


def _weights(q: ServingQuestion) -> Breakdown:
    parts: dict[str, int] = {}
    for leaf in program(q.model, batch=1, sequence=1, phase="forward", **_options(q)).leaves:
        name = f"matrices in {q.weights}" if _is_packed(leaf) else "tables, head, norms"
        parts[name] = parts.get(name, 0) + leaf.count * _leaf_bytes(leaf, q.weights)
    return Breakdown(parts, unit="bytes")


def _prefill(q: ServingQuestion) -> Program:
    return program(q.model, batch=1, sequence=q.prompt or 1, phase="prefill", **_options(q))


def _cache_bytes(q: ServingQuestion, length: int) -> int:
    """Of one sequence of so many tokens, on one accelerator."""
    walked = program(q.model, batch=1, sequence=length, phase="prefill", **_options(q))
    return CACHE_TYPES[q.cache] * sum(count * prod(shape) for shape, count in walked.cached)


@lru_cache(maxsize=64)
def _blocks_peak(walked: Program) -> int:
    """The most bytes alive until the head, beside the cache that the pass fills."""
    walk = Walk(walked)
    blocks = []
    for item in walked.items:
        if isinstance(item, Op) and item.part == "head":
            break
        blocks.append(item)
    walk.forward(blocks)
    cache = ELEMENT_BYTES["bf16"] * sum(count * prod(shape) for shape, count in walked.cached)
    return max(max(peak.bytes for peak in walk.ledger.peaks.values()) - cache, 0)


# -- time ------------------------------------------------------------------------------------------------------------


def token_bounds(q: ServingQuestion, what: Chip, batch: int) -> Bounds:
    """One token of each of `batch` sequences, whose cache holds the prompt and the answer."""
    # A page is written where it lies, and a window's pages hold what the window sees: as in tensors allocated once.
    walked = program(q.model, batch=batch, sequence=_length(q), phase="decode", cache="contiguous", **_options(q))
    return _bounds(q, what, walked, head=False)


def _bounds(q: ServingQuestion, what: Chip, walked: Program, *, head: bool) -> Bounds:
    """`head`: of all positions the last one alone has logits."""
    assert what.peak and what.bandwidth
    flops, least, moved, sent, cache = 0, 0, 0, 0, 0
    links = 0.0
    sizes = {leaf.tensor.storage: _leaf_bytes(leaf, q.weights) for leaf in walked.leaves}
    caches: set[Storage] = set()
    seen: set[Storage] = set()
    rows = q.prompt or 1 if head else 1
    for op, count in walked.operations():
        work = sum(n for _, n in op.flops) // (rows if op.part == "head" else 1)
        flops += count * work
        weights, cached, other = _op_bytes(op, sizes, caches, CACHE_TYPES[q.cache], rows)
        moved += count * (sum(weights.values()) + sum(cached.values()) + other)
        # Latents are keys and values, and the matrix behind them stands in two products: at best, each is read once.
        first = {storage: size for storage, size in cached.items() if storage not in seen}
        least += count * (sum(size for storage, size in weights.items() if storage not in seen) + sum(first.values()))
        cache += count * sum(first.values())
        if op.kind not in _ROWS:
            seen.update(weights, first)
        for wire in op.wires:
            sent += count * wire.bytes
            links += count * wire.bytes / bandwidth(wire, what.as_accelerator(), q.node, q.between_nodes, walked.layout)
    if head:
        written = CACHE_TYPES[q.cache] * sum(count * prod(shape) for shape, count in walked.cached)
        least, moved, cache = least + written, moved + written, cache + written
    compute, memory = flops / what.peak, least / what.bandwidth
    times = {"compute": compute, "memory": memory, "links": links}
    bound = max(times, key=lambda name: times[name])
    return Bounds(times[bound], compute + moved / what.bandwidth + links, flops, least, bound, sent, cache)


#: Operations that read as many rows of their first tensor as they write.
_ROWS = ("embedding", "index")


def _op_bytes(
    op: Op, sizes: dict[Storage, int], caches: set[Storage], element: int, rows: int
) -> tuple[dict[Storage, int], dict[Storage, int], int]:
    """Bytes of each weight and of each cache that an operation reads, and all others that it moves.

    A paged cache is not copied to grow: new keys and values are written where they stay.
    """
    if op.kind == "write":
        caches.update(t.storage for t in op.outputs)
        return {}, {t.storage: element * t.elements for t in op.inputs if not t.storage.leaf}, 0
    # A serving kernel knows which keys a token sees, and what a prompt leaves in a window's pages is counted by itself.
    if "/mask/" in op.place or op.place.endswith(("/key/last", "/value/last")):
        return {}, {}, 0
    nobody = op.kind == "linear" and not op.flops[0][1]  # an expert that no token visits
    if not op.allocates or nobody:
        return {}, {}, 0
    weights: dict[Storage, int] = {}
    cached: dict[Storage, int] = {}
    other = 0
    for tensor in op.inputs:
        size = _input_bytes(op, tensor, sizes, caches, element)
        if tensor.storage in sizes:
            weights[tensor.storage] = size
        elif tensor.storage in caches:
            cached[tensor.storage] = size
        else:
            other += size
    written = sum(storage.bytes for storage in op.allocates)
    if op.part == "head":
        other, written = other // rows, written // rows
    return weights, cached, other + written


def _input_bytes(op: Op, tensor: Tensor, sizes: dict[Storage, int], caches: set[Storage], element: int) -> int:
    if op.kind in _ROWS:
        return op.allocates[0].bytes if tensor is op.inputs[0] else tensor.bytes
    if tensor.storage in sizes:
        return sizes[tensor.storage]
    return element * tensor.elements if tensor.storage in caches else tensor.bytes


def _batches(most: int, asked: int | None, *others: int) -> tuple[int, ...]:
    """Powers of two up to what fits, that itself, the batch that was asked for, and those of a latency."""
    rows = {2**i for i in range(most.bit_length())} | {most, asked or 0, *others} - {0}
    return tuple(sorted(rows)) or (1,)


def _for_latency(q: ServingQuestion, what: Chip, most: int) -> tuple[int, int] | None:
    """More sequences take longer, so a search finds the largest; the memory is a limit too."""
    if q.latency is None:
        return None
    target = q.latency
    best = largest(lambda batch: token_bounds(q, what, batch).least <= target, most)
    sure = largest(lambda batch: token_bounds(q, what, batch).most <= target, most)
    return best, sure
