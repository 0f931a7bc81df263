"""Draw a computation graph, ours or torch's, in one style, with a small layered layout (Sugiyama et al., 1981)."""

import re
from itertools import pairwise

from cs336kit.teach.figures.style import COLORS, Figure, axes, show

FONT = 10.5
_LINE, _PAD = 0.19, 0.1  # inches: the height of a line, the margin of a box
_FILL = {"leaf": "#dcecf7", "parameter": "#d9f0e8", "constant": "#f0f0f0", "compute": "#fdf1d8"}
_EDGE = {"leaf": COLORS[0], "parameter": COLORS[2], "constant": "#888888", "compute": COLORS[1]}


def computation_graph(graph, *, alt: str, direction: str = "right") -> Figure:
    """The nodes and edges of `measure.graph`, with what every node keeps for backward and its bytes.

    direction: where forward goes, "right" or "down" (for deep graphs). Leaves are square, computed nodes round.
    An arrow's label is a scalar's local derivative. Errors: ValueError for another direction or a missing alt.
    """
    if direction not in ("right", "down"):
        raise ValueError(f"direction is {direction!r}: give 'right' or 'down'.")
    lines = [node_lines(node) for node in graph.nodes]
    size = [(_width(text) + 2 * _PAD, _LINE * len(text) + 2 * _PAD) for text in lines]
    labelled = any(node.value is not None for node in graph.nodes)  # slopes stand on the arrows of scalars
    place, links = layout(size, graph.edges, direction, gap=0.75 if labelled and direction == "right" else 0.4)
    low = [min(place[n][a] - size[n][a] / 2 for n in range(len(size))) - 0.1 for a in (0, 1)]
    high = [max(place[n][a] + size[n][a] / 2 for n in range(len(size))) + 0.1 for a in (0, 1)]
    figure, ax = axes(width=high[0] - low[0], height=high[1] - low[1])
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    ax.axis("off")
    figure.get_layout_engine().set(w_pad=0, h_pad=0)
    _draw_edges(ax, graph, links, place, size, 0 if direction == "right" else 1)
    for node, text, (x, y), (w, h) in zip(graph.nodes, lines, place, size, strict=False):
        _draw_node(ax, node, text, x, y, w, h)
    return show(figure, alt=alt)


def _width(text: list[str]) -> float:
    """Inches that the widest line takes, the first one in bold."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = [FontProperties("DejaVu Sans", weight="normal" if i else "bold") for i in range(len(text))]
    return max(TextPath((0, 0), s, size=FONT, prop=f).get_extents().x1 / 72 for s, f in zip(text, font, strict=True))


def node_lines(node) -> list[str]:
    """The text in a node's box: its name, its value and gradient or its shape, and what it keeps."""
    operation = re.sub(r"Backward\d*$", "", node.name)
    named = node.tensor and node.kind == "compute" and f"{node.tensor} = {operation}"
    first = named or node.tensor or operation
    if node.value is not None:
        return [first if node.kind != "constant" else f"{node.value:g}"] + (
            [f"value {node.value:.4g}".replace("-", "−"), f"grad {node.grad:.4g}".replace("-", "−")]
            if node.kind != "constant"
            else []
        )
    second = "scalar" if node.shape == () else "×".join(map(str, node.shape))
    if node.kind != "compute":
        second += f" · {node.kind}"
    kept, seen = [], set()
    for saved in node.saved:
        if saved.storage not in seen:
            seen.add(saved.storage)
            kind = "keeps" if saved.kind == "tensor" else saved.kind  # a leaf exists anyway; it is only referred to
            kept.append(f"{kind} {saved.tensor or saved.name}: {saved.bytes:,} B")
    return [first, second, *(["(freed)"] if node.freed else kept)]


def layout(size, edges, direction: str, *, gap: float = 0.45) -> tuple[list[tuple[float, float]], list[list[int]]]:
    """Centres of all boxes in inches (invisible nodes of long edges at the end), and each edge as a chain of nodes."""
    along, across = (0, 1) if direction == "right" else (1, 0)
    rank, order, links = layers(len(size), edges)
    width = [size[n][across] if n < len(size) else 0.1 for n in range(len(rank))]
    thick = [max(size[n][along] for n in layer if n < len(size)) for layer in order]
    main = [sum(thick[:r]) + gap * r + thick[r] / 2 for r in range(len(order))]
    cross = _coordinates(order, links, width)
    # Forward goes right or down; matplotlib's vertical axis goes up.
    place = [
        (main[rank[n]], -cross[n]) if direction == "right" else (cross[n], -main[rank[n]]) for n in range(len(rank))
    ]
    return place, links


def layers(count: int, edges) -> tuple[list[int], list[list[int]], list[list[int]]]:
    """Rank of every node, nodes of every rank in order, and every edge as a chain with one node per rank.

    The nodes 0 … count − 1 stand in an order in which they can be computed. A rank is the longest way to the end,
    counted from the start; edges over several ranks get invisible nodes (numbers from count on) in between.
    """
    to_end = [0] * count
    for source, target in sorted(edges, key=lambda edge: -edge[1]):
        to_end[source] = max(to_end[source], to_end[target] + 1)
    rank = [max(to_end) - distance for distance in to_end]
    order: list[list[int]] = [[n for n in range(count) if rank[n] == r] for r in range(max(rank) + 1)]
    links = []
    for source, target in edges:
        chain = [source]
        for between in range(rank[source] + 1, rank[target]):
            rank.append(between)
            order[between].append(len(rank) - 1)
            chain.append(len(rank) - 1)
        links.append([*chain, target])
    neighbours = _neighbours(len(rank), links)
    for sweep in range(8):
        for layer in order if sweep % 2 == 0 else order[::-1]:
            position = {n: i for other in order for i, n in enumerate(other)}
            layer.sort(key=lambda n: _mean([position[m] for m in neighbours[n]], position[n]))
    return rank, order, links


def _neighbours(count: int, links) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for chain in links:
        for a, b in pairwise(chain):
            found[a].append(b)
            found[b].append(a)
    return found


def _mean(values, default):
    return sum(values) / len(values) if values else default


def _coordinates(order, links, width) -> list[float]:
    """Each node near the mean of its neighbours, in the order of its layer, boxes 0.25 inches apart."""
    neighbours = _neighbours(len(width), links)
    at = [0.0] * len(width)
    for sweep in range(12):
        for layer in order if sweep % 2 == 0 else order[::-1]:
            wish = [_mean([at[m] for m in neighbours[n]], at[n]) for n in layer]
            placed: list[float] = []
            for i, n in enumerate(layer):
                edge = placed[-1] + (width[layer[i - 1]] + width[n]) / 2 + 0.25 if placed else wish[i]
                placed.append(max(wish[i], edge))
            shift = _mean([w - p for w, p in zip(wish, placed, strict=True)], 0.0)
            for n, p in zip(layer, placed, strict=True):
                at[n] = round(p + shift, 6)
    return at


def _draw_node(ax, node, text, x, y, w, h):
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12" if node.kind == "compute" else "square,pad=0"
    box = FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle=style, linewidth=1.6, zorder=3)
    box.set(facecolor=_FILL[node.kind], edgecolor=_EDGE[node.kind], linestyle="--" if node.kind == "constant" else "-")
    ax.add_patch(box)
    for i, line in enumerate(text):
        weight = "bold" if i == 0 else "normal"
        height = y + _LINE * ((len(text) - 1) / 2 - i)
        ax.text(x, height, line, ha="center", va="center", fontsize=FONT, fontweight=weight, zorder=4)


def _draw_edges(ax, graph, links, place, size, along):
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    step = (1, 0) if along == 0 else (0, -1)
    slopes = {n.index: [s.value for s in n.saved] for n in graph.nodes if n.saved and n.saved[0].value is not None}
    entered: dict[int, int] = {}
    drawn: dict[tuple[int, int], int] = {}
    for edge, chain in zip(graph.edges, links, strict=True):
        source, target = edge
        twin = drawn[edge] = drawn.get(edge, 0) + 1
        offset = 0.0 if graph.edges.count(edge) == 1 else 0.22 * (twin - (graph.edges.count(edge) + 1) / 2)
        points = [list(place[n]) for n in chain]
        for a in (0, 1):
            points[0][a] += step[a] * size[source][a] / 2 + (offset if a != along else 0)
            points[-1][a] -= step[a] * (size[target][a] / 2 + 0.02) - (offset if a != along else 0)
        vertices, codes = [points[0]], [Path.MOVETO]
        for (x0, y0), (x1, y1) in pairwise(points):
            bend = (
                [((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1)] if along == 0 else [(x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2)]
            )
            vertices += [*bend, (x1, y1)]
            codes += [Path.CURVE4] * 3
        arrow = FancyArrowPatch(path=Path(vertices, codes), arrowstyle="-|>", mutation_scale=13, linewidth=1.3)
        arrow.set(color="#555555", zorder=2)
        ax.add_patch(arrow)
        if target in slopes:
            value = slopes[target][entered.get(target, 0)]
            entered[target] = entered.get(target, 0) + 1
            (x0, y0), (x1, y1) = points[-2:]
            label = ax.text(
                (x0 + x1) / 2,
                (y0 + y1) / 2,
                f"×{value:.3g}".replace("-", "−"),
                ha="center",
                va="center",
                fontsize=FONT - 1,
            )
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            label.set_zorder(5)
