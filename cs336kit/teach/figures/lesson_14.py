"""Where the memory of a training step goes."""

from collections.abc import Mapping

from cs336kit.teach.figures.primitives import bars, listed
from cs336kit.teach.figures.style import axes, described


@described
def saved_parts(policies: Mapping[str, Mapping[str, int]], *, unit: int = 1, name: str = "bytes"):
    """One horizontal bar for each policy, made of the bytes of its parts. All bars have the same parts, in one order."""
    figure, ax = axes(width=9.5, height=1.6 + 0.62 * len(policies))
    parts = {part: [policy[part] / unit for policy in policies.values()] for part in next(iter(policies.values()))}
    totals = [sum(policy.values()) / unit for policy in policies.values()]
    legend = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    said = bars(ax, list(policies), parts, label=name, stacked=True, flat=True, size=0.62, legend=legend)
    for row, total in enumerate(totals):
        ax.text(total, row, f" {total:,.4g}", va="center")
    ax.set_xlim(0, 1.15 * max(totals))
    return figure, f"{said}; in all: {listed(list(policies), totals)}"
