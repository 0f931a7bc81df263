"""What moving bytes costs, copies beside computations, and the blocks of an allocator."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from cs336kit.teach.figures.primitives import FAINT, QUIET, bars, listed, timeline
from cs336kit.teach.figures.style import COLORS, Drawn, axes, described, tint

#: A copy or a computation: (lane, number of what is copied, start, end).
Span = tuple[str, int, float, float]
#: (owner or None where it is free, size).
Block = tuple[str | None, float]


@described
def moving(bandwidths: Mapping[str, float], *, size_bytes: float) -> Drawn:
    """Seconds to move `size_bytes` at each bandwidth, in bytes per second, as horizontal bars."""
    figure, ax = axes(height=0.9 + 0.5 * len(bandwidths))
    seconds = [size_bytes / rate for rate in bandwidths.values()]
    places = [f"{name}\n{rate / 1e9:,.0f} GB/s" for name, rate in bandwidths.items()]
    label = f"seconds for {size_bytes / 1e9:,.0f} GB"
    bars(ax, places, {label: seconds}, flat=True, label=label, written="{:.2f} s".format, text={"padding": 4}, hatch="")
    ax.set_xlim(0, max(seconds) * 1.2)
    return figure, f"{label}: {listed(list(bandwidths), seconds)}"


@described
def overlap(runs: Mapping[str, Sequence[Span]], *, to_ms: float = 1) -> Drawn:
    """Copies and computations of each run on two lanes, and below them how many buffers are occupied on the device.

    A buffer is occupied from the start of a copy to the end of the computation with it. to_ms: milliseconds in one unit of
    the times, 1000 for the spans of `measure.overlap_timeline`.
    """
    lasts = [to_ms * max(end for *_, end in spans) for spans in runs.values()]
    # On the axis of a run that takes much longer, nothing could be seen of a short one.
    shared = max(lasts) < 4 * min(lasts)
    figure, panels = axes(len(runs), height=0.5 + (1.45 if shared else 1.75) * len(runs), sharex=shared, squeeze=False)
    said = []
    for ax, (name, spans), last in zip(panels[:, 0], runs.items(), lasts, strict=True):
        least = 0.015 * (max(lasts) if shared else last)  # about as much room as a number takes
        in_ms = [(lane, batch, start * to_ms, end * to_ms) for lane, batch, start, end in spans]
        lanes = timeline(ax, in_ms, {"copy": (2, 1), "compute": (1, 0)}, least=least)
        most = _occupied(ax, in_ms, least)
        ax.set_yticks([2, 1, 0], ["copy", "compute", "buffers"])
        ax.set_title(name, loc="left", fontsize=12)
        ax.set_ylim(-0.45, 2.45)
        said.append(f"{name}: {lanes}, at most {most} occupied")
    panels[-1, 0].set_xlabel("time, ms")
    return figure, f"copies, computations and occupied buffers on the device over time in ms. {'. '.join(said)}"


def _occupied(ax: Any, spans: Sequence[Span], least: float) -> int:
    """Draw how many buffers are occupied, as boxes with that number (none shorter than `least`); returns the largest."""
    arrivals = [start for lane, _, start, _ in spans if lane == "copy"]
    leavings = [end for lane, *_, end in spans if lane == "compute"]
    times = sorted({*arrivals, *leavings})
    counts = [sum(t <= time for t in arrivals) - sum(t <= time for t in leavings) for time in times]
    # Stretches with the same number are one box.
    for count, stretches in groupby(zip(counts, times, times[1:], strict=False), key=itemgetter(0)):
        _, starts, ends = zip(*stretches, strict=True)
        start, width = starts[0], ends[-1] - starts[0]
        ax.barh(0, width, left=start, height=0.82, facecolor=tint(COLORS[2]), edgecolor="white")
        if width >= least:
            ax.text(start + width / 2, 0, str(count), ha="center", va="center", fontsize=11)
    return max(counts)


@described
def allocator_blocks(moments: Mapping[str, Sequence[Sequence[Block]]]) -> Drawn:
    """The segments of an allocator at several moments, each a row of blocks drawn to scale; sizes in MiB."""
    figure, panels = axes(
        len(moments), height=1.25 * sum(map(len, moments.values())) ** 0.9, squeeze=False, sharex=True,
        height_ratios=[len(segments) + 0.4 for segments in moments.values()],
    )  # fmt: skip
    said = []
    for ax, (name, segments) in zip(panels[:, 0], moments.items(), strict=True):
        for row, blocks in enumerate(segments):
            _segment(ax, -row, blocks)
        ax.set_title(name, loc="left", fontsize=12)
        ax.set_ylim(0.55 - len(segments), 0.5)
        ax.axis("off")
        said.append(f"{name}: {'; then '.join(_words(blocks) for blocks in segments)}")
    return figure, f"blocks in segments, in MiB. {'. '.join(said)}"


def _segment(ax: Any, y: float, blocks: Sequence[Block]) -> None:
    at = 0.0
    for owner, size in blocks:
        look = {"facecolor": "#f4f4f4", "edgecolor": FAINT, "linestyle": "--"}
        if owner is not None:
            look = {"facecolor": tint(COLORS[0]), "edgecolor": COLORS[0], "linestyle": "-"}
        ax.barh(y, size, left=at, height=0.8, linewidth=1.5, **look)
        text, ink = (f"{size:g} free", QUIET) if owner is None else (f"{owner}: {size:g} MiB", "#111111")
        ax.text(at + size / 2, y, text, ha="center", va="center", fontsize=12, color=ink)
        at += size


def _words(blocks: Sequence[Block]) -> str:
    return ", ".join(f"{size:g} free" if owner is None else f"{owner} {size:g}" for owner, size in blocks)
