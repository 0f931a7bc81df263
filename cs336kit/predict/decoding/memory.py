"""The bytes of a served model: weights, the cache of a sequence, and a prompt's working tensors."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.decoding.load import Load, options_of, packing_of
from cs336kit.predict.engine.collectives import OF_EXPERTS
from cs336kit.predict.engine.operations import Leaf, Op, Program
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.packed import EXPERTS, packed_bytes, packing_called
from cs336kit.predict.precision import ELEMENT_BYTES


def stored_types(leaf: Leaf, q: Load) -> dict[str, float]:
    """Type of weights → the share of this parameter, over all layers, that is served in it."""
    packing = packing_of(q.stored)
    if packing_called(packing) is None:
        return {q.stored: 1.0}
    if not _may_be_packed(leaf) or (q.stored.endswith(EXPERTS) and leaf.component not in OF_EXPERTS):
        return {"bf16": 1.0}
    apart = {name: share for component, name, share in q.stored_apart if component == leaf.component}
    left = 1 - sum(apart.values())
    return ({packing: left} if left > 0 else {}) | apart


def _may_be_packed(leaf: Leaf) -> bool:
    """Whether packings are about this parameter: a matrix of a block that is no router."""
    return leaf.place == "block" and len(leaf.tensor.shape) == 2 and leaf.component != "router"


def packed_share(leaf: Leaf, q: Load) -> float:
    """The share of this parameter, over all layers, that is quantized."""
    return sum(share for name, share in stored_types(leaf, q).items() if packing_called(name) is not None)


def leaf_bytes(leaf: Leaf, q: Load) -> int:
    """Bytes of one parameter as it is served, on average over the layers."""
    return round(sum(share * _bytes_as(leaf, name) for name, share in stored_types(leaf, q).items()))


def _bytes_as(leaf: Leaf, name: str) -> int:
    tensor = leaf.tensor
    if packing_called(name) is None:
        return ELEMENT_BYTES[name] * tensor.elements
    return packed_bytes(tensor.elements, name, rows=tensor.shape[0])


def weights(q: Load) -> Breakdown:
    """The bytes of the weights by how they are stored."""
    parts: dict[str, float] = {}
    of_experts = q.stored.endswith(EXPERTS)
    rest = "all else, in bf16" if of_experts else "embeddings, head, norms"
    for leaf in program(q.config, batch=1, sequence=1, phase="forward", **options_of(q)).leaves:
        for stored, share in stored_types(leaf, q).items():
            as_asked = stored == packing_of(q.stored) or packing_called(stored) is not None
            name = f"{'experts' if of_experts else 'matrices'} {'in' if as_asked else 'left in'} {stored}"
            name = name if _may_be_packed(leaf) and (as_asked or not of_experts) else rest
            parts[name] = parts.get(name, 0) + leaf.count * share * _bytes_as(leaf, stored)
    return Breakdown({name: round(size) for name, size in parts.items()}, unit="bytes")


def copied(q: Load) -> tuple[int, int]:
    """Bytes of weights, and of one sequence's cache, that are copies, over all accelerators.

    Where there are fewer key/value heads than accelerators, several hold the same head; latents are whole on each of them.
    """
    alone = replace(q, count=1)
    made = ("latent",) if q.config.kv_latent else ("key", "value")
    sizes = [
        sum(
            leaf.count * leaf_bytes(leaf, q)
            for leaf in program(q.config, batch=1, sequence=1, phase="forward", **options_of(each)).leaves
            if leaf.component in made
        )
        for each in (q, alone)
    ]
    caches = [cache_bytes(each, prompt_program(each, q.length)) for each in (q, alone)]
    return q.count * sizes[0] - sizes[1], q.count * caches[0] - caches[1]


def prompt_program(q: Load, length: int | None = None) -> Program:
    """One pass of a sequence of so many tokens, or of the question's whole prompt."""
    return program(q.config, batch=1, sequence=length or q.prompt_tokens, phase="prefill", **options_of(q))


def cache_bytes(q: Load, walked: Program) -> int:
    """What a pass leaves in the cache of one accelerator."""
    return CACHE_TYPES[q.cache] * cached_elements(walked)


def cached_elements(walked: Program) -> int:
    return sum(count * prod(shape) for shape, count in walked.cached)


def working_bytes(q: Load) -> int:
    """The most bytes alive in a pass of a prompt, besides the cache.

    The tokens before a chunk are in the cache, where the kernel reads them; latent attention makes their keys and values again,
    in pieces as long as a chunk.
    """
    walked = prompt_program(q, q.pass_tokens)
    piece = min(q.pass_tokens, q.prompt_tokens - q.pass_tokens)
    again = sum(storage.bytes for op, _ in made_again(walked)[:2] for storage in op.allocates)
    return blocks_peak(walked) + again * piece // q.pass_tokens


def made_again(walked: Program) -> list[tuple[Op, int]]:
    """The operations that make keys and values from latents, block by block, which later chunks repeat; empty without latents."""
    return [each for each in walked.operations() if each[0].place.endswith(("/key and value", "/key/together"))]


@lru_cache(maxsize=64)
def blocks_peak(walked: Program) -> int:
    """The most bytes alive before the head, besides the cache that the pass fills."""
    walk = Walk(walked)
    blocks = []
    for item in walked.items:
        if isinstance(item, Op) and item.part == "head":
            break
        blocks.append(item)
    walk.forward(blocks)
    return walk.ledger.peaks["forward"].bytes - ELEMENT_BYTES["bf16"] * cached_elements(walked)


@dataclass(frozen=True)
class ServedBytes:
    """What a served model takes on one accelerator, besides what is left free."""

    weights: Breakdown
    #: cache of one sequence with its prompt and its answer
    cache_bytes: int
    #: cache of one more token of a sequence
    cache_bytes_per_token: int
    #: temporary bytes of one pass of a prompt, besides what its blocks leave in the cache
    working_bytes: int
    #: logits of one sequence in bf16 and in fp32, which sampling needs
    logits_bytes: int
    #: what one sequence leaves unfilled of its last page
    unfilled_bytes: int

    def total(self, batch: int) -> int:
        """Bytes of weights, working tensors, and the whole pages of `batch` sequences with their answers."""
        each = self.cache_bytes + self.unfilled_bytes + self.logits_bytes
        return self.weights.total + self.working_bytes + batch * each

    def fitting(self, room: int) -> int:
        """The most sequences that fit in so many bytes; 0 if not even one does."""
        fixed = self.total(0)
        return max(0, (room - fixed) // (self.total(1) - fixed))


def served_bytes(q: Load) -> ServedBytes:
    """The bytes that a load takes on one accelerator."""
    each, before = (cache_bytes(q, prompt_program(q, tokens)) for tokens in (q.length, q.length - 1))
    return ServedBytes(
        weights(q),
        each,
        each - before,
        working_bytes(q),
        q.config.vocab * (2 + 4),
        -q.length % q.page * (each - before),
    )
