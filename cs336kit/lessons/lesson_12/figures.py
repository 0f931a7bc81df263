"""Who may look where, and what shapes flow through a Transformer's block."""

from collections.abc import Sequence

from cs336kit.teach.figures.graph import graph
from cs336kit.teach.figures.primitives import cell
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def masks(panels: Sequence[tuple[str, Sequence[Sequence[bool]]]]) -> Drawn:
    """Attention masks side by side: a row is a query, a column a key; filled with a dot where it may look.

    panels: (title, rows of booleans).
    """
    figure, plots = axes(1, len(panels), width=3.1 * len(panels), height=3.6, squeeze=False)
    said = []
    for ax, (title, rows) in zip(plots[0], panels, strict=True):
        for i, row in enumerate(rows):
            for j, allowed in enumerate(row):
                cell(ax, j, -i, "●" if allowed else "", 0 if allowed else None)
        ax.set(xlim=(-0.6, len(rows[0]) - 0.4), ylim=(-len(rows) + 0.4, 0.6), aspect="equal")
        ax.grid(False)
        ax.spines[:].set_visible(False)
        ax.set_xticks(range(len(rows[0])))
        ax.set_yticks([-i for i in range(len(rows))], [str(i) for i in range(len(rows))])
        ax.set(xlabel="key position", ylabel="query position")
        ax.set_title(title, fontsize=12)
        said.append(f"{title}, where the queries see {', '.join(str(sum(row)) for row in rows)} keys")
    return figure, f"attention masks, a row for each query: {'; '.join(said)}"


@described
def transformer_block(steps: Sequence[tuple[str, str, str]]) -> Drawn:
    """One pre-norm block from left to right, with its two residual paths.

    steps: (name, shape after it, a third line or none), six of them: norm, attention, add, norm, MLP, add.
    """
    boxes: list[tuple[Sequence[str], str]] = [(("stream", steps[0][1]), "constant")]
    boxes += [([line for line in step if line], "constant" if step[0] == "+" else "compute") for step in steps]
    chain = [(n, n + 1, "") for n in range(len(steps))]
    adds = [n for n, (name, *_) in enumerate(steps, 1) if name == "+"]
    residual = [(a, b, "") for a, b in zip([0, *adds], adds, strict=False)]
    figure, said = graph(boxes, [*chain, *residual])
    return figure, f"Transformer block, each step with its shape: {said}"
