"""What low precision loses: magnitudes beside the limits of a format, and losses in pairs."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.primitives import FAINT, Look, Series, averaged, lines, listed
from cs336kit.teach.figures.style import COLORS, HATCHES, Drawn, axes, described, tint


@described
def paired_losses(curves: Series, *, reference: str, nudged: Sequence[str], every: int) -> Drawn:
    """Losses over steps, means of `every` steps, and below them each curve less that of `reference`.

    nudged: curves that differ from the reference by chance alone, the closest first; each is a band as wide as its
    greatest difference.
    """
    figure, (upper, lower) = axes(2, 1, height=6.6, sharex=True)
    means = {name: averaged(losses, every) for name, losses in curves.items()}
    base = means[reference][1]
    less = {name: (steps, [a - b for a, b in zip(ys, base, strict=True)]) for name, (steps, ys) in means.items()}
    bands = {name: max(map(abs, less.pop(name)[1])) for name in nudged}
    shown = {name: drawn for name, drawn in means.items() if name not in bands}
    said = lines(
        upper, shown, markersize=5, legend={"fontsize": 11, "ncols": 2}, ylabel="loss (nats a byte)", xlabel="step"
    )
    del less[reference]
    lower.plot([], [])  # a name keeps its look: the reference comes first above and has no line below
    apart = lines(lower, less, markersize=5, xlabel="step", ylabel=f"loss − loss in {reference}")
    for number, (name, width) in enumerate(bands.items()):
        look: Look = {"facecolor": ("#d9d9d9", "#f1f1f1")[number % 2], "edgecolor": FAINT, "linewidth": 0.8}
        lower.axhspan(-width, width, label=f"{reference}, {name}", zorder=-number, **look)
    lower.legend(handles=lower.patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=11)
    upper.set_xlabel("")
    return figure, f"{said}. {apart}. Bands: {listed(list(bands), list(bands.values()))}"


@described
def magnitudes(exponents: Sequence[int], shares: Series, *, limits: Mapping[str, int]) -> Drawn:
    """Histograms of magnitudes: the share of numbers in [2^e, 2^(e+1)), one set of bars per name.

    limits: name → exponent of the smallest number of a format, drawn as a vertical line.
    """
    figure, ax = axes(height=3.8)
    edges = [*exponents, exponents[-1] + 1]
    for number, (name, each) in enumerate(shares.items()):
        color = COLORS[number % 7]
        look: Look = {"facecolor": tint(color) if number else color, "edgecolor": color, "hatch": HATCHES[number % 7]}
        ax.stairs(each, edges, fill=True, alpha=0.7, linewidth=1.2, label=name, **look)
    figure.legend(loc="outside upper center", ncols=len(shares))
    said = "; ".join(f"{name}: {listed([f'2^{e}' for e in exponents], each)}" for name, each in shares.items())
    top = max(max(values) for values in shares.values())
    for number, (name, exponent) in enumerate(limits.items()):
        ax.axvline(exponent, color="#222222", linewidth=1.5, linestyle=("--", ":", "-.")[number % 3])
        ax.annotate(f" {name}", (exponent, top * (1.24 - 0.09 * number)), fontsize=11, va="top")
    ax.set(xlabel="exponent e of numbers from $2^e$ to $2^{e+1}$", ylabel="share", ylim=(0, 1.26 * top))
    return figure, f"share: {said}. Smallest exponents: {listed(list(limits), list(limits.values()))}"
