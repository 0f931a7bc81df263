"""What a Transformer's block keeps for backward, and how that grows with the sequence."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import QUIET, Look, lines, log_axis, over
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described, tint

_GIB = 2**30


@described
def kept_on_block(steps: Sequence[tuple[str, str, int]], *, row: int) -> Drawn:
    """A block's operations from top to bottom, and beside each the tensors that it keeps, as a bar of their bytes.

    steps: (line of code, what it keeps, bytes); a line that begins with x1 or return adds to the residual stream, which
    runs along the left side. row: the bytes of one number for each token and channel, the unit of the axis.
    """
    from matplotlib.patches import FancyBboxPatch

    figure, ax = axes(height=0.42 * len(steps) + 1.1)
    widest = max(len(line) for line, *_ in steps)
    wide, most = 0.118 * widest + 0.34, max(size for *_, size in steps) / row
    scale, left = 1.75 / most, wide + 0.85
    stream = [n for n, (line, *_) in enumerate(steps) if line.startswith(("x1", "return"))]
    ax.plot([0.2, 0.2], [0.75, 0.2 - stream[-1]], color=QUIET, linewidth=2.2, marker="")
    ax.text(0.2, 0.85, "x", ha="center", va="bottom", fontsize=12)
    for n in stream:
        ax.plot([0.2, 0.5], [-n, -n], color=QUIET, linewidth=2.2, marker="")
        circle = {"boxstyle": "circle,pad=0.1", "facecolor": "white", "edgecolor": QUIET}
        ax.text(0.2, -n, "+", ha="center", va="center", fontsize=12, zorder=4, bbox=circle)
    for n, (line, what, size) in enumerate(steps):
        color = COLORS[2] if n in stream else COLORS[1]
        box = FancyBboxPatch((0.5, -n - 0.34), wide, 0.68, boxstyle="round,pad=0,rounding_size=0.1", zorder=2)
        box.set(facecolor=tint(color), edgecolor=color, linewidth=1.3)
        ax.add_patch(box)
        ax.text(0.62, -n, line, va="center", fontsize=9.5, family="DejaVu Sans Mono", zorder=4)
        ax.barh(-n, scale * size / row, left=left, height=0.56, color=COLORS[0], zorder=2)
        after = left + scale * size / row + 0.08
        ax.text(after, -n, f"{what} · {size:,}" if size else what, va="center", fontsize=10.5)
    ax.text(left, 0.62, f"keeps (bytes; one row for each token is {row:,})", va="bottom", fontsize=11)
    ax.set(xlim=(0, left + 3.7), ylim=(0.5 - len(steps), 1.4))
    ax.axis("off")
    said = ", ".join(f"{line} keeps {what} ({size:,} bytes)" for line, what, size in steps)
    return figure, f"A block from top to bottom with what each line keeps: {said}"


@described
def saved_against_sequence(
    sequences: Sequence[int], predicted: Mapping[str, Sequence[int]], counted: Mapping[str, Sequence[tuple[int, int]]], *,
    level: Mapping[str, int],
) -> Drawn:  # fmt: skip
    """Bytes kept (GiB, log) over the length of the sequence (tokens, log): lines predicted, hollow squares counted.

    level: name → bytes that do not grow with the sequence, drawn as a thin horizontal line.
    """
    figure, ax = axes(height=4.2)
    drawn = over(sequences, {name: [size / _GIB for size in sizes] for name, sizes in predicted.items()})
    points = {name: ([s for s, _ in pairs], [size / _GIB for _, size in pairs]) for name, pairs in counted.items()}
    hollow = {"marker": "s", "markersize": 10, "fillstyle": "none"}
    labels: Look = {"xlabel": "sequence length (tokens)", "ylabel": "kept for backward (GiB)"}
    said = lines(ax, drawn, points, pair=("{}, predicted", "{}, counted"), mark=hollow, legend={}, marker="", **labels)
    for name, size in level.items():
        ax.axhline(size / _GIB, color=QUIET, linewidth=1.4, linestyle=":")
        ax.annotate(name, (0.34, size / _GIB), xycoords=("axes fraction", "data"), va="bottom", fontsize=11)
        said += f"; {name} is {size / _GIB:.4g}"
    log_axis(ax, "x", sequences, base=2)
    log_axis(ax, "y", (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200), write="{:g}".format)
    return figure, f"predicted, then counted, {said}"
