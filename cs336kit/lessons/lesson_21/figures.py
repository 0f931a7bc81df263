"""What is said about this subject, and how much of it holds."""

from collections.abc import Mapping

from cs336kit.teach.figures.primitives import shares
from cs336kit.teach.figures.style import Drawn, axes, described


@described
def verdict_shares(counts: Mapping[str, Mapping[str, int]]) -> Drawn:
    """One bar of 100 % for each part of the subject, cut into verdicts; the number of claims stands with its name.

    counts: part → verdict → number of claims; every part has the same verdicts.
    """
    figure, ax = axes(height=1.8 + 0.45 * len(counts))
    names = [f"{part} ({sum(of.values())})" for part, of in counts.items()]
    legend = {"ncols": 3, "loc": "lower center", "bbox_to_anchor": (0.35, 1.0)}
    said = shares(ax, counts, names, label="share of the claims (%)", legend=legend)
    ax.grid(False)
    return figure, said
