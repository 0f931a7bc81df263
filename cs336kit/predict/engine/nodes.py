"""What torch's nodes of the backward pass do in which order, and which of their gradients are views."""

from collections.abc import Sequence

from cs336kit.predict.engine.operations import Gradient, Op, Storage


def as_computed(op: Op) -> Sequence[Gradient]:
    """Torch computes gradients in the order of its arguments' names: of a product, the second factor's first."""
    second_first = op.kind in ("matmul", "mul") or (op.kind == "linear" and len(op.inputs) == 2)
    return op.gradients[::-1] if second_first else op.gradients


def as_freed(op: Op, *, checkpointed: bool) -> Sequence[Storage]:
    """What it saved, in the order of its arguments' names, too; what was recomputed is freed the other way round."""
    if op.kind in ("matmul", "mul") or (op.kind == "linear" and len(op.inputs) > 2):
        kept = op.saves[::-1]
    elif op.kind == "sdpa" and op.saves:
        queries, keys, *others = op.saves
        kept = (keys, queries, *others)
    else:
        kept = op.saves
    return kept[::-1] if checkpointed else kept


def is_view(op: Op, gradient: Gradient) -> bool:
    """Whether a gradient is a view of what a product returned.

    The product of a linear layer has two axes: an input with more of them was flattened, and the matrix was transposed.
    """
    product = op.kind == "linear" and gradient.bytes is not None
    return product and (gradient.of.source is op.inputs[1].source or len(gradient.of.shape) > 2)
