"""How the two napkin answers move when their inputs do."""

from collections.abc import Mapping, Sequence

from cs336kit.teach.figures.style import Figure, axes, show


def days_against_accelerators(
    accelerators: Sequence[int], days: Mapping[str, Sequence[float]], *, mark: tuple[int, float], alt: str
) -> Figure:
    """Training days (log) over the number of accelerators (log), one line for each MFU, and the run of the text."""
    figure, ax = axes(width=8.5, height=4.4)
    for label, line in days.items():
        ax.plot(accelerators, line, label=label)
    for name, height in (("a quarter", 365.25 / 4), ("a year", 365.25)):
        ax.axhline(height, color="#888888", linewidth=1, linestyle=":")
        ax.text(accelerators[0], height * 1.04, name, ha="left", va="bottom", color="#555555")
    ax.annotate(
        f"{mark[0]:,} accelerators: {mark[1]:.1f} days", mark, (10, 95), textcoords="offset points",
        arrowprops={"arrowstyle": "->"}, fontsize=12,
    )  # fmt: skip
    _log_ticks(ax, accelerators)
    ax.set_yscale("log")
    ticks = [t for t in (10, 20, 50, 100, 200, 500, 1000, 2000) if ax.get_ylim()[0] <= t <= ax.get_ylim()[1]]
    ax.set_yticks(ticks, [f"{t:,}" for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel("accelerators")
    ax.set_ylabel("training time (days)")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title="MFU")
    return show(figure, alt=alt)


def largest_models(
    accelerators: Sequence[int], parameters: Mapping[str, Sequence[float]], *, lines: Mapping[str, float], alt: str
) -> Figure:
    """The largest model (parameters, log) over the number of accelerators (log), one line for each way to store it.

    lines: names and sizes of models to compare with.
    """
    figure, ax = axes(width=8.5, height=4.4)
    for label, line in parameters.items():
        ax.plot(accelerators, line, label=label)
    for name, size in lines.items():
        ax.axhline(size, color="#888888", linewidth=1, linestyle=":")
        ax.text(accelerators[-1], size * 1.06, name, ha="right", va="bottom", color="#555555")
    _log_ticks(ax, accelerators)
    ax.set_yscale("log")
    ticks = [10**k for k in range(8, 14) if ax.get_ylim()[0] <= 10**k <= ax.get_ylim()[1]]
    ax.set_yticks(ticks, [f"{t // 10**9:,} B" if t >= 10**9 else f"{t // 10**6:,} M" for t in ticks])
    ax.minorticks_off()
    ax.set_xlabel("accelerators")
    ax.set_ylabel("parameters (B = 10⁹)")
    ax.legend(loc="upper left")
    return show(figure, alt=alt)


def _log_ticks(ax, values: Sequence[int]):
    ax.set_xscale("log")
    shown = values if len(values) <= 8 else values[::2]
    ax.set_xticks(list(shown), [f"{value:,}" for value in shown])
