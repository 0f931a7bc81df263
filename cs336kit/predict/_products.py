"""The matrix products of an operation, forward and backward, and what a checkpointed segment computes again."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cs336kit.predict.operations import Item, Op, Repeat, operations


class ProductCost(NamedTuple):
    """FLOPs of one matrix product, output = left @ right, in a training step; a gradient that nobody needs costs 0."""

    #: the component of the model that it counts in
    component: str
    output: str
    left: str
    right: str
    forward: int
    grad_left: int
    grad_right: int
    #: forward once more inside the backward kernel (fused attention recomputes its scores)
    again: int = 0
    #: forward once more because the operation lies in a checkpointed segment
    recomputed: int = 0

    @property
    def backward(self) -> int:
        return self.grad_left + self.grad_right + self.again + self.recomputed


def products(op: Op, needs: set[object] | None = None) -> list[ProductCost]:
    """The matrix products of an operation, each with the products that make its gradients.

    needs: sources of the tensors that need a gradient; None for those that the program was written with.
    """
    if not op.flops:
        return []
    returned = {g.of.source: g.flops for g in op.gradients if needs is None or g.of.source in needs}
    output = op.outputs[0].storage.name
    if op.kind == "sdpa":  # the fused kernel computes every gradient, and its scores again, once one gradient is needed
        prefix = "".join(output.rpartition(".")[:2])
        q, k, v = (tensor.storage.name for tensor in op.inputs[:3])
        (scores, one), (values, other) = op.flops
        back, last = (one, other) if returned else (0, 0)
        return [
            ProductCost(scores, f"{prefix}scores", q, k, one, back, back, again=back),
            ProductCost(values, output, f"{prefix}weights", v, other, last, last),
        ]
    ((component, flops),) = op.flops
    left, right = op.inputs[:2]
    grad_left, grad_right = returned.get(left.source, 0), returned.get(right.source, 0)
    return [ProductCost(component, output, left.storage.name, right.storage.name, flops, grad_left, grad_right)]


def run_again(
    segment: Sequence[tuple[Op, int]],
    *,
    early_stop: bool = True,
    keeps: Callable[[Op], bool] = lambda op: bool(op.keeps),
) -> Sequence[tuple[Op, int]]:
    """What the backward pass of a checkpointed segment runs once more: everything until the last kept tensor is back.

    An operation that keeps its inputs alone is not among them; without early stop the whole segment is. Follows
    torch.utils.checkpoint with use_reentrant=False.
    """
    keeping = [i for i, (op, _) in enumerate(segment) if keeps(op)]
    if not keeping:
        return ()
    last = keeping[-1]
    return segment[: last + segment[last][0].keeps_after] if early_stop else segment


def computed_again(items: Sequence[Item], count: int = 1) -> Iterator[tuple[Op, int]]:
    """What checkpointed parts run once more in the backward pass, with the number of times."""
    for item in items:
        if isinstance(item, Repeat) and item.checkpoint is not None:
            for op, times in run_again(list(operations(item.items))):
                yield op, count * item.count * times
        elif isinstance(item, Repeat):
            yield from computed_again(item.items, count * item.count)
