"""What a training step multiplies, what it keeps for a parameter, and where it keeps it."""

from collections.abc import Mapping

from cs336kit.teach.figures.primitives import QUIET, bars
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def three_products(*, N: float, D: float, F: float, layer_input: str = "h") -> Drawn:
    """Forward and both gradients of a linear layer as rectangles with their sides; the side that is summed away is thick.

    N, D, F: tokens, inputs and outputs of the layer, in any unit: only the proportions are drawn. layer_input: its name.
    """
    from matplotlib.patches import Rectangle

    size = {"N": N, "D": D, "F": F}
    rows = {
        "forward": (layer_input, "W", "y", "N", "D", "F"),
        "gradient\nof the weights": (f"{layer_input}ᵀ", "g", "W.grad", "D", "N", "F"),
        "gradient\nof the input": ("g", "Wᵀ", f"{layer_input}.grad", "N", "F", "D"),
    }
    gap, top, said = 1.6, 0.0, []
    start = 1.45 * max(size.values())
    figure, ax = axes(height=6.2)
    for name, (left, right, result, down, inner, across) in rows.items():
        high = max(size[down], size[inner])
        middle, place = top - high / 2, start
        ax.text(0, middle, name, ha="left", va="center", fontsize=13)
        matrices = ((left, down, inner), (right, inner, across), (result, down, across))
        for (text, tall, wide), sign in zip(matrices, ("@", "=", ""), strict=True):
            w, t = size[wide], size[tall]
            face = COLORS[0] + "30" if text != result else COLORS[2] + "30"
            ax.add_patch(Rectangle((place, middle - t / 2), w, t, facecolor=face, edgecolor="#444444", linewidth=1.2))
            ax.text(place + w / 2, middle, text, ha="center", va="center", fontsize=12)
            ax.text(place + w / 2, middle + t / 2 + 0.15, wide, ha="center", va="bottom", fontsize=12)
            ax.text(place - 0.2, middle, tall, ha="right", va="center", fontsize=12)
            band = {"color": COLORS[4], "linewidth": 6, "solid_capstyle": "butt", "marker": "", "linestyle": "-"}
            if text == left:
                ax.plot([place, place + w], [middle + t / 2] * 2, **band)
            elif text == right:
                ax.plot([place] * 2, [middle - t / 2, middle + t / 2], **band)
            ax.text(place + w + 0.5, middle, sign, ha="center", va="center", fontsize=15)
            place += w + gap
        ax.text(place - gap / 2, middle, f"sum over {inner}", ha="left", va="center", fontsize=12)
        said.append(
            f"{' '.join(name.split())} {left} ({down} × {inner}) @ {right} ({inner} × {across}), summed over {inner}"
        )
        top -= high + 1.4
    across_all = start + 2 * size["F"] + size["N"] + 3.2 * gap + 2.4
    ax.set(xlim=(0, across_all), ylim=(top + 1.1, 0.8), aspect="equal")
    figure.set_figheight(8 * (0.8 - top - 1.1) / across_all)
    ax.axis("off")
    return figure, "three products, each over all of N, D and F: " + "; ".join(said)


@described
def bytes_of_a_parameter(recipes: Mapping[str, Mapping[str, float]]) -> Drawn:
    """What training keeps for a parameter: a bar for each recipe, made of its parts. recipes: name → part → bytes."""
    figure, ax = axes(height=1.5 + 0.55 * len(recipes))
    said = bars(
        ax, list(recipes), _by_part(recipes), label="bytes for each parameter", stacked=True, flat=True, size=0.7,
        written=lambda size: f"{size:g}", text={"label_type": "center", "bbox": _PLATE},
        legend={"loc": "lower center", "bbox_to_anchor": (0.45, 1.0), "ncols": 4},
    )  # fmt: skip
    return figure, said


@described
def replicated_and_sharded(
    parts: Mapping[str, float], *, parameters: float, accelerators: int, memory_bytes: float
) -> Drawn:
    """GB on each accelerator when it holds all of a model, and when it holds its share; a line at what there is.

    parts: part → bytes for each parameter.
    """
    figure, (left, right) = axes(1, 2, height=3.9, sharey=True)
    names = [str(i + 1) for i in range(accelerators)]
    words = []
    for ax, title, share in ((left, "replicated", 1), (right, "sharded", accelerators)):
        sizes = {part: each * parameters / share / 1e9 for part, each in parts.items()}
        bars(ax, names, {part: [size] * accelerators for part, size in sizes.items()}, stacked=True)
        ax.axhline(memory_bytes / 1e9, color=COLORS[6], linestyle="--", linewidth=1.5, marker="")
        ax.set(title=title, xlabel="accelerator")
        words.append(f"{title} {sum(sizes.values()):g} GB on each")
    left.set_ylabel("GB")
    right.text(accelerators - 0.5, memory_bytes / 1e9, "memory of one", ha="right", va="bottom", color=QUIET)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    said = f"a model of {parameters / 1e9:g} billion parameters on {accelerators} accelerators with {memory_bytes / 1e9:g} GB"
    return figure, f"{said}: {', '.join(words)}"


#: The background of a number on a hatched bar.
_PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}


def _by_part(recipes: Mapping[str, Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Part → its bytes in each recipe, None where it has none."""
    parts = dict.fromkeys(part for recipe in recipes.values() for part in recipe)
    return {part: [recipe[part] or None if part in recipe else None for recipe in recipes.values()] for part in parts}
