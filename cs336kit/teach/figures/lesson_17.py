"""Where a Transformer's parameters sit."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import bars
from cs336kit.teach.figures.style import COLORS, axes, described


@described
def parameter_shares(models: Mapping[str, Mapping[str, int]]):
    """One bar of 100 % per model, cut into components.

    models: name → component → parameters; every model has the same components.
    """
    figure, ax = axes(width=9.5, height=1.6 + 0.42 * len(models))
    parts = {
        component: [100 * model[component] / sum(model.values()) for model in models.values()]
        for component in next(iter(models.values()))
    }
    legend = {"ncols": 4, "loc": "lower center", "bbox_to_anchor": (0.45, 1.0)}
    label = "share of the parameters (%)"
    said = bars(ax, list(models), parts, stacked=True, flat=True, label=label, legend=legend)
    ax.set_xlim(0, 100)
    ax.grid(False)
    return figure, said


@described
def attention_heads(panels: Sequence[tuple[str, int, int]]):
    """Which key/value head serves which query heads. panels: (title, query heads, key/value heads)."""
    figure, plots = axes(1, len(panels), width=3.6 * len(panels), height=2.2, squeeze=False)
    for number, (ax, (title, queries, keys)) in enumerate(zip(plots[0], panels, strict=True)):
        group = queries // keys
        for a in range(queries):
            color = COLORS[a // group % len(COLORS)]
            below = a // group * group + (group - 1) / 2
            ax.plot([a, below], [1, 0], color=color, linestyle="-", marker="", linewidth=1.5)
            ax.plot(a, 1, marker="o", markersize=12, color=color)
            ax.plot(below, 0, marker="s", markersize=14, color=color)
        ax.set(title=title, xlim=(-0.7, queries - 0.3), ylim=(-0.35, 1.35))
        ax.set_yticks([0, 1], ["key/value heads", "query heads"] if number == 0 else ["", ""])
        ax.tick_params(length=0)
        ax.set_xticks([])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    said = [f"{title}: {q} query heads on {k} key/value heads, {q // k} on each" for title, q, k in panels]
    return figure, "; ".join(said)
