"""Numbers in, numbers out: every formula of the course, on the standard library alone.

Names are imported on first use, so that importing the room stays a matter of milliseconds.
"""

# ruff: noqa: F403
from importlib import import_module
from typing import TYPE_CHECKING

from cs336kit.predict.breakdown import Breakdown as Breakdown

if TYPE_CHECKING:
    from cs336kit.predict.accounting import *
    from cs336kit.predict.allocation import *
    from cs336kit.predict.allocator import *
    from cs336kit.predict.block_formats import *
    from cs336kit.predict.decoder.programs import *
    from cs336kit.predict.decoding.latency import *
    from cs336kit.predict.devices import *
    from cs336kit.predict.einsum import *
    from cs336kit.predict.engine.operations import *
    from cs336kit.predict.estimates import *
    from cs336kit.predict.formats import *
    from cs336kit.predict.hardware import *
    from cs336kit.predict.hugging_face import *
    from cs336kit.predict.layout_search import *
    from cs336kit.predict.layouts import *
    from cs336kit.predict.models import *
    from cs336kit.predict.napkin import *
    from cs336kit.predict.network import *
    from cs336kit.predict.number_format import *
    from cs336kit.predict.optimizers import *
    from cs336kit.predict.packed import *
    from cs336kit.predict.precision import *
    from cs336kit.predict.rooflines import *
    from cs336kit.predict.scaling import *
    from cs336kit.predict.speculation import *
    from cs336kit.predict.strides import *
    from cs336kit.predict.training import *
    from cs336kit.predict.transfers import *
    from cs336kit.predict.transformer import *
    from cs336kit.predict.truncated_normal import *

#: Module → the public names that live there. None has the name of a module, because it would hide the module.
_MODULES = {
    "accounting": (
        "active_parameters forward_flops kv_cache_bytes matmul_parameters parameter_shapes parameters "
        "saved_activation_bytes saved_block_bytes traffic_bytes training_flops"
    ),
    "allocation": "StepAllocation step_allocation",
    "allocator": "allocated_bytes reserved_bytes",
    "block_formats": "BlockFormat",
    "decoding.latency": "critical_batch decode_bounds",
    "devices": "DEVICES Device",
    "einsum": "einsum_flops",
    "engine.operations": "Op Program",
    "decoder.programs": "program",
    "estimates": "kaplan_flops kaplan_parameters paper_block_bytes six_nd_estimate",
    "formats": "FORMATS",
    "hardware": "Accelerator accelerator accelerators",
    "hugging_face": "from_hf",
    "layout_search": "FoundLayout find_layouts",
    "layouts": "Layout",
    "models": "MODELS model",
    "napkin": "bytes_per_parameter delivered_flops largest_model matmul_flops six_nd training_days",
    "number_format": "NumberFormat",
    "optimizers": "OPTIMIZERS OptimizerSpec optimizer_state_bytes optimizer_step_bytes",
    "packed": "PACKINGS Packing packed_bytes",
    "precision": "POLICIES PrecisionPolicy",
    "rooflines": "Cost elementwise_cost matmul_cost roofline softmax_cost",
    "scaling": "Law Optimal compute_optimal scaling_laws",
    "speculation": "speculative_speedup speculative_tokens",
    "strides": "contiguous_strides extent overlaps view_strides",
    "training": "break_even_batch largest_batch peak_moments step_peak step_timeline training_memory",
    "transfers": "pcie_bandwidth pipeline_seconds",
    "transformer": "TransformerConfig",
    "truncated_normal": "fraction_cut truncated_std",
    "network": "StepSeconds communication ring_bytes step_seconds",
}
#: What has left `predict` → where it is now.
_MOVED = dict.fromkeys(["Advice", "Plan", "Question", "Served", "ServingQuestion", "plan", "serve"], "cs336plan")
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = ["Breakdown", *_HOME]


def __getattr__(name: str) -> object:
    if name in _MOVED:
        raise AttributeError(f"predict.{name} is {_MOVED[name]}.{name} now: import {_MOVED[name]}")
    if name not in _HOME:
        raise AttributeError(f"cs336kit.predict has no {name!r}")
    module = import_module(f"{__name__}.{_HOME[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
