"""In which order memory holds axes, and what an order of products costs."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import Look, Series, cell, lines, log_axis, over
from cs336kit.teach.figures.style import COLORS, HATCHES, axes, described


@described
def memory_order(strips: Mapping[str, Sequence[tuple[int, str]]], *, groups: Mapping[int, str]):
    """Storages as strips of boxes, in the order of memory, coloured and hatched by group.

    strips: name → (group, label) of each element; groups: group → what the legend calls it.
    """
    from matplotlib.patches import Patch

    figure, ax = axes(width=9.5, height=0.8 + 0.72 * len(strips))
    look: dict[int, Look] = {
        group: {"facecolor": COLORS[(3, 1, 2, 5)[i % 4]], "hatch": HATCHES[i % 7], "edgecolor": "white"}
        for i, group in enumerate(groups)
    }
    for row, elements in enumerate(strips.values()):
        for place, (group, label) in enumerate(elements):
            cell(ax, place + 0.5, row, label, height=0.7, **look[group])
    ax.set_yticks(range(len(strips)), strips)
    longest = max(map(len, strips.values()))
    ax.set(xlim=(0, longest), ylim=(len(strips) - 0.5, -0.5), xlabel="place in the storage (element)")
    ax.grid(False)
    legend = [Patch(label=name, **look[group]) for group, name in groups.items()]
    ax.legend(handles=legend, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(groups))
    said = "; ".join(f"{name}: {' '.join(f'{g}/{label}' for g, label in row)}" for name, row in strips.items())
    return figure, f"elements in the order of memory, as group/label. {said}"


@described
def order_costs(sizes: Sequence[int], costs: Series, *, xlabel: str):
    """FLOPs of several orders of the same product against the size of an axis, both axes logarithmic."""
    figure, ax = axes(height=4)
    said = lines(ax, over(sizes, costs), xlabel=xlabel, ylabel="FLOPs", legend={"loc": "upper left"})
    ax.set_yscale("log")
    log_axis(ax, "x", sizes, base=2)
    return figure, said
