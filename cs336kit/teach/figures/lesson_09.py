"""Where backward's FLOPs go, and how estimates of FLOPs fail."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import FAINT, Look, Series, bars, lines, log_axis, over
from cs336kit.teach.figures.style import axes, described


@described
def cost_bars(costs: Mapping):
    """Stacked horizontal bars, one per way to train: forward, gradients and recomputation, in forwards of the first way.

    costs: label → predict.GradientFlops. Recomputation is split off from the gradients.
    """
    figure, ax = axes(width=8.5, height=0.9 + 0.55 * len(costs))
    one = next(iter(costs.values())).forward
    parts = {
        "forward": [cost.forward / one for cost in costs.values()],
        "gradients of weights and activations": [(cost.model_flops - cost.forward) / one for cost in costs.values()],
        "computed again": [(cost.total - cost.model_flops) / one for cost in costs.values()],
    }
    parts = {name: values for name, values in parts.items() if any(values)}
    box = {"fc": "white", "ec": "none", "pad": 1}
    inside = {"label_type": "center", "fontsize": 11, "bbox": box}
    look: Look = {"stacked": True, "flat": True, "size": 0.62, "edgecolor": None, "text": inside}
    label = "FLOPs of a step, in forward passes of the first row"
    said = bars(ax, list(costs), parts, label=label, written=lambda x: f"{x:.2f}" if x > 0.12 else "", **look)
    ax.set_xlim(0, 1.03 * max(cost.total for cost in costs.values()) / one)
    figure.legend(loc="outside upper center", ncols=3, fontsize=11)
    return figure, said


@described
def estimate_errors(contexts: Sequence[int], errors: Series, *, band: float = 10.0):
    """The error of an estimate in percent against the context length (log), one line for each; a band marks ±`band` %."""
    figure, ax = axes(width=9, height=4.2)
    ax.axhspan(-band, band, facecolor="#eeeeee", edgecolor=FAINT, linewidth=0.8, zorder=0)
    ax.axhline(0, color=FAINT, linewidth=1)
    labels: Look = {"xlabel": "sequence length S (tokens)", "ylabel": "error of the estimate (%)"}
    said = lines(ax, over(contexts, errors), legend={"loc": "upper left", "bbox_to_anchor": (1.01, 1)}, **labels)
    log_axis(ax, "x", list(contexts)[:: -(-len(contexts) // 5)], base=2)
    return figure, said
