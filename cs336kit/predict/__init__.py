"""Numbers in, numbers out: every formula of the course, on the standard library alone."""

from cs336kit.predict._common.breakdown import Breakdown as Breakdown
from cs336kit.predict.accelerators import Accelerator as Accelerator
from cs336kit.predict.accelerators import accelerator as accelerator
from cs336kit.predict.accelerators import accelerators as accelerators
from cs336kit.predict.block_formats import BlockFormat as BlockFormat
from cs336kit.predict.formats import FORMATS as FORMATS
from cs336kit.predict.models import MODELS as MODELS
from cs336kit.predict.models import model as model
from cs336kit.predict.napkin import bytes_per_parameter as bytes_per_parameter
from cs336kit.predict.napkin import delivered_flops as delivered_flops
from cs336kit.predict.napkin import largest_model as largest_model
from cs336kit.predict.napkin import matmul_flops as matmul_flops
from cs336kit.predict.napkin import six_nd as six_nd
from cs336kit.predict.napkin import training_days as training_days
from cs336kit.predict.number_format import NumberFormat as NumberFormat
from cs336kit.predict.operations import Op as Op
from cs336kit.predict.operations import Program as Program
from cs336kit.predict.optimizers import OPTIMIZERS as OPTIMIZERS
from cs336kit.predict.optimizers import OptimizerSpec as OptimizerSpec
from cs336kit.predict.optimizers import optimizer_state_bytes as optimizer_state_bytes
from cs336kit.predict.optimizers import optimizer_step_bytes as optimizer_step_bytes
from cs336kit.predict.plan import Plan as Plan
from cs336kit.predict.plan import Question as Question
from cs336kit.predict.plan import plan as plan
from cs336kit.predict.precision import POLICIES as POLICIES
from cs336kit.predict.precision import PrecisionPolicy as PrecisionPolicy
from cs336kit.predict.program import active_parameters as active_parameters
from cs336kit.predict.program import forward_flops as forward_flops
from cs336kit.predict.program import kv_cache_bytes as kv_cache_bytes
from cs336kit.predict.program import matmul_parameters as matmul_parameters
from cs336kit.predict.program import parameter_shapes as parameter_shapes
from cs336kit.predict.program import parameters as parameters
from cs336kit.predict.program import program as program
from cs336kit.predict.program import recomputed_flops as recomputed_flops
from cs336kit.predict.program import saved_activation_bytes as saved_activation_bytes
from cs336kit.predict.program import saved_block_bytes as saved_block_bytes
from cs336kit.predict.program import traffic_bytes as traffic_bytes
from cs336kit.predict.program import training_flops as training_flops
from cs336kit.predict.roofline import Cost as Cost
from cs336kit.predict.roofline import elementwise_cost as elementwise_cost
from cs336kit.predict.roofline import matmul_cost as matmul_cost
from cs336kit.predict.roofline import reduction_cost as reduction_cost
from cs336kit.predict.roofline import roofline as roofline
from cs336kit.predict.roofline import softmax_cost as softmax_cost
from cs336kit.predict.strides import contiguous_strides as contiguous_strides
from cs336kit.predict.strides import element_index as element_index
from cs336kit.predict.strides import element_offset as element_offset
from cs336kit.predict.strides import expanded_strides as expanded_strides
from cs336kit.predict.strides import extent as extent
from cs336kit.predict.strides import overlaps as overlaps
from cs336kit.predict.strides import view_strides as view_strides
from cs336kit.predict.training import break_even_batch as break_even_batch
from cs336kit.predict.training import largest_batch as largest_batch
from cs336kit.predict.training import paper_block_bytes as paper_block_bytes
from cs336kit.predict.training import paper_break_even_batch as paper_break_even_batch
from cs336kit.predict.training import peak_moments as peak_moments
from cs336kit.predict.training import step_peak as step_peak
from cs336kit.predict.training import step_timeline as step_timeline
from cs336kit.predict.training import training_memory as training_memory
from cs336kit.predict.transformer import TransformerConfig as TransformerConfig

#: Where the names live that are imported on first use, so that importing the room stays a matter of milliseconds.
_ON_FIRST_USE = {
    "GradientFlops": "gradients",
    "Matmul": "gradients",
    "Pointwise": "gradients",
    "allocated_bytes": "allocator",
    "chinchilla_flops": "flops_estimates",
    "decoder": "gradients",
    "decoder_block": "gradients",
    "einsum_flops": "einsum",
    "fraction_cut": "signal",
    "gradient_flops": "gradients",
    "kaplan_flops": "flops_estimates",
    "kaplan_parameters": "flops_estimates",
    "leaves": "gradients",
    "linear_net": "gradients",
    "pcie_bandwidth": "transfers",
    "pipeline_seconds": "transfers",
    "pipeline_timeline": "transfers",
    "reserved_bytes": "allocator",
    "residual_second_moments": "signal",
    "second_moment_spread": "signal",
    "second_moments": "signal",
    "six_nd_estimate": "flops_estimates",
    "transfer_seconds": "transfers",
    "truncated_std": "signal",
    "with_lora": "gradients",
}


def __getattr__(name: str) -> object:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"cs336kit.predict has no {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
