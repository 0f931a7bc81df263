"""Where a Transformer's parameters are, and its FLOPs."""

from collections.abc import Mapping

from cs336kit.teach.figures.primitives import shares
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def parameter_shares(models: Mapping[str, Mapping[str, int]], *, label: str = "share of the parameters (%)") -> Drawn:
    """One bar of 100 % per model, cut into components.

    models: name → component → parameters, or FLOPs; every model has the same components. label: of the axis.
    """
    figure, ax = axes(height=1.6 + 0.42 * len(models))
    legend = {"ncols": 4, "loc": "lower center", "bbox_to_anchor": (0.45, 1.0)}
    said = shares(ax, models, label=label, legend=legend)
    ax.grid(False)
    return figure, said
