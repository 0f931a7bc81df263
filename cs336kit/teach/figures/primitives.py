"""The parts of figures: bars, lines, number lines, cells of memory, timelines. Each returns what it drew, in words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cs336kit.teach.figures.style import COLORS, HATCHES, MARKERS, readable, tint

#: Name → numbers, such as the heights of a line or of bars.
Series = Mapping[str, Sequence[float]]
#: Keyword arguments that several calls share.
Look = dict[str, Any]
#: Text in the background that can still be read on white and on light gray.
QUIET = "#555555"
#: Lines and edges in the background that can still be seen on white.
FAINT = "#888888"


def listed(names: Sequence, values: Sequence, most: int = 8) -> str:
    """Names with their values: all of them, or the first ones and how many follow; None is left out."""
    pairs = [(name, value) for name, value in zip(names, values, strict=True) if value is not None]
    more = f" and {len(pairs) - most} more" if len(pairs) > most else ""
    return ", ".join(f"{name} {value:,.4g}" for name, value in pairs[:most]) + more


def course(name: str, xs: Sequence[float], ys: Sequence[float], extremes: bool = True) -> str:
    """Where a line begins and ends, and its `extremes` if they are in between; NaN is left out."""
    points = [(float(x), float(y)) for x, y in zip(xs, ys, strict=True) if y == y]
    if not points:
        return f"{name}: none"
    ends = points[:1] + points[1:][-1:]
    words = f"{name} " + " to ".join(f"{y:,.4g} at {x:,.4g}" for x, y in ends)
    for extreme, choose in (("highest", max), ("lowest", min)) if extremes else ():
        x, y = choose(points, key=lambda point: point[1])
        inside = f"{y:,.4g}" not in [f"{end:,.4g}" for _, end in ends]
        words += f", {extreme} {y:,.4g} at {x:,.4g}" if inside else ""
    return words


def averaged(losses: Sequence[float], smooth: int) -> tuple[list[float], list[float]]:
    """The middles of runs of `smooth` steps, and the mean loss of each."""
    means = [sum(losses[i : i + smooth]) / smooth for i in range(0, len(losses) - smooth + 1, smooth)]
    return [i * smooth + (smooth + 1) / 2 for i in range(len(means))], means


def over(xs: Sequence[float], series: Series) -> dict[str, tuple]:
    """Several series with the same xs, as `lines` takes them."""
    return {name: (xs, ys) for name, ys in series.items()}


def lines(
    ax: Any, series: Mapping[str, tuple], points: Mapping[str, tuple] | None = None, *, xlabel: str = "", ylabel: str = "",
    legend: Mapping | None = None, pair: tuple[str, str] = ("{}", "{}"), mark: Mapping | None = None, extremes: bool = True,
    **look: Any,
) -> str:  # fmt: skip
    """Lines, and points without a line: name → (xs, ys). `look` and `mark` go to ``ax.plot`` for lines and for points.

    Points under the name of a line belong to it: they take its color, and the line has no markers of its own.
    pair: how the legend calls a line and its points; legend: where it is, as ``ax.legend`` takes it. extremes: whether
    the words mention them, too.
    """
    said = [
        course(name, xs, ys, extremes) for drawings in (series, points or {}) for name, (xs, ys) in drawings.items()
    ]
    rest = dict(points or {})
    for number, (name, (xs, ys)) in enumerate(series.items()):
        alone = name not in rest
        (line,) = ax.plot(xs, ys, label=pair[0].format(name), **(look if alone else {"marker": "", **look}))
        if not alone:
            dots = {"color": line.get_color(), "marker": MARKERS[number % len(MARKERS)], **(mark or {})}
            ax.plot(*rest.pop(name), linestyle="", label=pair[1].format(name), **dots)
    for name, (xs, ys) in rest.items():
        ax.plot(xs, ys, linestyle="", label=name, **(mark or {}))
    return _labeled(ax, f"{ylabel} over {xlabel}", said, legend, xlabel=xlabel, ylabel=ylabel)


def _labeled(ax: Any, title: str, said: Sequence[str], legend: Mapping | None, **labels: str) -> str:
    ax.set(**{axis: label for axis, label in labels.items() if label})
    if legend is not None:
        ax.legend(**legend)
    return (f"{title}: " if any(labels.values()) else "") + "; ".join(said)


def log_axis(
    ax: Any, which: str, ticks: Sequence[float], *, base: int = 10, write: Callable | None = "{:,}".format
) -> None:
    """Make one axis logarithmic, with ticks at those of the given values that it covers. write: None for powers."""
    getattr(ax, f"set_{which}scale")("log", base=base)
    low, high = getattr(ax, f"get_{which}lim")()
    shown = [tick for tick in ticks if low <= tick <= high]
    getattr(ax, f"set_{which}ticks")(shown, write and [write(tick) for tick in shown])
    ax.minorticks_off()


def bars(
    ax: Any, places: Sequence, series: Mapping[str, Sequence[float | None]], *, label: str = "", legend: Mapping | None = None,
    stacked: bool = False, flat: bool = False, size: float = 0.8, at: Sequence[float] | None = None,
    written: Callable[[float], str] | None = None, text: Mapping | None = None, **look: Any,
) -> str:  # fmt: skip
    """One bar for each name of `series` at each place, side by side or stacked; None leaves a bar out.

    label: of the axis of values. flat: horizontal bars, the first place on top. size: of all bars of a place together.
    at: where the places are on an axis of numbers. written: the text on a bar; `text` goes to ``ax.bar_label``, `look` to
    ``ax.bar``.
    """
    thick = size if stacked else size / len(series)
    along, draw = ("left", ax.barh) if flat else ("bottom", ax.bar)
    base = [0.0] * len(places)
    for number, (name, values) in enumerate(series.items()):
        there = [(i, value) for i, value in enumerate(values) if value is not None]
        shift = 0 if stacked else (number - (len(series) - 1) / 2) * thick
        middles = [(at[i] if at else i) + shift for i, _ in there]
        own = {"label": name, "color": COLORS[number % 7], "hatch": HATCHES[number % 7], "edgecolor": "white", **look}
        starts = {along: [base[i] for i, _ in there]}
        drawn = draw(middles, [value for _, value in there], thick, **starts, **own)
        if written:
            ax.bar_label(drawn, [written(value) for _, value in there], **(text or {}))
        for i, value in there if stacked else ():
            base[i] += value
    if at is None:
        (ax.set_yticks if flat else ax.set_xticks)(range(len(places)), places)
    if flat:
        ax.invert_yaxis()
    ax.grid(axis="y" if flat else "x", visible=False)
    said = [f"{name}: {listed(places, values)}" for name, values in series.items()]
    return _labeled(ax, label, said, legend, **{"xlabel" if flat else "ylabel": label})


def shares(ax: Any, wholes: Mapping[str, Mapping[str, float]], names: Sequence[str] = (), **how: Any) -> str:
    """A horizontal bar of 100 % for each whole, under its own name or that of `names`, cut into parts that all have."""
    parts = {
        part: [100 * of[part] / sum(of.values()) for of in wholes.values()] for part in next(iter(wholes.values()))
    }
    said = bars(ax, names or list(wholes), parts, stacked=True, flat=True, **how)
    ax.set_xlim(0, 100)
    return said


def number_line(ax: Any, values: Series, limit: float) -> str:
    """One line for each name, with a tick at each of its values from -limit to limit."""
    for row, numbers in enumerate(values.values()):
        inside = [x for x in numbers if abs(x) <= limit]
        ax.hlines(row, -limit, limit, color=FAINT, linewidth=0.8)
        ax.vlines(inside, row - 0.3, row + 0.3, color=COLORS[row % len(COLORS)], linewidth=1.3)
    ax.set_yticks(range(len(values)), [f"{name}\n{len(numbers)} values" for name, numbers in values.items()])
    ax.set(ylim=(len(values) - 0.5, -0.5))
    ax.grid(False)
    counts = [sum(abs(x) <= limit for x in numbers) for numbers in values.values()]
    return f"values within ±{limit:g}: {listed(list(values), counts)}"


#: Colors of the rows of a grid, which neither resemble one another nor the gray of what nothing reads.
ROWS = (*(COLORS[number] for number in (0, 1, 2, 4, 3)), "#7A5195", "#6B6B00")


def cell(ax: Any, x: float, y: float, value: object, row: int | None = 0) -> None:
    """One element of memory around (x, y), in the color of its row; None is for an element that nothing reads."""
    from matplotlib.patches import Rectangle

    color = FAINT if row is None else ROWS[row % len(ROWS)]
    face = "#f4f4f4" if row is None else tint(color)
    # The gray edge of a neighbor stays below.
    place = 1 if row is None else 2
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=face, edgecolor=color, linewidth=1.2, zorder=place))
    ink = "#666666" if row is None else "#111111"
    ax.text(x, y, str(value), ha="center", va="center", fontsize=12, color=ink)


def timeline(
    ax: Any,
    spans: Sequence[tuple[str, object, float, float]],
    lanes: Mapping[str, tuple[float, int]],
    *,
    least: float = 0,
) -> str:
    """Spans (lane, text, start, end) on lanes: lane → (height, number of its color); shorter ones than `least` have no text."""
    for lane, text, start, end in spans:
        y, number = lanes[lane]
        look: Look = {"color": COLORS[number], "hatch": HATCHES[number], "edgecolor": "white", "linewidth": 0.5}
        ax.barh(y, end - start, left=start, height=0.82, **look)
        ink = readable(COLORS[number])
        if end - start >= least:
            ax.text((start + end) / 2, y, str(text), ha="center", va="center", fontsize=10, color=ink)
    ax.grid(axis="y", visible=False)
    busy = [sum(end - start for name, _, start, end in spans if name == lane) for lane in lanes]
    last = max(end for *_, end in spans)
    return f"{len(spans)} spans end at {last:,.4g}; busy are {listed(list(lanes), busy)}"
