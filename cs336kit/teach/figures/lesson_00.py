"""What a training step multiplies, what it keeps for a parameter, and where it keeps it."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import QUIET, bars
from cs336kit.teach.figures.style import COLORS, axes, described, tint

#: Inches that stand for each size of a layer: few tokens' rows, a width, and a wider output.
_SIDES = {"N": 1.15, "D": 0.95, "F": 1.5}
_HEIGHT, _BETWEEN = 1.65, 0.45
#: What is done, and each matrix with its rows and columns: two factors, then the product.
_PRODUCTS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "forward": (("x", "N", "D"), ("W", "D", "F"), ("y", "N", "F")),
    "backward, for W": (("xᵀ", "D", "N"), ("g", "N", "F"), ("W's gradient", "D", "F")),
    "backward, for x": (("g", "N", "F"), ("Wᵀ", "F", "D"), ("x's gradient", "N", "D")),
}


@described
def three_products():
    """The forward product of a layer and the two of its backward pass, each as rectangles with their sides named."""
    figure, ax = axes(height=5.2)
    for row, (title, matrices) in enumerate(_PRODUCTS.items()):
        middle, x = -row * _HEIGHT * 1.12, 2.1
        ax.text(0, middle, title, va="center", fontsize=13)
        for place, (name, down, across) in enumerate(matrices):
            _matrix(ax, x, middle, name, down, across, color=COLORS[(0, 1, 2)[place]])
            x += _SIDES[across] + _BETWEEN * 1.4
            if place < 2:
                ax.text(x - _BETWEEN * 0.95, middle, "×="[place], ha="center", va="center", fontsize=17)
    ax.set(xlim=(0, 8), ylim=(-2.24 * _HEIGHT - 1.05, 1.05), aspect="equal")
    ax.axis("off")
    said = (
        f"{title}: {a} ({a_rows} × {a_columns}) times {b} ({b_rows} × {b_columns}) gives {c} ({rows} × {columns})"
        for title, ((a, a_rows, a_columns), (b, b_rows, b_columns), (c, rows, columns)) in _PRODUCTS.items()
    )
    return figure, "three products of matrices. " + "; ".join(said)


def _matrix(ax, left: float, middle: float, name: str, down: str, across: str, *, color: str):
    from matplotlib.patches import Rectangle

    width, height = _SIDES[across], _SIDES[down]
    box = (left, middle - height / 2), width, height
    ax.add_patch(Rectangle(*box, facecolor=tint(color), edgecolor=color, linewidth=1.5))
    ax.text(left + width / 2, middle, name.replace(" ", "\n"), ha="center", va="center", fontsize=12)
    ax.text(left - 0.06, middle, down, ha="right", va="center", color=QUIET, fontsize=12)
    ax.text(left + width / 2, middle + height / 2 + 0.05, across, ha="center", va="bottom", color=QUIET, fontsize=12)


@described
def bytes_of_a_parameter(recipes: Mapping[str, Mapping[str, float]]):
    """What training keeps for a parameter: a bar for each recipe, made of its parts. recipes: name → part → bytes."""
    figure, ax = axes(height=1.5 + 0.55 * len(recipes))
    said = bars(
        ax, list(recipes), _by_part(recipes), label="bytes for each parameter", stacked=True, flat=True, size=0.7,
        written=lambda size: f"{size:g}", text={"label_type": "center", "bbox": _PLATE},
        legend={"loc": "lower center", "bbox_to_anchor": (0.45, 1.0), "ncols": 4},
    )  # fmt: skip
    return figure, said


@described
def replicated_and_sharded(parts: Mapping[str, float], *, parameters: float, accelerators: int, memory_bytes: float):
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


#: Behind a number on a hatched bar.
_PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85}


def _by_part(recipes: Mapping[str, Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Part → its bytes in each recipe, None where it has none."""
    parts = dict.fromkeys(part for recipe in recipes.values() for part in recipe)
    return {part: [recipe[part] or None if part in recipe else None for recipe in recipes.values()] for part in parts}
