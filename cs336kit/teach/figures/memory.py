"""Where the memory of a training step goes, how it grows with the sequence, and how it moves in the course of the step."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

_MIB = 2**20


def saved_parts(bars: Mapping[str, Mapping[str, int]], *, unit: int = 1, name: str = "bytes", alt: str) -> Figure:
    """One horizontal bar for each policy, made of the bytes of its parts. All bars have the same parts, in one order."""
    figure, ax = axes(width=9.5, height=1.6 + 0.62 * len(bars))
    parts = list(next(iter(bars.values())))
    for index, part in enumerate(parts):
        lefts = [sum(list(bar.values())[:index]) / unit for bar in bars.values()]
        ax.barh(
            list(bars), [bar[part] / unit for bar in bars.values()], left=lefts, height=0.62, label=part,
            color=COLORS[index % len(COLORS)], hatch=HATCHES[index % len(HATCHES)], edgecolor="white",
        )  # fmt: skip
    for row, bar in enumerate(bars.values()):
        ax.text(sum(bar.values()) / unit, row, f" {sum(bar.values()) / unit:,.4g}", va="center")
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * max(sum(bar.values()) for bar in bars.values()) / unit)
    ax.set_xlabel(name)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return show(figure, alt=alt)


def saved_against_sequence(
    sequences: Sequence[int],
    predicted: Mapping[str, Sequence[int]],
    measured: Mapping[str, Sequence[tuple[int, int]]],
    *,
    alt: str,
) -> Figure:
    """Bytes kept (GiB, log) over the length of the sequence (tokens, log): lines predicted, hollow squares measured."""
    figure, ax = axes(width=8.5, height=4.4)
    for label, line in predicted.items():
        (drawn,) = ax.plot(sequences, [size / 2**30 for size in line], label=f"{label}, predicted", marker="")
        points = measured.get(label, ())
        ax.plot(
            [s for s, _ in points], [size / 2**30 for _, size in points], linestyle="", marker="s", markersize=10,
            fillstyle="none", color=drawn.get_color(), label=f"{label}, measured",
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=10)
    ax.set_xticks(list(sequences), [f"{s:,}" for s in sequences])
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if ax.get_ylim()[0] <= t <= ax.get_ylim()[1]]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel("sequence length (tokens)")
    ax.set_ylabel("kept for backward (GiB)")
    ax.legend()
    return show(figure, alt=alt)


def step_course(
    live_bytes: Sequence[int],
    borders: Sequence[tuple[str, int, int]],
    *,
    peak: tuple[str, int],
    labels: Sequence[str] = (),
    alt: str,
) -> Figure:
    """Live bytes (MiB) after each operator of a step, with what was predicted for the borders between its stages.

    borders: (stage, predicted bytes, index of the operator); peak: its name and predicted bytes, drawn as a level;
    labels: the stages to name in the figure.
    """
    figure, ax = axes(width=9.5, height=4.4)
    places, sizes = _visible(live_bytes)
    ax.fill_between(
        places, sizes, step="post", facecolor="#c3dbec", edgecolor=COLORS[0], linewidth=0.8, label="measured"
    )
    ax.plot(
        [index for *_, index in borders], [size / _MIB for _, size, _ in borders], linestyle="", marker="o",
        markersize=8, fillstyle="none", color=COLORS[4], label="predicted at the borders of the blocks",
    )  # fmt: skip
    ax.axhline(peak[1] / _MIB, color=COLORS[6], linewidth=1.2, linestyle=":", label=f"predicted peak: {peak[0]}")
    for stage, size, index in borders:
        if stage in labels:
            ax.annotate(stage, (index, size / _MIB), (10, 8), textcoords="offset points", fontsize=11)
    ax.set_ylim(0, max(*live_bytes, peak[1]) / _MIB * 1.32)
    ax.set_xlabel("operators of the step")
    ax.set_ylabel("alive (MiB)")
    ax.legend(loc="upper left", ncols=1)
    return show(figure, alt=alt)


def _visible(live_bytes: Sequence[int]) -> tuple[list[int], list[float]]:
    """The points at which the curve moves by more than 0.4 % of its height, its top, and its ends; sizes in MiB."""
    top = max(live_bytes)
    places = [0]
    for index, size in enumerate(live_bytes):
        if abs(size - live_bytes[places[-1]]) > 0.004 * top or size == top:
            places.append(index)
    places.append(len(live_bytes) - 1)
    return places, [live_bytes[index] / _MIB for index in places]
