"""The bytes of a served model: weights, the cache of a sequence, and a prompt's working tensors."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.decoding.load import Load, options_of, packing_of
from cs336kit.predict.engine.collectives import OF_EXPERTS
from cs336kit.predict.engine.operations import ELEMENT_BYTES, Leaf, Op, Program
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.packed import EXPERTS, PACKINGS, packed_bytes


def is_packed(leaf: Leaf, weights: str) -> bool:
    """Whether this type of weights quantizes the parameter: a matrix of a block, or only one of an expert."""
    if leaf.place != "block" or len(leaf.tensor.shape) != 2 or leaf.component == "router":
        return False
    return leaf.component in OF_EXPERTS or not weights.endswith(EXPERTS)


def leaf_bytes(leaf: Leaf, weights: str) -> int:
    """Bytes of one parameter as it is served."""
    packing = packing_of(weights)
    if packing in PACKINGS:
        if is_packed(leaf, weights):
            return packed_bytes(leaf.tensor.elements, packing)
        return 2 * leaf.tensor.elements
    return ELEMENT_BYTES[weights] * leaf.tensor.elements


def weights(q: Load) -> Breakdown:
    parts: dict[str, int] = {}
    of_experts = q.stored.endswith(EXPERTS)
    packed = f"{'experts' if of_experts else 'matrices'} in {packing_of(q.stored)}"
    rest = "all else, in bf16" if of_experts else "embeddings, head, norms"
    for leaf in program(q.config, batch=1, sequence=1, phase="forward", **options_of(q)).leaves:
        name = packed if is_packed(leaf, q.stored) else rest
        parts[name] = parts.get(name, 0) + leaf.count * leaf_bytes(leaf, q.stored)
    return Breakdown(parts, unit="bytes")


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
