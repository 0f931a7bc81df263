"""Loss curves."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import Series, averaged, lines
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def loss_curves(
    curves: Series, *, levels: Mapping[str, float], points: Mapping[str, Sequence[tuple[int, float]]], smooth: int
) -> Drawn:
    """Losses (nats per token) over steps, one line each; `smooth` averages that many steps into one point.

    levels: name → a loss to compare with, drawn as a thin horizontal line. points: name → (step, loss) pairs, such as
    evaluations, drawn as single marks.
    """
    figure, ax = axes(height=4)
    means = {name: averaged(losses, smooth) for name, losses in curves.items()}
    single = {name: tuple(zip(*pairs, strict=True)) for name, pairs in points.items()}
    said = lines(ax, means, single, mark={"markersize": 9}, markersize=5, xlabel="step", ylabel="loss (nats per token)")
    for number, (name, level) in enumerate(levels.items()):
        ax.axhline(level, color="#555555", linewidth=1.2, linestyle=("--", ":", "-.")[number % 3])
        ax.annotate(name, (1.01, level), xycoords=("axes fraction", "data"), va="center", fontsize=11)
        said += f"; {name} is {level:.4g}"
    ax.legend(loc="center right", bbox_to_anchor=(1, 0.7))
    return figure, said
