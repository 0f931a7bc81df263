"""Figures in one style: deterministic SVG, readable in greyscale and when projected, never without alt text."""

from cs336kit.teach.figures.graph import computation_graph
from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show

__all__ = ["COLORS", "HATCHES", "Figure", "axes", "computation_graph", "show"]
