"""Figures of the lessons on gradients: the error of a numeric derivative, and where backward's FLOPs go."""

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show


def difference_errors(steps, errors: dict, *, best: dict, alt: str) -> Figure:
    """|numeric − exact| derivative against the step h, both logarithmic, one line per method.

    steps: step sizes; errors: method → error at each step (zeros are left out); best: method → predicted best step.
    """
    figure, ax = axes(width=8.5, height=4.2)
    for i, (method, values) in enumerate(errors.items()):
        points = [(h, e) for h, e in zip(steps, values, strict=True) if e > 0]
        ax.loglog(*zip(*points, strict=True), label=method, markersize=4)
        ax.axvline(best[method], color=COLORS[i], linewidth=1.2, linestyle=":")
        ax.annotate("predicted best h", (best[method], max(max(v) for v in errors.values())), rotation=90, fontsize=11,
                    ha="right", va="top", color=COLORS[i])  # fmt: skip
    ax.set(xlabel="step h", ylabel="error of the derivative")
    figure.legend(loc="outside upper center", ncols=len(errors))
    return show(figure, alt=alt)


def cost_bars(costs: dict, *, alt: str) -> Figure:
    """Stacked horizontal bars, one per way to train: forward, gradients and recomputation, in forwards of the first way.

    costs: label → predict.GradientFlops. Recomputation is split off from the gradients.
    """
    figure, ax = axes(width=8.5, height=0.9 + 0.55 * len(costs))
    parts = {
        "forward": lambda c: c.forward,
        "gradients of weights and activations": lambda c: c.model_flops - c.forward,
        "computed again": lambda c: c.total - c.model_flops,
    }
    parts = {label: part for label, part in parts.items() if any(map(part, costs.values()))}
    one = next(iter(costs.values())).forward
    left = [0.0] * len(costs)
    for i, (label, part) in enumerate(parts.items()):
        width = [part(cost) / one for cost in costs.values()]
        bars = ax.barh(range(len(costs)), width, left=left, color=COLORS[i], hatch=HATCHES[i], label=label, height=0.62)
        bars_text = [f"{w:.2f}" if w > 0.12 else "" for w in width]
        ax.bar_label(bars, bars_text, label_type="center", fontsize=11, bbox={"fc": "white", "ec": "none", "pad": 1})
        left = [a + b for a, b in zip(left, width, strict=True)]
    ax.set_yticks(range(len(costs)), list(costs))
    ax.invert_yaxis()
    ax.set(xlabel="FLOPs of a step, in forward passes of the first row", xlim=(0, 1.03 * max(left)))
    ax.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", ncols=3, fontsize=11)
    return show(figure, alt=alt)
