"""Peaks, rooflines and timelines of devices."""

from collections.abc import Sequence

from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def peaks(devices: Sequence[tuple[str, dict[str, float]]], precisions: Sequence[str], *, alt: str) -> Figure:
    """Peak TFLOP/s by precision, one group of bars each, a bar per device; a precision that a device lacks has no bar.

    devices: (name, {precision: FLOP/s}).
    """
    figure, ax = axes(width=9, height=4)
    width = 0.8 / len(devices)
    for place, (name, values) in enumerate(devices):
        there = [(i, values[p]) for i, p in enumerate(precisions) if p in values]
        left = [i - 0.4 + width * (place + 0.5) for i, _ in there]
        bars = ax.bar(left, [v / 1e12 for _, v in there], width * 0.92, label=name, color=COLORS[place],
                      hatch=HATCHES[place], edgecolor="white")  # fmt: skip
        ax.bar_label(
            bars, [f"{v / 1e12:.3g}" if v < 1e14 else f"{v / 1e12:.0f}" for _, v in there], fontsize=9, padding=1
        )
    ax.set_yscale("log")
    ax.set_xticks(range(len(precisions)), precisions)
    ax.set_ylabel("dense peak, TFLOP/s")
    ax.margins(y=0.12)
    ax.grid(axis="x", visible=False)
    ax.legend(loc="upper left")
    return show(figure, alt=alt)


def roofline(
    points: Sequence[tuple[str, float, float]],
    *,
    peak_flops_per_second: float,
    bandwidth_bytes_per_second: float,
    alt: str,
    ceilings: Sequence[tuple[str, float]] = (),
) -> Figure:
    """The roof over arithmetic intensity, and the points (name, FLOPs per byte, FLOP/s) under it, in log–log.

    ceilings: further horizontal roofs (name, FLOP/s), such as a slower precision.
    """
    figure, ax = axes(width=9, height=4.6)
    ridge = peak_flops_per_second / bandwidth_bytes_per_second
    low = min([ridge / 30, *(intensity / 2 for _, intensity, _ in points)])
    high = max([ridge * 30, *(intensity * 2 for _, intensity, _ in points)])
    ax.plot([low, ridge, high], [low * bandwidth_bytes_per_second, *[peak_flops_per_second] * 2], color=COLORS[6],
            marker="", linestyle="-", linewidth=3)  # fmt: skip
    for name, rate in ceilings:
        ax.plot([rate / bandwidth_bytes_per_second, high], [rate, rate], color="#777777", marker="", linestyle="--")
        ax.annotate(name, (high, rate), ha="right", va="bottom", fontsize=11, color="#555555")
    ax.axvline(ridge, color="#999999", linewidth=1, linestyle=":", marker="")
    ax.annotate(f"ridge {ridge:.4g}", (ridge, peak_flops_per_second), xytext=(4, 6), textcoords="offset points",
                fontsize=11, color="#555555")  # fmt: skip
    for place, (name, intensity, rate) in enumerate(points):
        ax.plot([intensity], [rate], color=COLORS[place % 6], marker=_MARKERS[place % 7], linestyle="none", label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("arithmetic intensity, FLOPs per byte")
    ax.set_ylabel("FLOP/s")
    ax.margins(y=0.15)
    if points:
        ax.legend(loc="lower right", fontsize=10)
    return show(figure, alt=alt)


def timelines(runs: Sequence[tuple[str, Sequence[tuple[str, int, float, float]]]], *, alt: str) -> Figure:
    """Copies and computations of each run on two lanes, over time in milliseconds.

    runs: (name, spans), a span being (lane, batch, start, end) in seconds, as `predict.pipeline_timeline` gives it.
    """
    figure, ax = axes(width=9, height=1.1 + 1.25 * len(runs))
    ticks, labels = [], []
    for place, (name, spans) in enumerate(runs):
        for lane, batch, start, end in spans:
            y = -(3 * place + (lane == "compute"))
            ax.barh(y, (end - start) * 1e3, left=start * 1e3, height=0.82, edgecolor="white",
                    color=COLORS[0] if lane == "compute" else COLORS[1], hatch="" if lane == "compute" else "//")  # fmt: skip
            ax.text((start + end) / 2 * 1e3, y, str(batch), ha="center", va="center", fontsize=10,
                    color="white" if lane == "compute" else "black")  # fmt: skip
        ticks += [-3 * place, -3 * place - 1]
        labels += [f"{name}: copy", "compute"]
    ax.set_yticks(ticks, labels)
    ax.set_xlabel("time, ms")
    ax.grid(axis="y", visible=False)
    return show(figure, alt=alt)


def recorded_timelines(record, *, alt: str):
    """The spans of a recorded "overlap" stage, pinned above pageable; where there is no record, what says so."""
    runs = []
    for name, pinned in (("pinned", True), ("pageable", False)):
        rows = [row for lane in ("copy", "compute") for row in record.named(lane, pinned=pinned)]
        spans = [(r.label, r.setting["batch"], r.setting["start"], r.setting["start"] + r.measured) for r in rows]
        runs.append((name, spans))
    return timelines(runs, alt=f"Recorded on {record.gpu}. {alt}") if record else record


def live_memory(points: Sequence[tuple[str, float]], *, marks: Sequence[tuple[int, str]] = (), alt: str) -> Figure:
    """Live bytes after each operator of a run, as steps, in MiB; marks: (operator's number, text) to point at."""
    figure, ax = axes(width=9, height=3.8)
    values = [live / 2**20 for _, live in points]
    ax.step(range(len(values)), values, where="post", color=COLORS[0], marker="", linestyle="-")
    ax.fill_between(range(len(values)), values, step="post", color=COLORS[3], alpha=0.35, linewidth=0)
    top = max(values)
    for number, text in marks:
        ax.annotate(text, (number, values[number]), xytext=(0, 16), textcoords="offset points", ha="center", fontsize=11,
                    arrowprops={"arrowstyle": "-", "color": "#777777"})  # fmt: skip
    ax.set_ylim(0, top * 1.25)
    ax.set_xlabel("operators run so far")
    ax.set_ylabel("live bytes, MiB")
    return show(figure, alt=alt)
