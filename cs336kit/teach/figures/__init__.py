"""Figures in one style: deterministic SVG, readable in greyscale and when projected, never without alt text.

One short function per figure, in the file of its lesson, drawn with the primitives: bars, lines, number lines, a grid of
memory, a graph, a timeline. Each says in its alt text what it drew, unless `alt` says it better.
"""
# ruff: noqa: F401 (a lesson calls every figure as teach.figures.<name>)

from cs336kit.teach.figures.lesson_00 import days_against_accelerators, largest_models
from cs336kit.teach.figures.lesson_01 import number_lines, ranges, running_sums, spacings
from cs336kit.teach.figures.lesson_02 import masks, strided
from cs336kit.teach.figures.lesson_03 import live_memory, recorded_timelines, timelines
from cs336kit.teach.figures.lesson_04 import memory_order, order_costs
from cs336kit.teach.figures.lesson_05 import peaks, roofline
from cs336kit.teach.figures.lesson_06 import computation_graph, difference_errors
from cs336kit.teach.figures.lesson_07 import cost_bars, estimate_errors
from cs336kit.teach.figures.lesson_08 import growth, signal_through_layers, tails
from cs336kit.teach.figures.lesson_09 import state_bars, step_sizes, trajectories
from cs336kit.teach.figures.lesson_10 import loss_curves, unseen_share
from cs336kit.teach.figures.lesson_11 import saved_against_sequence, saved_parts, step_course
from cs336kit.teach.figures.lesson_12 import loss_differences, loss_scale, lost_updates, magnitudes
from cs336kit.teach.figures.lesson_13 import attention_heads, parameter_shares, transformer_block
from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show
