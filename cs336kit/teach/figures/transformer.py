"""Figures about Transformers: what shapes flow through a block, where parameters sit, and how estimates of FLOPs fail."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show


def block(steps: Sequence[tuple[str, str, str]], *, alt: str) -> Figure:
    """One pre-norm block from left to right, with its two residual paths above.

    steps: (name, shape after it, parameters), six of them: norm, attention, add, norm, MLP, add.
    """
    from matplotlib.patches import FancyBboxPatch

    figure, ax = axes(width=11, height=3.3)
    width, gap = 1.35, 0.55
    centre = [i * (width + gap) + 1.3 for i in range(len(steps))]
    for x, (name, shape, parameters) in zip(centre, steps, strict=True):
        add = name == "+"
        half = 0.28 if add else width / 2
        box = FancyBboxPatch((x - half, -0.3), 2 * half, 0.6, boxstyle="round,pad=0,rounding_size=0.1", linewidth=1.6)
        box.set(facecolor="#f0f0f0" if add else "#dcecf7", edgecolor=COLORS[6] if add else COLORS[0], zorder=3)
        ax.add_patch(box)
        ax.text(x, 0, name, ha="center", va="center", fontsize=13, zorder=4)
        ax.text(x, -0.55, shape, ha="center", va="center", fontsize=11)
        ax.text(x, -0.85, parameters, ha="center", va="center", fontsize=11, color="#555555")
    halves = [0.28 if step[0] == "+" else width / 2 for step in steps]
    starts = [0.2, *(x + half for x, half in zip(centre, halves, strict=True))]
    ends = [*(x - half for x, half in zip(centre, halves, strict=True)), centre[-1] + 1.0]
    for start, end in zip(starts, ends, strict=True):
        ax.annotate("", (end, 0), (start, 0), arrowprops={"arrowstyle": "-|>", "color": "#555555"})
    adds = [x for x, step in zip(centre, steps, strict=True) if step[0] == "+"]
    for start, end in zip([0.4, adds[0] + 0.5], adds, strict=True):
        ax.plot([start, start, end, end], [0, 0.75, 0.75, 0.45], color=COLORS[4], linestyle="-", marker="", linewidth=2)
        ax.annotate("", (end, 0.3), (end, 0.5), arrowprops={"arrowstyle": "-|>", "color": COLORS[4], "linewidth": 2})
        ax.text((start + end) / 2, 0.87, "residual: the input, unchanged", ha="center", fontsize=11, color=COLORS[4])
    for y, row in ((-0.55, "shape"), (-0.85, "parameters")):
        ax.text(0.45, y, row, ha="right", va="center", fontsize=11, color="#555555")
    ax.set_xlim(-0.75, centre[-1] + 1.2)
    ax.set_ylim(-1.05, 1.1)
    ax.axis("off")
    return show(figure, alt=alt)


def parameter_shares(models: Mapping[str, Mapping[str, int]], *, alt: str) -> Figure:
    """One bar of 100 % per model, cut into components.

    models: name → component → parameters; every model has the same components.
    """
    figure, ax = axes(width=9.5, height=1.6 + 0.42 * len(models))
    names = list(models)
    left = [0.0] * len(names)
    for i, component in enumerate(next(iter(models.values()))):
        shares = [100 * models[name][component] / sum(models[name].values()) for name in names]
        ax.barh(names, shares, left=left, label=component, color=COLORS[i], hatch=HATCHES[i], edgecolor="white")
        left = [a + b for a, b in zip(left, shares, strict=True)]
    ax.invert_yaxis()
    ax.set(xlabel="share of the parameters (%)", xlim=(0, 100))
    ax.grid(False)
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.45, 1.0))
    return show(figure, alt=alt)


def estimate_errors(
    contexts: Sequence[int], errors: Mapping[str, Sequence[float]], *, alt: str, band: float = 10.0
) -> Figure:
    """The error of an estimate in percent against the context length (log), one line for each; a band marks ±`band` %."""
    figure, ax = axes(width=9, height=4.2)
    ax.axhspan(-band, band, color="#eeeeee", zorder=0)
    ax.axhline(0, color="#888888", linewidth=1)
    for name, line in errors.items():
        ax.plot(contexts, line, label=name)
    ax.set_xscale("log", base=2)
    ticks = list(contexts)[:: -(-len(contexts) // 5)]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    ax.minorticks_off()
    ax.set(xlabel="sequence length S (tokens)", ylabel="error of the estimate (%)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return show(figure, alt=alt)


def heads(panels: Sequence[tuple[str, int, int]], *, alt: str) -> Figure:
    """Which key/value head serves which query heads. panels: (title, query heads, key/value heads)."""
    figure, plots = axes(1, len(panels), width=3.6 * len(panels), height=2.2, squeeze=False)
    for number, (ax, (title, queries, keys)) in enumerate(zip(plots[0], panels, strict=True)):
        group = queries // keys
        for a in range(queries):
            k = a // group
            color = COLORS[k % len(COLORS)]
            below = k * group + (group - 1) / 2
            ax.plot([a, below], [1, 0], color=color, linestyle="-", marker="", linewidth=1.5)
            ax.plot(a, 1, marker="o", markersize=12, color=color)
            ax.plot(below, 0, marker="s", markersize=14, color=color)
        ax.set(title=title, xlim=(-0.7, queries - 0.3), ylim=(-0.35, 1.35))
        ax.set_yticks([0, 1], ["key/value heads", "query heads"] if number == 0 else ["", ""])
        ax.tick_params(length=0)
        ax.set_xticks([])
        ax.grid(False)
        ax.spines[:].set_visible(False)
    return show(figure, alt=alt)
