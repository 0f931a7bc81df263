"""The matrix products of an operation, forward and backward, and what a checkpointed segment computes again."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cs336kit.predict.engine.operations import Item, Op, Repeat, operations


class ProductCost(NamedTuple):
    """FLOPs of one matrix product in a training step, under the component of the model that they count for.

    `backward`: those of the products that compute its gradients; a gradient that is not needed costs 0.
    """

    component: str
    forward: int
    backward: int


def products(op: Op) -> list[ProductCost]:
    """The matrix products of an operation, each with the products that compute its gradients."""
    if not op.flops:
        return []
    if op.kind == "sdpa":  # the fused kernel computes all gradients, and the scores again, once one gradient is needed
        (scores, one), (values, other) = op.flops
        needed = bool(op.gradients)
        return [ProductCost(scores, one, 3 * one * needed), ProductCost(values, other, 2 * other * needed)]
    ((component, flops),) = op.flops
    return [ProductCost(component, flops, sum(gradient.flops for gradient in op.gradients))]


def _run_again(segment: Sequence[tuple[Op, int]]) -> Sequence[tuple[Op, int]]:
    """What the backward pass of a checkpointed segment runs again: everything until the last saved tensor is back.

    The last operation that saves something is not run if it saves only its inputs. Follows torch.utils.checkpoint with
    use_reentrant=False.
    """
    keeping = [i for i, (op, _) in enumerate(segment) if op.saves]
    if not keeping:
        return ()
    last = keeping[-1]
    return segment[: last + segment[last][0].saves_after]


def computed_again(items: Sequence[Item], count: int = 1) -> Iterator[tuple[Op, int]]:
    """What checkpointed parts run again in the backward pass, with the number of times."""
    for item in items:
        if isinstance(item, Repeat) and item.checkpoint is not None:
            for op, times in _run_again(list(operations(item.items))):
                yield op, count * item.count * times
        elif isinstance(item, Repeat):
            yield from computed_again(item.items, count * item.count)
