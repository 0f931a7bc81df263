"""The style of all figures, and `show`, through which every figure leaves the kit."""

import functools
import html
import io
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

#: Okabe and Ito's hues (2008), dark enough for thin marks on white (3:1), ordered so that neighbors also differ in
#: lightness when printed in gray. The two blues are far apart, since a dark page makes them alike.
COLORS = ("#0072B2", "#BF7F00", "#007F5C", "#CC79A7", "#B84A00", "#3A93CC", "#222222")
#: What distinguishes bars and areas besides color.
HATCHES = ("", "//", "||", "xx", "\\\\", "++", "--")

#: Characters that need no escape in the address of an image.
_PLAIN = " /:;=,()*+-.!?$|@{}[]'"

#: A matplotlib figure, and what it shows in words.
Drawn = tuple[Any, str]

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))


def _rc() -> dict:
    from cycler import cycler

    return {
        "font.family": "DejaVu Sans",
        "font.size": 13,
        "axes.titlesize": 14,
        "axes.labelsize": 13,
        "xtick.labelsize": 12,
        "ytick.labelsize": 12,
        "legend.fontsize": 12,
        "legend.frameon": False,
        "lines.linewidth": 2.2,
        "lines.markersize": 7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e3e3e3",
        "hatch.linewidth": 0.6,
        "figure.facecolor": "white",
        "savefig.facecolor": "white",
        "svg.hashsalt": "cs336kit",
        "svg.fonttype": "path",
        # Color, line style and marker change together, so that no line depends on color alone.
        "axes.prop_cycle": cycler(color=COLORS) + cycler(linestyle=_LINES) + cycler(marker=MARKERS),
    }


def axes(rows: int = 1, columns: int = 1, *, width: float = 8, height: float = 3.6, **subplots: Any) -> tuple[Any, Any]:
    """A figure and its axes in the style of the course, ready to draw on.

    width and height in inches; other arguments go to ``matplotlib.figure.Figure.subplots``. Returns ``(figure, axes)``.
    Unlike pyplot, nothing is kept open and no window or inline backend shows the figure a second time. The style stays
    set for the session, because matplotlib reads line widths and legend fonts only when something is drawn.
    """
    quiet()
    from matplotlib import rcParams
    from matplotlib.figure import Figure as MatplotlibFigure

    rcParams.update(_rc())
    figure = MatplotlibFigure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **subplots)


def contrast(one: str, other: str) -> float:
    """Contrast of two colors, 1 to 21: text needs 4.5, marks need 3. Source: WCAG 2.2, 1.4.3 and 1.4.11."""
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def readable(ground: str) -> str:
    """The color of text on this background: black or white, whichever differs more."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, ground))


def tint(color: str) -> str:
    """A light background of the same hue, for black text."""
    parts = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{255 - (255 - part) // 4:02x}" for part in parts)


def quiet() -> None:
    """Keep matplotlib's messages about its font cache and folders out of the outputs: they depend on the machine."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)


@dataclass(frozen=True, repr=False)
class Figure:
    """A finished figure: its SVG and the sentence that says what it shows."""

    svg: str
    alt: str

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    @property
    def image(self) -> str:
        """An HTML image with the alt text, at most as wide as its column.

        Notebook front ends show a bare SVG as an image without a name. This one keeps its name everywhere, also where
        HTML is sanitized because a notebook is not trusted, and its ids cannot clash with those of another figure.
        """
        source = f"data:image/svg+xml,{quote(self.svg, safe=_PLAIN)}"
        return f'<img alt="{html.escape(self.alt)}" style="max-width:100%;height:auto" src="{source}">'

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        # The bare SVG is for converters that take no HTML, such as LaTeX.
        data = {"image/svg+xml": self.svg, "text/html": self.image, "text/plain": repr(self)}
        return data, {"image/svg+xml": {"alt": self.alt}}


def show(figure: Any, *, alt: str) -> Figure:
    """Turn a matplotlib figure into deterministic SVG that carries its alt text as title and description.

    alt: what the figure shows, for readers who cannot see it; at least 40 characters. Raises ValueError if it is shorter.
    """
    if not isinstance(alt, str) or len(alt.strip()) < 40:
        raise ValueError(
            f"alt={alt!r} is too short: describe in a sentence (40 characters or more) what the figure shows, "
            "for readers who cannot see it"
        )
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer, canvas, dpi = io.StringIO(), figure.canvas, figure.dpi
    # The canvas writes it and draws it once: savefig draws a figure with a layout twice.
    with rc_context(_rc()):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    figure.set_canvas(canvas)
    figure.dpi = dpi
    alt = " ".join(alt.split())
    # The XML prologue and the external DTD are for stand-alone files; inside a page the <svg> element is enough.
    svg = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    label = html.escape(alt, quote=True)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    svg = re.sub(r"(<svg[^>]*>)", lambda m: f"{m[1]}\n <title>{html.escape(alt)}</title>", svg, count=1)
    return Figure("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", alt)


def described(draw: Callable[..., Drawn]) -> Callable[..., Figure]:
    """Make a figure of what `draw` returns: a matplotlib figure, and what it shows, which becomes the alt text."""

    @functools.wraps(draw)
    def figure(*data: Any, **options: Any) -> Figure:
        quiet()
        drawn, said = draw(*data, **options)
        return show(drawn, alt=said[:1].upper() + said[1:] + ".")

    return figure
