"""Where numbers go when they are rounded."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from cs336kit.teach.figures.primitives import QUIET, Look, Series, lines, over
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described


@described
def roundings(exist: Sequence[float], moves: Mapping[str, tuple[float, float]]) -> Drawn:
    """A number line with the numbers that exist, the stretch that rounds to each, and arrows from numbers to their result.

    exist: in ascending order; moves: what a number is called → (the number, what it is rounded to).
    """
    figure, ax = axes(height=2.9)
    edges = [(a + b) / 2 for a, b in pairwise(exist)]
    margin = 0.08 * (exist[-1] - exist[0])
    ends = (min(exist[0], *(x for x, _ in moves.values())) - margin, max(exist[-1], *(x for x, _ in moves.values())))
    for number, (low, high) in enumerate(zip([ends[0], *edges], [*edges, ends[1] + margin], strict=True)):
        ax.axvspan(low, high, 0.08, 0.4, facecolor=COLORS[0], alpha=0.22 if number % 2 else 0.08, edgecolor="none")
    ax.axhline(0, color="#222222", linewidth=1.2)
    ax.vlines(exist, -0.28, 0.28, color="#222222", linewidth=2)
    for number, (name, (x, result)) in enumerate(sorted(moves.items(), key=lambda move: move[1])):
        height = 1.15 + 0.75 * (number % 2)
        ax.annotate("", (result, 0.3), (x, height), arrowprops={"arrowstyle": "-|>", "lw": 1.8, "color": COLORS[4]})
        ax.plot([x], [height], marker="o", linestyle="", color=COLORS[4])
        ax.text(x, height + 0.2, name, ha="center", va="bottom", fontsize=12.5)
    ax.set_xticks(exist, [f"{x:.5g}" for x in exist])
    ax.set(ylim=(-0.75, 2.75), xlim=(ends[0], ends[1] + margin), yticks=[], xlabel="numbers that exist")
    ax.tick_params(axis="x", colors=QUIET, length=0)
    ax.spines[:].set_visible(False)
    ax.grid(False)
    gone = ", ".join(f"{name} goes to {result:.5g}" for name, (_, result) in moves.items())
    return figure, f"a number line with the numbers {', '.join(f'{x:.5g}' for x in exist)}; {gone}"


@described
def weight_courses(courses: Series) -> Drawn:
    """A weight after each update, one line for each way of keeping it."""
    figure, ax = axes(height=3.9)
    updates = range(len(next(iter(courses.values()))))
    look: Look = {"drawstyle": "steps-post", "marker": "", "legend": {"loc": "upper left"}}
    said = lines(ax, over(updates, courses), xlabel="updates", ylabel="weight", **look)
    return figure, said
