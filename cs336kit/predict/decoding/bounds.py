"""A lower and an upper bound on the time of a prompt's pass and of a token."""

from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.chip import chip, peak_of
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.decoding.load import Load, options_of, products_of
from cs336kit.predict.decoding.memory import cache_bytes, leaf_bytes, made_again, packed_share, prompt_program
from cs336kit.predict.engine.collectives import OF_EXPERTS
from cs336kit.predict.engine.operations import Op, Program, Storage, Tensor
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.links import taken

#: Evenly spaced lengths of the cache, over which a token of an answer is averaged.
_LENGTHS = 8


@dataclass(frozen=True)
class Bounds:
    """Seconds of one pass at a datasheet's rates: `least` if everything overlaps, and `most` if nothing does."""

    least: float
    most: float
    flops: int
    #: weights and cache, read once; in a mixture, of as many experts as tokens visit on average if they choose at random
    bytes: int
    #: what limits the lower bound: "memory", "compute" or "links"
    bound: str
    #: bytes that one accelerator sends to the others; in a parallel block and with shared experts, each branch has a sum of its
    #: own here, while an engine may add the branches first
    sent: int = 0
    #: the part of `bytes` that is the cache's
    cache_bytes: int = 0
    #: seconds of matrix products alone, each at the peak of its type, and of communication alone, where switches add
    compute: float = 0.0
    links: float = 0.0


class _Work(NamedTuple):
    """What passes compute, read, write and send together."""

    flops: int = 0
    #: the part of `flops` that has a quantized matrix
    packed: int = 0
    #: bytes: of weights and cache once a pass, and of every operation
    least: int = 0
    moved: int = 0
    #: the part of `least` that is the cache's
    cache: int = 0
    sent: int = 0
    #: seconds of communication by rings, and where switches add
    rings: float = 0.0
    links: float = 0.0

    def plus(self, other: "_Work", times: int = 1) -> "_Work":
        """This work, and `times` the other."""
        return _Work(*(mine + times * more for mine, more in zip(self, other, strict=True)))  # type: ignore[arg-type]


def prompt_bounds(q: Load, what: Accelerator) -> Bounds:
    """The passes of one prompt; only the last of all its positions has logits.

    The FLOPs of causal attention are those of one pass. Each pass reads the weights, and each but the first reads the cache of
    the tokens before it (of a window, what the window holds); latent attention makes their keys and values again.
    """
    prompt, chunk = q.prompt_tokens, q.pass_tokens
    further = (prompt - 1) // chunk
    left = prompt - further * chunk
    first, last = prompt_program(q, chunk), prompt_program(q, left)
    work = _work(q, what, last, tokens=left, rows=left)
    if further:
        whole = prompt_program(q)
        in_one = _work(q, what, whole, tokens=prompt, rows=prompt)
        work = work.plus(_work(q, what, first, tokens=chunk, rows=0), further)._replace(
            flops=in_one.flops, packed=in_one.packed
        )
        work = work.plus(_of_the_past(q, whole, further))
    written = cache_bytes(q, last) + further * cache_bytes(q, first)
    return _bounds(q, what, work.plus(_Work(least=written, moved=written, cache=written)))


def _of_the_past(q: Load, whole: Program, further: int) -> _Work:
    """What `further` chunks after the first one do with the tokens before them."""
    chunk, prompt = q.pass_tokens, q.prompt_tokens

    def seen(positions: int) -> int:
        """Sum over these chunks of the tokens before each, in a cache that keeps `positions` of them."""
        growing = min(further, positions // chunk)
        return chunk * growing * (growing + 1) // 2 + (further - growing) * positions

    read = CACHE_TYPES[q.cache] * sum(count * B * K * h * seen(T) for (B, K, T, h), count in whole.cached)
    flops = moved = 0
    if q.config.kv_latent:
        for (op, count), ((_, _, T, _), _) in zip(made_again(whole), whole.cached, strict=True):
            flops += count * sum(n for _, n in op.flops) * seen(T) // prompt
            # Written once, and read: the product's results are parts of the keys, and values; attention reads both.
            moved += 2 * count * sum(storage.bytes for storage in op.allocates) * seen(T) // prompt
    return _Work(flops, flops, read, read + moved, read)


def token_bounds(q: Load, what: Accelerator, batch: int, length: int | None = None) -> Bounds:
    """One token of each of `batch` sequences with `length` tokens in the cache, or with the prompt and the answer."""
    length = q.length if length is None else length
    # A page is written where it lies, and a window's pages hold what the window sees: as in tensors allocated once.
    walked = program(q.config, batch=batch, sequence=length, phase="decode", cache="contiguous", **options_of(q))
    return _bounds(q, what, _work(q, what, walked, tokens=batch, rows=1))


def answer_seconds(q: Load, what: Accelerator, batch: int) -> tuple[float, float]:
    """Seconds of a token of each of `batch` sequences, averaged over the answer: at best, and if nothing overlaps."""
    prompt, output = q.prompt_tokens, q.output_tokens
    parts = min(output, _LENGTHS)
    middles = [prompt + 0.5 + (part + 0.5) * output / parts for part in range(parts)]
    # Rounded so that their mean stays that of all lengths.
    lengths = [(floor if 2 * part < parts else ceil)(middle) for part, middle in enumerate(middles)]
    each = [token_bounds(q, what, batch, length) for length in lengths]
    return sum(bounds.least for bounds in each) / parts, sum(bounds.most for bounds in each) / parts


def visited_experts(experts: int, per_token: int, tokens: int) -> float:
    """How many experts of a layer `tokens` tokens visit on average, each of which chooses `per_token` different ones at random.

    One token leaves a given expert out with probability 1 − k/E, and N independent tokens all do with its N-th power. So of E
    experts, E · (1 − (1 − k/E)^N) are visited: the mean of a sum is the sum of the means, even where terms depend on each other.
    """
    return experts * (1 - (1 - per_token / experts) ** tokens)


def _work(q: Load, what: Accelerator, walked: Program, *, tokens: int, rows: int) -> _Work:
    """One pass of `tokens` tokens, in which one of `rows` positions has logits; 0: none has.

    The program shares tokens among experts as equally as possible, so that min(E, N · k) experts are visited. The weights that
    these read are scaled to what tokens that choose at random read.
    """
    flops, packed, least, moved, sent, cache, of_experts = 0, 0, 0, 0, 0, 0, 0
    rings, links = 0.0, 0.0
    sizes = {leaf.tensor.storage: leaf_bytes(leaf, q) for leaf in walked.leaves}
    matrices = {leaf.tensor.storage: packed_share(leaf, q) for leaf in walked.leaves}
    experts = {leaf.tensor.storage for leaf in walked.leaves if q.config.experts and leaf.component in OF_EXPERTS}
    caches: set[Storage] = set()
    seen: set[Storage] = set()
    for op, count in walked.operations():
        if op.part == "head" and not rows:
            continue
        work = sum(n for _, n in op.flops) // (rows if op.part == "head" else 1)
        flops += count * work
        share = max((matrices.get(tensor.storage, 0.0) for tensor in op.inputs), default=0.0)
        packed += count * work if share == 1 else round(count * work * share)
        weights, cached, other = _op_bytes(op, sizes, caches, CACHE_TYPES[q.cache], rows)
        of_experts += count * sum(size for storage, size in weights.items() if storage in experts)
        moved += count * (sum(weights.values()) + sum(cached.values()) + other)
        # Latents are keys and values, and the matrix after them is in two products: at best, each is read once.
        first = {storage: size for storage, size in cached.items() if storage not in seen}
        least += count * (sum(size for storage, size in weights.items() if storage not in seen) + sum(first.values()))
        cache += count * sum(first.values())
        if op.kind not in _ROWS:
            seen.update(weights, first)
        for wire in op.collectives:
            sent += count * wire.bytes
            took = taken(wire, what, q.per_node, q.between_nodes, walked.layout, count)
            rings += took.inside + took.through + took.between
            links += max(seconds for ways in took.least for seconds in ways)
    if of_experts:
        c = q.config
        visited = visited_experts(c.experts, c.experts_per_token, tokens) / min(c.experts, tokens * c.experts_per_token)
        unread = round((1 - visited) * of_experts)
        least, moved = least - unread, moved - unread
    return _Work(flops, packed, least, moved, cache, sent, rings, links)


def _bounds(q: Load, what: Accelerator, work: _Work) -> Bounds:
    peak = peak_of(what)
    assert peak
    flops, packed, least, moved, cache, sent, rings, links = work
    compute = (packed / peak + (flops - packed) / _other_peak(q, what, peak)) / q.efficiency
    bandwidth = what.bandwidth * q.efficiency
    memory = least / bandwidth
    times = {"compute": compute, "memory": memory, "links": links}
    bound = max(times, key=lambda name: times[name])
    return Bounds(times[bound], compute + moved / bandwidth + rings, flops, least, bound, sent, cache, compute, links)


def _other_peak(q: Load, what: Accelerator, peak: float) -> float:
    """FLOP/s of products without a quantized matrix: attention, head and router compute in bf16 beside fp8 or fp4 weights."""
    if products_of(q.stored) not in ("fp8", "fp4") or q.peak_flops_per_second is not None or q.accelerator is None:
        return peak
    return peak_of(chip(q.accelerator, precision="bf16", memory_bytes=what.memory_bytes)[0]) or peak


#: Operations that read as many rows of their first tensor as they write.
_ROWS = ("embedding", "index")


def _op_bytes(
    op: Op, sizes: dict[Storage, int], caches: set[Storage], element: int, rows: int
) -> tuple[dict[Storage, int], dict[Storage, int], int]:
    """Bytes of each weight and of each cache that an operation reads, and all other bytes that it moves.

    A paged cache is not copied to grow: new keys and values are written where they stay.
    """
    if op.kind == "write":
        caches.update(t.storage for t in op.outputs)
        return {}, {t.storage: element * t.elements for t in op.inputs if not t.storage.leaf}, 0
    # A serving kernel knows which keys a token sees, and what a prompt leaves in a window's pages is counted separately.
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
