"""What lives in memory in the course of a run, and what happens beside what."""

from collections.abc import Sequence

from cs336kit.teach.figures.primitives import Look, lines, timeline
from cs336kit.teach.figures.style import COLORS, axes, described, show


@described
def timelines(runs: Sequence[tuple[str, Sequence[tuple[str, int, float, float]]]]):
    """Copies and computations of each run on two lanes, over time in milliseconds.

    runs: (name, spans), a span being (lane, batch, start, end) in seconds, as `predict.pipeline_timeline` gives it.
    """
    return _lanes(runs)


def _lanes(runs: Sequence) -> tuple:
    figure, ax = axes(width=9, height=1.1 + 1.25 * len(runs))
    ticks: dict[int, str] = {}
    said = []
    for place, (name, spans) in enumerate(runs):
        lanes = {"copy": (-3 * place, 1), "compute": (-3 * place - 1, 0)}
        drawn = [(lane, batch, start * 1e3, end * 1e3) for lane, batch, start, end in spans]
        said.append(f"{name}: {timeline(ax, drawn, lanes)}")
        ticks |= {-3 * place: f"{name}: copy", -3 * place - 1: "compute"}
    ax.set_yticks(list(ticks), ticks.values())
    ax.set_xlabel("time, ms")
    return figure, f"copies and computations over time in ms. {'. '.join(said)}"


def recorded_timelines(record, *, alt: str | None = None):
    """The spans of a recorded "overlap" stage, pinned above pageable; where there is no record, what says so."""
    if not record:
        return record
    runs = []
    for name, pinned in (("pinned", True), ("pageable", False)):
        rows = [row for lane in ("copy", "compute") for row in record.named(lane, pinned=pinned)]
        starts = [row.setting["start"] for row in rows]
        spans = [(r.label, r.setting["batch"], at, at + r.measured) for r, at in zip(rows, starts, strict=True)]
        runs.append((name, spans))
    figure, said = _lanes(runs)
    return show(figure, alt=f"Recorded on {record.gpu}. {said + '.' if alt is None else alt}")


@described
def live_memory(points: Sequence[tuple[str, float]], *, marks: Sequence[tuple[int, str]] = ()):
    """Live bytes after each operator of a run, as steps, in MiB; marks: (operator's number, text) to point at."""
    figure, ax = axes(width=9, height=3.8)
    values = [live / 2**20 for _, live in points]
    places = range(len(values))
    look: Look = {"drawstyle": "steps-post", "color": COLORS[0], "marker": "", "linestyle": "-"}
    said = lines(ax, {"all": (places, values)}, xlabel="operators run so far", ylabel="live bytes, MiB", **look)
    ax.fill_between(places, values, step="post", color=COLORS[3], alpha=0.35, linewidth=0)
    line = {"arrowstyle": "-", "color": "#777777"}
    for number, text in marks:
        place = {"xy": (number, values[number]), "xytext": (0, 16), "textcoords": "offset points", "ha": "center"}
        ax.annotate(text, fontsize=11, arrowprops=line, **place)
    ax.set_ylim(0, max(values) * 1.25)
    return figure, said + "".join(f"; at {number}: {text}" for number, text in marks)
