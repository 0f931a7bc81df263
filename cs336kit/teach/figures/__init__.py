"""Figures in one style: deterministic SVG, readable in grayscale and when projected, and always with alt text.

There is a short function for each figure, in the file of its lesson, drawn with the primitives: bars, lines, number lines,
cells of memory, a graph, a timeline. The alt text of each says what it drew.
"""
# ruff: noqa: F401 (a lesson calls every figure as teach.figures.<name>)

from cs336kit.teach.figures.lesson_00 import bytes_of_a_parameter, replicated_and_sharded, three_products
from cs336kit.teach.figures.lesson_01 import small_formats, spacings
from cs336kit.teach.figures.lesson_02 import roundings, weight_courses
from cs336kit.teach.figures.lesson_03 import strided, walks
from cs336kit.teach.figures.lesson_04 import allocator_blocks, moving, overlap
from cs336kit.teach.figures.lesson_05 import named_axes
from cs336kit.teach.figures.lesson_06 import block_flops
from cs336kit.teach.figures.lesson_07 import block_shares, roofline
from cs336kit.teach.figures.lesson_08 import computation_graph, difference_errors
from cs336kit.teach.figures.lesson_09 import products_done, rule_over_work
from cs336kit.teach.figures.lesson_10 import histograms, starts, sweeps
from cs336kit.teach.figures.lesson_11 import schedule, trajectories
from cs336kit.teach.figures.lesson_12 import masks, transformer_block
from cs336kit.teach.figures.lesson_13 import loss_curves
from cs336kit.teach.figures.lesson_14 import kept_on_block, saved_against_sequence
from cs336kit.teach.figures.lesson_15 import step_course, storing
from cs336kit.teach.figures.lesson_16 import magnitudes, paired_losses
from cs336kit.teach.figures.lesson_17 import parameter_shares
from cs336kit.teach.figures.lesson_18 import held_by_rank, pipeline
from cs336kit.teach.figures.lesson_19 import decode_shares, guessing, page_pool
from cs336kit.teach.figures.lesson_20 import costs_of_use, extrapolation, valleys
from cs336kit.teach.figures.lesson_21 import verdict_shares
from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show
