"""Boxes and arrows, laid out by Graphviz (which comes with pygraphviz's wheels) and drawn in the style of the course."""

import importlib
from collections.abc import Sequence
from typing import Any

from cs336kit.teach.figures.style import COLORS, axes

FONT = 10.5
_LINE, _PAD = 0.19, 0.1  # inches: the height of a line, the margin of a box
_FILL = {"leaf": "#dcecf7", "parameter": "#d9f0e8", "constant": "#f0f0f0", "compute": "#fdf1d8"}
_EDGE = {"leaf": COLORS[0], "parameter": COLORS[2], "constant": "#888888", "compute": COLORS[1]}


def graph(boxes: Sequence[tuple[Sequence[str], str]], edges: Sequence[tuple[int, int, str]]) -> tuple:
    """A figure of boxes (lines of text, kind) and arrows to the right (from, to, label), and what it shows, in words.

    kind: "leaf", "parameter", "constant" (dashed) or "compute" (round).
    """
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.path import Path

    sizes = [(_width(text) + 2 * _PAD, _LINE * len(text) + 2 * _PAD) for text, _ in boxes]
    labels = [(_width(["", label], FONT - 1) + 0.1, _LINE) if label else None for *_, label in edges]
    (width, height), centers, curves, middles = layout(sizes, [edge[:2] for edge in edges], labels)
    figure, ax = axes(width=width, height=height)
    ax.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    ax.axis("off")
    figure.get_layout_engine().set(w_pad=0, h_pad=0)
    for (*_, label), curve, middle in zip(edges, curves, middles, strict=True):
        path = Path(curve, [Path.MOVETO] + [Path.CURVE4] * (len(curve) - 1))
        arrow = FancyArrowPatch(path=path, arrowstyle="-|>", mutation_scale=13, linewidth=1.3, color="#555555")
        arrow.set_zorder(2)
        ax.add_patch(arrow)
        if label:
            white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            ax.text(*middle, label, ha="center", va="center", fontsize=FONT - 1, bbox=white, zorder=5)
    for (text, kind), (w, h), (x, y) in zip(boxes, sizes, centers, strict=True):
        style = "round,pad=0,rounding_size=0.12" if kind == "compute" else "square,pad=0"
        box = FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle=style, linewidth=1.6, zorder=3)
        box.set(facecolor=_FILL[kind], edgecolor=_EDGE[kind], linestyle="--" if kind == "constant" else "-")
        ax.add_patch(box)
        for i, line in enumerate(text):
            look = {"fontsize": FONT, "fontweight": "normal" if i else "bold", "zorder": 4}
            ax.text(x, y + _LINE * ((len(text) - 1) / 2 - i), line, ha="center", va="center", **look)
    inputs = [[boxes[source][0][0] for source, target, _ in edges if target == n] for n in range(len(boxes))]
    said = [
        ", ".join(text) + (f" from {' and '.join(i)}" if i else "") for (text, _), i in zip(boxes, inputs, strict=True)
    ]
    return figure, "; ".join(said)


def _width(text: Sequence[str], size: float = FONT) -> float:
    """Inches that the widest line takes, the first one in bold."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    fonts = [FontProperties("DejaVu Sans", weight="normal" if i else "bold") for i in range(len(text))]
    drawn = [TextPath((0, 0), line, size=size, prop=font) for line, font in zip(text, fonts, strict=True) if line]
    return max(path.get_extents().x1 for path in drawn) / 72


def layout(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    labels: Sequence[tuple[float, float] | None],
) -> tuple:
    """The size of the whole, the center of each box, and each edge's Bézier points and the middle of its label; in inches.

    Graphviz gets every size and sets no text itself, so that the fonts of a machine move nothing.
    """
    pygraphviz = graphviz()
    dot = pygraphviz.AGraph(strict=False, directed=True)
    dot.graph_attr.update(rankdir="LR", nodesep=0.25, ranksep=0.4, pad=0)
    dot.node_attr.update(shape="box", fixedsize=True, label="")
    dot.edge_attr.update(arrowhead="none", headclip=True)
    for number, (width, height) in enumerate(sizes):
        dot.add_node(number, width=width, height=height)
    for number, ((source, target), label) in enumerate(zip(edges, labels, strict=True)):
        dot.add_edge(source, target, key=str(number), **({"label": _blank(*label)} if label else {}))
    dot.layout("dot")
    left, bottom, right, top = map(float, dot.graph_attr["bb"].split(","))

    def inches(point: str) -> tuple[float, float]:
        x, y = map(float, point.split(","))
        return (x - left) / 72 + 0.1, (y - bottom) / 72 + 0.1

    ways = [dot.get_edge(source, target, str(number)).attr for number, (source, target) in enumerate(edges)]
    return (
        ((right - left) / 72 + 0.2, (top - bottom) / 72 + 0.2),
        [inches(dot.get_node(number).attr["pos"]) for number in range(len(sizes))],
        [[inches(point) for point in way["pos"].split()] for way in ways],
        [inches(way["lp"]) if way["lp"] else None for way in ways],
    )


def graphviz() -> Any:
    """The module pygraphviz; if its libraries cannot be loaded, ImportError says what to install.

    Its wheels bring Graphviz along, but not glib and X11, which lie on every desktop and are missing on bare servers.
    """
    try:
        return importlib.import_module("pygraphviz")
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError):
            raise
        raise ImportError(
            f"Graphviz, which lays out the graphs, cannot be loaded: {error}. On Debian and Ubuntu: "
            "apt install libglib2.0-0 libxrender1 libxext6"
        ) from error


def _blank(width: float, height: float) -> str:
    """An empty label of that size, in inches."""
    size = f'fixedsize="true" width="{72 * width:.0f}" height="{72 * height:.0f}"'
    return f'<<table border="0" cellborder="0" cellspacing="0" cellpadding="0"><tr><td {size}></td></tr></table>>'
