"""What shapes flow through a Transformer's block."""

from collections.abc import Sequence

from cs336kit.teach.figures.graph import graph
from cs336kit.teach.figures.style import described


@described
def transformer_block(steps: Sequence[tuple[str, str, str]]):
    """One pre-norm block from left to right, with its two residual paths.

    steps: (name, shape after it, parameters), six of them: norm, attention, add, norm, MLP, add.
    """
    boxes: list[tuple[Sequence[str], str]] = [(("stream", steps[0][1]), "constant")]
    boxes += [([line for line in step if line], "constant" if step[0] == "+" else "compute") for step in steps]
    chain = [(n, n + 1, "") for n in range(len(steps))]
    adds = [n for n, (name, *_) in enumerate(steps, 1) if name == "+"]
    residual = [(a, b, "unchanged") for a, b in zip([0, *adds], adds, strict=False)]
    figure, said = graph(boxes, [*chain, *residual])
    return figure, f"Transformer block, each step with its shape and parameters: {said}"
