"""What low precision loses: losses beside one another, lost updates, the loss scale, and magnitudes."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.lesson_13 import averaged
from cs336kit.teach.figures.primitives import FAINT, Look, Series, bars, lines, listed
from cs336kit.teach.figures.style import COLORS, axes, described


@described
def loss_differences(curves: Series, *, reference: str, tolerance: float, smooth: int = 1):
    """Losses over steps, and beside them each curve less that of `reference`, with a band of ± `tolerance`."""
    figure, (left, right) = axes(1, 2, width=8.8, height=3.7)
    means = {name: averaged(losses, smooth) for name, losses in curves.items()}
    base = means[reference][1]
    less = {name: (steps, [a - b for a, b in zip(ys, base, strict=True)]) for name, (steps, ys) in means.items()}
    said = lines(left, means, markersize=5, xlabel="step", ylabel="loss (nats per token)")
    apart = lines(right, less, markersize=5, xlabel="step", ylabel=f"loss − loss in {reference}")
    band = {"facecolor": "#ececec", "edgecolor": FAINT, "linewidth": 0.8, "zorder": 0}
    right.axhspan(-tolerance, tolerance, label="spread of seeds", **band)
    right.set_ylim(-1.3 * tolerance, 2.4 * tolerance)  # room for the legend
    right.legend(fontsize=10, ncols=2)
    return figure, f"{said}. {apart}; the band of seeds is ±{tolerance:.3g}"


@described
def lost_updates(weights: Series, *, every: int):
    """The value of one weight over equal updates, one line per way of keeping it, a point at each `every` steps."""
    figure, ax = axes()
    shown = {name: (range(0, len(values), every), list(values)[::every]) for name, values in weights.items()}
    return figure, lines(ax, shown, markersize=5, xlabel="updates", ylabel="the weight", legend={})


@described
def loss_scale(scales: Sequence[float], skipped: Sequence[int]):
    """The loss scale over steps (logarithmic, base 2), with the skipped steps marked."""
    figure, ax = axes()
    points = {"skipped step": (skipped, [scales[step] for step in skipped])}
    curve = {"loss scale": (range(len(scales)), scales)}
    look: Look = {"mark": {"marker": "X", "color": COLORS[4]}, "drawstyle": "steps-mid", "marker": ""}
    said = lines(ax, curve, points, xlabel="step", ylabel="loss scale", legend={}, **look)
    ax.set_yscale("log", base=2)
    return figure, f"{said}; {len(skipped)} steps are skipped"


@described
def magnitudes(exponents: Sequence[int], shares: Series, *, limits: Mapping[str, int]):
    """Histograms of magnitudes: the share of numbers in [2^e, 2^(e+1)), one set of bars per name.

    limits: name → exponent of the smallest number of a format, drawn as a vertical line.
    """
    figure, ax = axes(width=9)
    look: Look = {"label": "share", "legend": {"loc": "center right"}, "size": 0.9, "at": [e + 0.5 for e in exponents]}
    said = bars(ax, [f"2^{e}" for e in exponents], shares, **look)
    top = max(max(values) for values in shares.values())
    for number, (name, exponent) in enumerate(limits.items()):
        ax.axvline(exponent, color="#222222", linewidth=1.5, linestyle=("--", ":", "-.")[number % 3])
        ax.annotate(f" {name}", (exponent, top * (1.24 - 0.09 * number)), fontsize=11, va="top")
    ax.set(xlabel="exponent e of the magnitude, in [2^e, 2^(e+1))", ylim=(0, 1.26 * top))
    return figure, f"{said}. Smallest exponents: {listed(list(limits), list(limits.values()))}"
