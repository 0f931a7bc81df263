"""Draw SVG directly: fast enough to follow a slider, which matplotlib is not."""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from cs336kit.teach.figures.style import Figure

_FONT = "DejaVu Sans, Verdana, sans-serif"

#: The place of a value on an axis, in units of the drawing.
Scale = Callable[[float], float]


def drawing(width: int, height: int, parts: Iterable[str], alt: str) -> Figure:
    """The parts on a white background, so that they look the same on a light and on a dark page."""
    box = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {box} font-family="{_FONT}" font-size="13">'
    body = "\n".join(parts)
    ground = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return Figure(f"{head}\n<title>{escape(alt)}</title>\n{ground}\n{body}\n</svg>\n", alt)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """The place of a value between `low` (at `start`) and `high` (at `end`), counted in powers."""
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)


def path(points: Sequence[tuple[float, float]], color: str, width: float = 1, dashes: str = "") -> str:
    """A line through the points; dashes: as in SVG, such as "4 3"."""
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{way}" fill="none" stroke="{color}" stroke-width="{width}"{dashed}/>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """A filled rectangle with a white edge, which separates it from its neighbors."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}" stroke="#ffffff"/>'


def dot(x: float, y: float, color: str) -> str:
    """A point that stands out from the lines that it is on."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="{color}" stroke="#ffffff" stroke-width="2"/>'


def text(
    x: float,
    y: float,
    words: str,
    color: str = "#222222",
    *,
    anchor: str = "middle",
    turn: bool = False,
    over: bool = False,
) -> str:
    """Words at a place; anchor: which end is there ("start", "middle", "end"); turn: read upward; over: drawn over lines."""
    halo = ' stroke="#ffffff" stroke-width="3" paint-order="stroke"' if over else ""
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{turned}{halo}>{escape(words)}</text>'
