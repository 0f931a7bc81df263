"""Bytes and FLOPs of a settled question, from the list of operations."""

from typing import Any

from cs336kit.predict._common.breakdown import Breakdown
from cs336kit.predict._planner.chip import Chip
from cs336kit.predict._planner.question import Question
from cs336kit.predict.accounting import training_flops
from cs336kit.predict.napkin import bytes_per_parameter
from cs336kit.predict.programs import program
from cs336kit.predict.training import SHARDED, peak_moments, step_peak
from cs336kit.predict.transformer import TransformerConfig
from cs336kit.predict.wires import StepSeconds, communication, step_seconds

#: Device → whose rules these are, in words.
_RULES = {
    "cuda": "CUDA's rules (what backward kernels need for a moment is computed, not measured)",
    "cpu": "a CPU's rules",
}


def flavour(q: Question) -> str:
    """What the bytes are for: whose decoder, and which device's rules for what an operation keeps."""
    whose = "the course's decoder" if q.flavour == "course" else f"the modules of {q.flavour}"
    return f"{whose}, on {_RULES[q.device]}"


def trained(q: Question) -> dict[str, Any]:
    """The options of `predict.program` that say which parameters are trained."""
    return {"frozen": q.frozen, "lora_rank": q.lora_rank, "lora_targets": q.lora_targets, "base": q.base}


def step_options(q: Question) -> dict[str, Any]:
    """The arguments of `step_peak` and `peak_moments` for a settled question about a configuration."""
    return {
        "config": q.model, "batch": q.batch, "sequence": q.sequence, "precision": q.precision, "optimizer": q.optimizer,
        "attention": q.attention, "checkpointing": q.checkpointing, "chunks": q.chunks, "layout": q.placed,
        "device": q.device, "flavour": q.flavour, "foreach": True, **trained(q),
    }  # fmt: skip


def memory(q: Question, P: int) -> Breakdown:
    """Bytes by bucket on one accelerator at the peak of a step."""
    if isinstance(q.model, TransformerConfig):
        return step_peak(**step_options(q))
    each = bytes_per_parameter(q.optimizer, precision=q.precision)
    return Breakdown({name: -(-P * each[name] // q.shards) for name in SHARDED if each[name]}, unit="bytes")


def moment(q: Question) -> str | None:
    """The moment of the peak; None for a number of parameters."""
    if not isinstance(q.model, TransformerConfig):
        return None
    moments = peak_moments(**step_options(q))
    return max(moments, key=lambda name: moments[name])


def uneven(q: Question) -> int | None:
    """Bytes if all tokens chose the same experts, the first or the last of each layer; None without experts.

    What is alive at any moment is linear in the experts' shares, so its maximum lies where the shares are extreme.
    """
    if not isinstance(q.model, TransformerConfig) or not q.model.experts or q.placed.ep > 1 or q.placed.cp > 1:
        return None
    assert q.batch and q.sequence
    none = [0] * (q.model.experts - q.model.experts_per_token)
    all_tokens = [q.batch * q.sequence] * q.model.experts_per_token
    both = (none + all_tokens, all_tokens + none)
    return max(step_peak(**step_options(q), expert_tokens=shares).total for shares in both)


def pass_flops(q: Question, **changes: Any) -> Breakdown:
    """FLOPs of a forward and backward pass of one sequence by component, without what is computed again."""
    assert isinstance(q.model, TransformerConfig) and q.sequence
    return training_flops(q.model, batch=1, sequence=q.sequence, **{**trained(q), **changes})


def extra_flops(q: Question, **changes: Any) -> float:
    """What checkpointing and chunks compute again, as a fraction of the pass without them."""
    again = pass_flops(q, **{"checkpointing": q.checkpointing, "chunks": q.chunks, **changes})
    return again.get("recomputed forward", 0) / pass_flops(q).total


def trainable(q: Question) -> int:
    """Parameters that get gradients."""
    assert isinstance(q.model, TransformerConfig)
    walked = program(q.model, batch=1, sequence=1, attention="sdpa", **trained(q))
    return sum(leaf.count * leaf.tensor.elements for leaf in walked.leaves if leaf.tensor.needs_gradient)


def step_program(q: Question) -> dict[str, Any]:
    """The options of `predict.program` for a pass of a settled question, beside model, batch, sequence and layout."""
    return {
        "precision": q.precision, "attention": q.attention, "checkpointing": q.checkpointing, "chunks": q.chunks,
        "device": q.device, "flavour": q.flavour, **trained(q),
    }  # fmt: skip


def wire(q: Question, chip: Chip) -> tuple[Breakdown | None, StepSeconds | None, str]:
    """Bytes that one accelerator sends in a step, the seconds of the step between two bounds, and why there are none."""
    if not isinstance(q.model, TransformerConfig) or not q.batch or not q.sequence:
        return None, None, ""
    size: dict[str, Any] = {
        "layout": q.placed,
        "batch": q.batch,
        "sequence": q.sequence,
        "node": q.node,
        **step_program(q),
    }
    sent = communication(q.model, **size) if q.count > 1 else None
    if chip.peak is None:
        return sent, None, ""
    try:
        seconds = step_seconds(
            q.model, accelerator=chip.as_accelerator(), mfu=q.mfu, between_nodes=q.between_nodes, **size
        )
    except ValueError:
        return sent, None, "seconds of a step need the speed between nodes, which no table has: give --between-nodes"
    return sent, seconds, ""
