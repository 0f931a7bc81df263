"""How memory moves in the course of a step."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import lines
from cs336kit.teach.figures.style import COLORS, axes, described

_MIB = 2**20


@described
def step_course(
    live_bytes: Sequence[int],
    borders: Sequence[tuple[str, int, int]],
    *,
    peak: tuple[str, int],
    labels: Sequence[str] = (),
):
    """Live bytes (MiB) after each operator of a step, with what was predicted for the borders between its stages.

    borders: (stage, predicted bytes, index of the operator); peak: its name and predicted bytes, drawn as a level;
    labels: the stages to name in the figure.
    """
    figure, ax = axes(width=9.5, height=4.4)
    places, sizes = _visible(live_bytes)
    look = {"facecolor": "#c3dbec", "edgecolor": COLORS[0], "linewidth": 0.8}
    ax.fill_between(places, sizes, step="post", label="measured", **look)
    points = [index for *_, index in borders], [size / _MIB for _, size, _ in borders]
    hollow = {"marker": "o", "markersize": 8, "fillstyle": "none", "color": COLORS[4]}
    named = {"predicted at the borders of the blocks": points}
    said = lines(ax, {}, named, mark=hollow, xlabel="operators of the step", ylabel="alive (MiB)")
    ax.axhline(peak[1] / _MIB, color=COLORS[6], linewidth=1.2, linestyle=":", label=f"predicted peak: {peak[0]}")
    for stage, size, index in borders:
        if stage in labels:
            ax.annotate(stage, (index, size / _MIB), (10, 8), textcoords="offset points", fontsize=11)
    ax.set_ylim(0, max(*live_bytes, peak[1]) / _MIB * 1.32)
    ax.legend(loc="upper left", ncols=1)
    peaks = f"measured peak {max(live_bytes) / _MIB:,.4g}, predicted peak {peak[1] / _MIB:,.4g} ({peak[0]})"
    return figure, f"{said}; {peaks}"


def _visible(live_bytes: Sequence[int]) -> tuple[list[int], list[float]]:
    """The points at which the curve moves by more than 0.4 % of its height, its top, and its ends; sizes in MiB."""
    top = max(live_bytes)
    places = [0]
    for index, size in enumerate(live_bytes):
        if abs(size - live_bytes[places[-1]]) > 0.004 * top or size == top:
            places.append(index)
    places.append(len(live_bytes) - 1)
    return places, [live_bytes[index] / _MIB for index in places]
