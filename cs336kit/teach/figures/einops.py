"""Figures about axes: in which order memory holds them, and what an order of products costs."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show


def memory_order(strips: Mapping[str, Sequence[tuple[int, str]]], *, groups: Mapping[int, str], alt: str) -> Figure:
    """Storages as strips of boxes, in the order of memory, coloured and hatched by group.

    strips: name → (group, label) of each element; groups: group → what the legend calls it.
    """
    from matplotlib.patches import Patch, Rectangle

    figure, ax = axes(width=9.5, height=0.8 + 0.72 * len(strips))
    light = {group: COLORS[(3, 1, 2, 5)[i % 4]] for i, group in enumerate(groups)}
    hatch = dict(zip(groups, HATCHES, strict=False))
    for row, cells in enumerate(strips.values()):
        for place, (group, label) in enumerate(cells):
            ax.add_patch(
                Rectangle((place, row - 0.35), 1, 0.7, facecolor=light[group], edgecolor="white", hatch=hatch[group])
            )
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
            ax.text(place + 0.5, row, label, ha="center", va="center", fontsize=9, bbox=box)
    ax.set_yticks(range(len(strips)), strips)
    longest = max(map(len, strips.values()))
    ax.set(xlim=(0, longest), ylim=(len(strips) - 0.5, -0.5), xlabel="place in the storage (element)")
    ax.grid(False)
    legend = [Patch(facecolor=light[g], hatch=hatch[g], edgecolor="white", label=name) for g, name in groups.items()]
    ax.legend(handles=legend, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(groups))
    return show(figure, alt=alt)


def order_costs(sizes: Sequence[int], costs: Mapping[str, Sequence[float]], *, xlabel: str, alt: str) -> Figure:
    """FLOPs of several orders of the same product against the size of an axis, both axes logarithmic."""
    figure, ax = axes(height=4)
    for name, flops in costs.items():
        ax.plot(sizes, flops, label=name)
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel=xlabel, ylabel="FLOPs")
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return show(figure, alt=alt)
