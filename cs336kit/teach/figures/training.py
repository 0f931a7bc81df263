"""Figures about training: loss curves, coverage of the data, and what low precision loses."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    *,
    levels: Mapping[str, float] | None = None,
    points: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    smooth: int = 1,
    first_step: int = 0,
    alt: str,
) -> Figure:
    """Losses (nats per token) over steps, one line each; `smooth` averages that many steps into one point.

    levels: name → a loss to compare with, drawn as a thin horizontal line. points: name → (step, loss) pairs, such as
    evaluations, drawn as single marks.
    """
    figure, ax = axes(height=4)
    for name, losses in curves.items():
        averages = [sum(losses[i : i + smooth]) / smooth for i in range(0, len(losses) - smooth + 1, smooth)]
        steps = [first_step + i * smooth + (smooth + 1) / 2 for i in range(len(averages))]
        ax.plot(steps, averages, label=name, markersize=5)
    for name, pairs in (points or {}).items():
        ax.plot(*zip(*pairs, strict=True), linestyle="", label=name, markersize=9)
    for number, (name, level) in enumerate((levels or {}).items()):
        ax.axhline(level, color="#555555", linewidth=1.2, linestyle=("--", ":", "-.")[number % 3])
        ax.annotate(name, (1.01, level), xycoords=("axes fraction", "data"), va="center", fontsize=11)
    ax.set(xlabel="step", ylabel="loss (nats per token)")
    ax.legend(loc="center right", bbox_to_anchor=(1, 0.7))
    return show(figure, alt=alt)


def loss_differences(
    curves: Mapping[str, Sequence[float]], *, reference: str, tolerance: float, smooth: int = 1, alt: str
) -> Figure:
    """Losses over steps, and beside them each curve less that of `reference`, with a band of ± `tolerance`."""
    figure, (left, right) = axes(1, 2, width=8.8, height=3.7)
    means = {
        name: [sum(losses[i : i + smooth]) / smooth for i in range(0, len(losses) - smooth + 1, smooth)]
        for name, losses in curves.items()
    }
    for name, values in means.items():
        steps = [i * smooth + (smooth + 1) / 2 for i in range(len(values))]
        left.plot(steps, values, label=name, markersize=5)
        right.plot(steps, [a - b for a, b in zip(values, means[reference], strict=True)], label=name, markersize=5)
    right.axhspan(-tolerance, tolerance, color="#dddddd", alpha=0.6, linewidth=0, label="spread of seeds")
    left.set(xlabel="step", ylabel="loss (nats per token)")
    right.set(
        xlabel="step", ylabel=f"loss − loss in {reference}", ylim=(-1.3 * tolerance, 2.4 * tolerance)
    )  # room for the legend
    right.legend(fontsize=10, ncols=2)
    return show(figure, alt=alt)


def unseen_share(passes: Sequence[float], predicted: Sequence[float], measured: Sequence[float], *, alt: str) -> Figure:
    """Share of tokens that no batch has held yet, over passes (tokens drawn ÷ tokens in the file)."""
    figure, ax = axes()
    ax.plot(passes, predicted, marker="", label="predicted, exp(−passes)")
    ax.plot(passes, measured, linestyle="", label="measured")
    ax.set(xlabel="tokens drawn ÷ tokens in the file", ylabel="share never drawn", ylim=(0, 1.02))
    ax.legend()
    return show(figure, alt=alt)


def lost_updates(weights: Mapping[str, Sequence[float]], *, every: int, alt: str) -> Figure:
    """The value of one weight over equal updates, one line per way of keeping it, a point at each `every` steps."""
    figure, ax = axes()
    for name, values in weights.items():
        ax.plot(range(0, len(values), every), list(values)[::every], label=name, markersize=5)
    ax.set(xlabel="updates", ylabel="the weight")
    ax.legend()
    return show(figure, alt=alt)


def loss_scale(scales: Sequence[float], skipped: Sequence[int], *, alt: str) -> Figure:
    """The loss scale over steps (logarithmic, base 2), with the skipped steps marked."""
    figure, ax = axes()
    ax.step(range(len(scales)), scales, where="mid", marker="", label="loss scale")
    ax.plot(skipped, [scales[i] for i in skipped], linestyle="", marker="X", color=COLORS[4], label="skipped step")
    ax.set_yscale("log", base=2)
    ax.set(xlabel="step", ylabel="loss scale")
    ax.legend()
    return show(figure, alt=alt)


def magnitudes(
    exponents: Sequence[int], shares: Mapping[str, Sequence[float]], *, limits: Mapping[str, int], alt: str
) -> Figure:
    """Histograms of magnitudes: the share of numbers in [2^e, 2^(e+1)), one set of bars per name.

    limits: name → exponent of the smallest number of a format, drawn as a vertical line.
    """
    figure, ax = axes(width=9)
    width = 0.9 / len(shares)
    for number, (name, values) in enumerate(shares.items()):
        middle = [e + 0.5 + (number - (len(shares) - 1) / 2) * width for e in exponents]
        ax.bar(middle, values, width, color=COLORS[number], hatch=HATCHES[number], edgecolor="white", label=name)
    top = max(max(values) for values in shares.values())
    for number, (name, exponent) in enumerate(limits.items()):
        ax.axvline(exponent, color="#222222", linewidth=1.5, linestyle=("--", ":", "-.")[number % 3])
        ax.annotate(f" {name}", (exponent, top * (1.24 - 0.09 * number)), fontsize=11, va="top")
    ax.set(xlabel="exponent e of the magnitude, in [2^e, 2^(e+1))", ylabel="share", ylim=(0, 1.26 * top))
    ax.grid(axis="x", visible=False)
    ax.legend(loc="center right")
    return show(figure, alt=alt)
