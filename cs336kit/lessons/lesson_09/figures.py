"""The three products of a layer, which of them a step needs, and where six FLOPs per parameter fail."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from cs336kit import predict
from cs336kit.teach.figures.primitives import QUIET, Look, course, log_axis
from cs336kit.teach.figures.style import COLORS, HATCHES, MARKERS, Drawn, axes, described

#: Forward, the gradient of the weights, the gradient of the input.
_MARKS: list[Look] = [{"facecolor": COLORS[place], "hatch": HATCHES[place]} for place in range(3)]


@described
def products_done(choices: Mapping[str, Iterable[int]], *, layers: int) -> Drawn:
    """For each choice of trained layers, which products of a step are done, in a chain of layers on top of data.

    choices: name → the trained layers, counted from 0. A layer's box has three cells: forward, weights, input.
    """
    from matplotlib.patches import Rectangle

    figure, ax = axes(height=1.1 + 0.95 * len(choices))
    kinds, said = ("forward", "weights", "input"), []
    for row, (name, chosen) in enumerate(choices.items()):
        trained, y, done = set(chosen), -1.5 * row, []
        ax.text(-0.3, y, name, ha="right", va="center", fontsize=12)
        for layer in range(layers):
            needed = (True, layer in trained, any(below < layer for below in trained))
            for place, (kind, wanted) in enumerate(zip(kinds, needed, strict=True)):
                look: Look = _MARKS[place] if wanted else {"facecolor": "white", "linestyle": ":"}
                corner = (layer * 3.5 + place, y - 0.45)
                ax.add_patch(Rectangle(corner, 0.94, 0.9, edgecolor="#777777", linewidth=1, **look))
                done += [f"{kind} of layer {layer + 1}"] if wanted else []
        ax.text(layers * 3.5 - 0.2, y, f"{len(done)} products", ha="left", va="center", fontsize=12)
        said.append(f"{name} {len(done)} products ({', '.join(done)})")
    for layer in range(layers):
        ax.text(layer * 3.5 + 1.47, 0.75, f"layer {layer + 1}", ha="center", va="bottom", fontsize=12)
    marks = [Rectangle((0, 0), 1, 1, edgecolor="#777777", **look) for look in _MARKS]
    words = ["forward", "gradient of the weights", "gradient of the input"]
    figure.legend(marks, words, loc="outside lower center", ncols=3)
    ax.set(xlim=(-4.2, layers * 3.5 + 2.6), ylim=(-1.5 * len(choices) + 0.8, 1.5))
    ax.axis("off")
    return figure, "; ".join(said)


@described
def rule_over_work(lengths: Sequence[int], models: Sequence[str]) -> Drawn:
    """6PN ÷ the FLOPs of a step against sequence length: all pairs of positions solid, a causal kernel's half dashed.

    models: names of predict.MODELS; a ring marks the context that a model was trained at. Where positions are learned,
    a line ends with them.
    """
    figure, ax = axes(height=4.4)
    ax.axhline(1, color=QUIET, linewidth=1)
    ring: Look = {"color": COLORS[6], "marker": "o", "markersize": 12, "fillstyle": "none", "linestyle": ""}
    said = []
    for number, name in enumerate(models):
        config, color = predict.MODELS[name], COLORS[(0, 4, 2)[number % 3]]
        rule = 6 * predict.parameters(config).total
        context = config.context if config.positions == "learned" else max(*lengths, config.context)
        longer = dataclasses.replace(config, context=context)
        shown = [S for S in lengths if context >= S]
        for causal, style in ((False, "-"), (True, "--")):
            work = {S: predict.training_flops(longer, batch=1, sequence=S, causal=causal).total for S in shown}
            ratios = [rule * S / work[S] for S in shown]
            look: Look = {"color": color, "linestyle": style, "marker": MARKERS[number % 3], "markersize": 5}
            ax.plot(shown, ratios, label=None if causal else name, **look)
            if config.context in work:
                at = shown.index(config.context)
                ax.plot([shown[at]], [ratios[at]], **ring)
            said.append(course(f"{name}, {'half of the' if causal else 'all'} pairs", shown, ratios))
    log_axis(ax, "x", list(lengths)[::2], base=2)
    label = {"xlabel": "sequence length S (tokens)", "ylabel": "6PN ÷ FLOPs of the step"}
    ax.set(ylim=(0, 1.15), **label)
    ax.plot([], [], color=COLORS[6], linestyle="-", marker="", label="all pairs")
    ax.plot([], [], color=COLORS[6], linestyle="--", marker="", label="half of them (causal)")
    ax.plot([], [], label="trained at this length", **ring)
    ax.legend(loc="lower left", fontsize=11)
    return figure, f"{label['ylabel']} over {label['xlabel']}: {'; '.join(said)}"
