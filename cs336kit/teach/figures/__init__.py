"""Figures in one style: deterministic SVG, readable in greyscale and when projected, never without alt text."""

from cs336kit.teach.figures.formats import number_lines, ranges, running_sums, spacings
from cs336kit.teach.figures.graph import computation_graph
from cs336kit.teach.figures.napkin import days_against_accelerators, largest_models
from cs336kit.teach.figures.strides import masks, strided
from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

__all__ = [
    "COLORS",
    "HATCHES",
    "Figure",
    "axes",
    "computation_graph",
    "days_against_accelerators",
    "largest_models",
    "masks",
    "number_lines",
    "ranges",
    "running_sums",
    "show",
    "spacings",
    "strided",
]
