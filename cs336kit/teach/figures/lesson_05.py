"""Which elements make a head."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import cell
from cs336kit.teach.figures.style import Drawn, axes, described

#: An element of one or two blocks of rows, such as the heads of a few tokens.
Blocks = Sequence[Sequence[Sequence[int]]]


@described
def heads(panels: Mapping[str, Blocks], *, head_of: Mapping[int, int]) -> Drawn:
    """Tensors side by side as blocks of rows, each element in the color of the head that it belongs to.

    panels: name → blocks → rows → elements, which are written into their cells; head_of: element → its head.
    """
    between, apart = 2.6, 0.7
    widest = sum(len(blocks[0][0]) + between for blocks in panels.values()) - between
    tallest = max(sum(map(len, blocks)) + apart * (len(blocks) - 1) for blocks in panels.values())
    inch = min(0.5, 8 / (widest + 1.4))
    figure, ax = axes(width=inch * (widest + 1.4), height=inch * (tallest + 1.8))
    left = 0.0
    for name, blocks in panels.items():
        top = (tallest - sum(map(len, blocks)) - apart * (len(blocks) - 1)) / 2
        columns = len(blocks[0][0])
        ax.text(left + (columns - 1) / 2, -1.1 + top, name, ha="center", va="center", fontsize=12)
        for number, rows in enumerate(blocks):
            if len(blocks) > 1:
                place = top + (len(rows) - 1) / 2
                ax.text(left - 0.7, place, f"[{number}]", ha="right", va="center", fontsize=11, color="#444444")
            for i, row in enumerate(rows):
                for j, element in enumerate(row):
                    cell(ax, left + j, top + i, f"{element:02d}", head_of[element])
            top += len(rows) + apart
        left += columns + between
    ax.set(xlim=(-1.4, widest), ylim=(tallest - 0.2, -1.8), aspect="equal")
    ax.axis("off")
    said = "; ".join(f"{name} holds {_said(blocks)}" for name, blocks in panels.items())
    return figure, f"elements in the colors of {len({*head_of.values()})} heads: {said}"


def _said(blocks: Blocks) -> str:
    parts = [", ".join(" ".join(f"{element:02d}" for element in row) for row in rows) for rows in blocks]
    return parts[0] if len(parts) == 1 else " and ".join(f"[{i}] {part}" for i, part in enumerate(parts))
