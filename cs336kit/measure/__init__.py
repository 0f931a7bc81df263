"""The instruments: FLOPs, bytes, seconds, bits, storages, graphs, collectives."""

from cs336kit import _needs_torch as _needs_torch
from cs336kit.measure._trace import SavedTensor
from cs336kit.measure.activations import SavedActivations, saved_activation_bytes
from cs336kit.measure.bits import Bits, all_values, bits
from cs336kit.measure.device import device
from cs336kit.measure.flops import flops
from cs336kit.measure.graph import graph
from cs336kit.measure.memory import StepMemory, memory_timeline, peak_bytes, state_bytes, step_memory
from cs336kit.measure.mfu import mfu, this_accelerator
from cs336kit.measure.operations import operations
from cs336kit.measure.processes import run_ranks, sent_bytes
from cs336kit.measure.products import LECTURE_PRODUCT, best_matmul, precisions, product
from cs336kit.measure.program import TracedOp, TracedProgram, program
from cs336kit.measure.ranks import collectives, local_ranks
from cs336kit.measure.recorded import recorded, records
from cs336kit.measure.rounding import rounded
from cs336kit.measure.seconds import seconds
from cs336kit.measure.storage import same_storage, storage_bytes, view_or_copy
from cs336kit.measure.transfers import overlap_timeline, transfer

__all__ = [
    "LECTURE_PRODUCT", "Bits", "SavedActivations", "SavedTensor", "StepMemory", "TracedOp", "TracedProgram",
    "all_values", "best_matmul", "bits", "collectives", "device", "flops", "graph", "local_ranks",
    "memory_timeline", "mfu", "operations", "overlap_timeline", "peak_bytes", "precisions", "product", "program",
    "recorded", "records", "rounded", "run_ranks", "same_storage", "saved_activation_bytes", "seconds",
    "sent_bytes", "state_bytes", "step_memory", "storage_bytes", "this_accelerator", "transfer", "view_or_copy",
]  # fmt: skip


def __dir__() -> list[str]:
    return list(__all__)
