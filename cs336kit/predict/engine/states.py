"""What one rank of a layout holds of parameters, gradients and optimizer state, and gathers temporarily."""

from collections.abc import Iterator
from functools import lru_cache

from cs336kit.predict.allocator import BLOCK_BYTES, allocated_bytes, round_up
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.engine.collectives import OF_EXPERTS, gathered_share
from cs336kit.predict.engine.operations import Leaf, Program, Tensor, blocks
from cs336kit.predict.layouts import Layout, shard_elements, shard_shape
from cs336kit.predict.optimizers import ON_HOST, optimizer_spec, optimizer_state_bytes, optimizer_step_bytes
from cs336kit.predict.precision import ELEMENT_BYTES


def _trained(walked: Program) -> list[Leaf]:
    return [leaf for leaf in walked.leaves if leaf.tensor.needs_gradient]


def _sharing(walked: Program, leaf: Leaf) -> int:
    """How many ranks hold a part of what belongs to a parameter; for `OF_EXPERTS` the number differs if ep divides them."""
    return walked.layout.sharing(leaf.component in OF_EXPERTS)


def held_elements(layout: Layout, parameter: Tensor, stage: int) -> int:
    """Elements of a parameter that a rank holds of a state that ZeRO shards from this stage on."""
    if layout.zero_stage < stage:
        return parameter.elements
    return shard_elements(parameter.shape, layout.sharing(parameter.storage.name in OF_EXPERTS))


def _held(walked: Program, leaf: Leaf, stage: int) -> int:
    return held_elements(walked.layout, leaf.tensor, stage)


def whole_elements(walked: Program, leaf: Leaf) -> int:
    """Elements of a gathered parameter, counting for each rank as many as the one with most has."""
    ranks = _sharing(walked, leaf)
    return ranks * shard_elements(leaf.tensor.shape, ranks)


def whole_bytes(walked: Program, leaf: Leaf) -> int:
    """Bytes of a gathered parameter."""
    ranks = _sharing(walked, leaf)
    return ranks * gathered_share(leaf, ranks, walked.policy)


def state_requests(walked: Program, optimizer: str, implementation: str) -> Iterator[int]:
    """Bytes of each tensor of optimizer state on a CUDA device, those of one parameter after another."""
    for parts, count in _state_parts(walked, optimizer, allocated=True):
        yield from _on_device(parts, optimizer, implementation) * count


def _on_device(parts: Breakdown, optimizer: str, implementation: str) -> list[int]:
    """Bytes of the tensors of a parameter's state that are not in host memory."""
    every = implementation == "fused" or optimizer == "asgd"
    return [size for part, size in parts.items() if size and (every or part not in ON_HOST)]


def _state_parts(walked: Program, optimizer: str, *, allocated: bool) -> Iterator[tuple[Breakdown, int]]:
    """The state of one parameter, and how many such parameters there are.

    Muon takes the matrices of the blocks, those of experts one by one, and AdamW all the others.
    """
    shaped = optimizer_spec(optimizer).shaped
    for leaf in _trained(walked):
        shape, count = leaf.tensor.shape, leaf.count
        # Experts in one tensor count as a matrix each where shapes matter, and where ranks shard what is requested.
        apart = shaped == "matrices" or (walked.layout.zero_stage > 0 and (shaped or allocated))
        if len(shape) > 2 and apart:
            shape, count = shape[1:], count * shape[0]
        shape = shard_shape(shape, _sharing(walked, leaf))
        name = "adamw" if shaped == "matrices" and (leaf.place != "block" or len(shape) < 2) else optimizer
        yield _state_of(name, shape, walked.policy.states), count


@lru_cache(maxsize=4096)
def _state_of(optimizer: str, shape: tuple[int, ...], precision: str) -> Breakdown:
    """The state of one parameter; cached, because few parameters have a unique shape."""
    return optimizer_state_bytes(optimizer, shapes=[shape], precision=precision)


def temporary_requests(walked: Program, optimizer: str, implementation: str) -> Iterator[int]:
    """Bytes of each temporary tensor of a foreach step."""
    lists = optimizer_spec(optimizer).foreach if implementation == "foreach" else None
    size = ELEMENT_BYTES[walked.policy.states]
    if lists is not None:
        for leaf in _trained(walked):
            yield from [size * _held(walked, leaf, 1)] * (leaf.count * lists[0])


def states(walked: Program, optimizer: str, *, allocated: str = "") -> Breakdown:
    """Bytes of parameters, gradients, optimizer state and master weights of a rank; frozen parameters have only themselves.

    `allocated`: as CUDA's allocator counts them for this implementation of the optimizer, with each tensor rounded up. Scalars
    that torch keeps in host memory are not included; a fused optimizer has them on the device.
    """
    kind, trained = walked.policy, _trained(walked)
    multiple = BLOCK_BYTES if allocated else 1
    # A quantized parameter has fewer bytes than its elements' type.
    parameters = (
        (leaf.count, -(-leaf.tensor.storage.bytes * _held(walked, leaf, 3) // leaf.tensor.elements))
        for leaf in walked.leaves
    )
    state = 0
    for each, count in _state_parts(walked, optimizer, allocated=bool(allocated)):
        sizes = map(allocated_bytes, _on_device(each, optimizer, allocated)) if allocated else each.values()
        state += count * sum(sizes)
    parts = {
        "parameters": sum(count * round_up(size, multiple) for count, size in parameters),
        "gradients": gradient_bytes(walked, multiple),
        "optimizer state": state,
    }
    if kind.master_weights:
        size = ELEMENT_BYTES[kind.master_weights]
        held = (leaf.count * round_up(size * _held(walked, leaf, 1), multiple) for leaf in trained)
        parts["master weights"] = sum(held)
    return Breakdown(parts, unit="bytes")


def gradient_bytes(walked: Program, round_to: int = 1) -> int:
    """Bytes of the gradients that a rank holds between two micro-batches, each rounded up to a multiple of `round_to`."""
    size = ELEMENT_BYTES[walked.policy.gradients]
    return sum(leaf.count * round_up(size * _held(walked, leaf, 2), round_to) for leaf in _trained(walked))


def block_count(walked: Program) -> int:
    return sum(count for _, count in blocks(walked.items))


def step_bytes(walked: Program, optimizer: str, implementation: str, round_to: int = 1) -> int:
    """Temporary tensors of the optimizer, each rounded up to a multiple of `round_to`, if they are known; else 0."""
    if implementation == "fused":
        return 0
    spec = optimizer_spec(optimizer)
    states, trained = walked.policy.states, _trained(walked)
    size = ELEMENT_BYTES[states]

    def elements(leaf: Leaf) -> int:
        """Elements of one tensor, including those that rounding adds."""
        return round_up(_held(walked, leaf, 1), max(1, round_to // size))

    if implementation == "foreach":
        if spec.foreach is None or not trained:
            return 0
        count = sum(leaf.count * elements(leaf) for leaf in trained)
        return optimizer_step_bytes(optimizer, parameters=count, precision=states)
    if spec.loop is None:
        return 0
    # What the last parameter of a block leaves behind is alive together with the first of the next block.
    layers = block_count(walked)
    sizes: dict[str, list[int]] = {"start": [], "block": [], "end": []}
    for leaf in trained:
        sizes[leaf.place].append(elements(leaf))
    again = sizes["block"] if layers > 1 else []
    in_order = [*sizes["start"], *sizes["block"], *again, *sizes["end"]]
    return optimizer_step_bytes(optimizer, sizes=in_order, precision=states, implementation="loop")
