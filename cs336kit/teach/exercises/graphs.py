"""Find what the result of an answer keeps for its backward pass."""

from torch import Tensor

from cs336kit._torch import node_saved


def graph_saved(result: Tensor) -> list[Tensor]:
    """The tensors that all nodes behind a result keep."""
    found: list[Tensor] = []
    waiting, seen = [result.grad_fn], {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found += [tensor for _, tensor in node_saved(node)]
            waiting += [before for before, _ in node.next_functions]
    return found
