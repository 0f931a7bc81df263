"""A computation graph, ours or torch's, and the error of a numeric derivative."""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from cs336kit.teach.figures.graph import graph as draw_graph
from cs336kit.teach.figures.primitives import Series, lines
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def computation_graph(graph: Any) -> Drawn:
    """The nodes and edges of `measure.graph`, with what every node keeps for backward and its bytes.

    Forward goes to the right. Leaves are square, computed nodes round. An arrow's label is a scalar's local derivative.
    """
    slopes = {
        node.index: [f"×{_number(s.value, 3)}" for s in node.saved if s.value is not None] for node in graph.nodes
    }
    edges = [(source, target, slopes[target].pop(0) if slopes[target] else "") for source, target in graph.edges]
    boxes: list[tuple[list[str], str]] = []
    seen: set = set()
    for node in graph.nodes:
        boxes.append((node_lines(node, seen), node.kind))
        seen |= {saved.storage for saved in node.saved}
    figure, said = draw_graph(boxes, edges)
    return figure, f"computation graph: {said}"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}g}".replace("-", "−")


def node_lines(node: Any, seen: Container = ()) -> list[str]:
    """The text in a node's box: its name, its value and gradient or its shape, and what it keeps.

    seen: the storages that nodes before it keep, whose bytes are not said again.
    """
    operation = re.sub(r"Backward\d*$", "", node.name)
    named = node.tensor and node.kind == "compute" and f"{node.tensor} = {operation}"
    first = named or node.tensor or operation
    if node.value is not None:
        if node.kind == "constant":
            return [f"{node.value:g}"]
        return [first, f"value {_number(node.value, 4)}", f"grad {_number(node.grad, 4)}"]
    second = "scalar" if node.shape == () else "×".join(map(str, node.shape))
    if node.kind != "compute":
        second += f" · {node.kind}"
    if node.freed:
        return [first, second, "(freed)"]
    once = {saved.storage: saved for saved in reversed(node.saved)}  # what several operands share is kept once
    kept = [saved for saved in node.saved if once[saved.storage] is saved]
    # A leaf exists anyway; the node only refers to it.
    verbs = ["keeps" if saved.kind == "tensor" else saved.kind for saved in kept]
    said = [f"{verb} {saved.tensor or saved.name}" for verb, saved in zip(verbs, kept, strict=True)]
    sizes = ["the same" if saved.storage in seen else f"{saved.bytes:,} B" for saved in kept]
    return [first, second, *map(": ".join, zip(said, sizes, strict=True))]


@described
def difference_errors(steps: Sequence[float], errors: Series, *, best: Mapping[str, float]) -> Drawn:
    """|numeric − exact| derivative against the step h, both logarithmic, one line per method.

    steps: step sizes; errors: method → error at each step (zeros are left out); best: method → predicted best step.
    """
    figure, ax = axes(height=4.2)
    above = {name: [pair for pair in zip(steps, values, strict=True) if pair[1] > 0] for name, values in errors.items()}
    series = {name: tuple(zip(*pairs, strict=True)) for name, pairs in above.items()}
    said = lines(ax, series, xlabel="step h", ylabel="error of the derivative", markersize=4)
    top = max(max(values) for values in errors.values())
    for number, method in enumerate(errors):
        ax.axvline(best[method], color=COLORS[number], linewidth=1.2, linestyle=":")
        ax.annotate("predicted best h", (best[method], top), rotation=90, fontsize=11, ha="right", va="top")
    ax.set(xscale="log", yscale="log")
    figure.legend(loc="outside upper center", ncols=len(errors))
    return figure, f"{said}. Predicted best: {', '.join(f'{method} {best[method]:.3g}' for method in errors)}"
