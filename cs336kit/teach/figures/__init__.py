"""Figures in one style: deterministic SVG, readable in greyscale and when projected, never without alt text."""

from cs336kit.teach.figures.einops import memory_order, order_costs
from cs336kit.teach.figures.formats import number_lines, ranges, running_sums, spacings
from cs336kit.teach.figures.gradients import cost_bars, difference_errors
from cs336kit.teach.figures.graph import computation_graph
from cs336kit.teach.figures.hardware import live_memory, peaks, recorded_timelines, roofline, timelines
from cs336kit.teach.figures.initialization import growth, signal_through_layers, tails
from cs336kit.teach.figures.memory import saved_against_sequence, saved_parts, step_course
from cs336kit.teach.figures.napkin import days_against_accelerators, largest_models
from cs336kit.teach.figures.optimizers import state_bars, step_sizes, trajectories
from cs336kit.teach.figures.strides import masks, strided
from cs336kit.teach.figures.style import COLORS, HATCHES, Figure, axes, show
from cs336kit.teach.figures.training import (
    loss_curves,
    loss_differences,
    loss_scale,
    lost_updates,
    magnitudes,
    unseen_share,
)
from cs336kit.teach.figures.transformer import block as transformer_block
from cs336kit.teach.figures.transformer import estimate_errors, parameter_shares
from cs336kit.teach.figures.transformer import heads as attention_heads

__all__ = [
    "COLORS",
    "HATCHES",
    "Figure",
    "attention_heads",
    "axes",
    "computation_graph",
    "cost_bars",
    "days_against_accelerators",
    "difference_errors",
    "estimate_errors",
    "growth",
    "largest_models",
    "live_memory",
    "loss_curves",
    "loss_differences",
    "loss_scale",
    "lost_updates",
    "magnitudes",
    "masks",
    "memory_order",
    "number_lines",
    "order_costs",
    "parameter_shares",
    "peaks",
    "ranges",
    "recorded_timelines",
    "roofline",
    "running_sums",
    "saved_against_sequence",
    "saved_parts",
    "show",
    "signal_through_layers",
    "spacings",
    "state_bars",
    "step_course",
    "step_sizes",
    "strided",
    "tails",
    "timelines",
    "trajectories",
    "transformer_block",
    "unseen_share",
]
