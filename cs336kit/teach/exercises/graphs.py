"""What an answer's result keeps for its backward pass: exercises ask it of graphs that readers build."""

from torch import Tensor

from cs336kit.measure._torch import node_saved


def graph_saved(result: Tensor) -> list[Tensor]:
    """What all nodes behind a result keep."""
    found: list[Tensor] = []
    waiting, seen = [result.grad_fn], {None}
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found += [tensor for _, tensor in node_saved(node)]
            waiting += [before for before, _ in node.next_functions]
    return found
