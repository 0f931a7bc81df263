"""Bytes and FLOPs of a settled question, from the list of operations."""

from dataclasses import dataclass, replace
from typing import Any

from cs336kit.predict.accounting import parameters, training_flops
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.chip import peak_of
from cs336kit.predict.decoder.programs import program
from cs336kit.predict.devices import DEVICES
from cs336kit.predict.engine.operations import Leaf
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.layouts import Layout
from cs336kit.predict.links import link_speed
from cs336kit.predict.napkin import NAPKIN_OPTIMIZERS, bytes_per_parameter
from cs336kit.predict.network import StepSeconds, communication, leaving_bytes, step_seconds
from cs336kit.predict.optimizers import optimizer_spec, optimizer_step_bytes
from cs336kit.predict.precision import POLICIES
from cs336kit.predict.training import SHARDED, peak_moments, step_peak
from cs336plan.answers import Note
from cs336plan.training.question import Question, step_program, trained


@dataclass(frozen=True)
class Asked:
    """The shares of the peak at which matrix products have to run for an MFU; None where the peak is not enough."""

    #: if everything overlaps, and if nothing does
    lower: float | None
    upper: float | None
    #: the MFU of a run whose matrix products run at the peak while everything overlaps
    highest_mfu: float


def modules(q: Question, chip: Accelerator) -> str:
    """What the bytes are computed for: whose modules, and which device's rules for what an operation saves."""
    rules = "a CPU's rules"
    if q.device == "cuda":
        rules = "CUDA's rules (what backward kernels need for a moment is computed, not measured"
        rules += "" if chip.rules == "cuda" else f", and nothing of it on {chip.title}"
        rules += ")"
    return f"this kit's PyTorch modules, not fused, by {rules}"


def step_options(q: Question) -> dict[str, Any]:
    """The arguments of `step_peak` and `peak_moments` for a settled question about a configuration."""
    return {
        "config": q.config, "optimizer": q.optimizer, "fused": q.fused, **step_program(q),
    }  # fmt: skip


def parameter_count(q: Question) -> int:
    """Parameters of the whole model."""
    if q.config:
        return parameters(q.config).total
    assert isinstance(q.model, int | float)
    return int(q.model)


def memory(q: Question) -> Breakdown:
    """Bytes by bucket on one accelerator at the peak of a step."""
    if q.config:
        return step_peak(**step_options(q))
    P = parameter_count(q)
    each = dict(bytes_per_parameter(q.optimizer, precision=q.precision).items())
    each["temporary tensors"] = step_bytes_per_parameter(q, q.optimizer)
    buckets = {name: -(-P * each[name] // q.placed.shards) for name in (*SHARDED, "temporary tensors") if each[name]}
    return Breakdown(buckets, unit="bytes")


def step_bytes_per_parameter(q: Question, optimizer: str) -> int:
    """Temporary bytes of an optimizer step; 0 if they are those of one tensor at a time, none, or not known."""
    if q.fused or not DEVICES[q.device].foreach or optimizer_spec(optimizer).foreach is None:
        return 0
    return optimizer_step_bytes(optimizer, parameters=1, precision=POLICIES[q.precision].states)


def largest_bytes_per_parameter(q: Question) -> int:
    """In the optimizer's step, by what the napkin's optimizers need; AdamW's for those that go by shape."""
    optimizer = q.optimizer if q.optimizer in NAPKIN_OPTIMIZERS else "adamw"
    return bytes_per_parameter(optimizer, precision=q.precision).total + step_bytes_per_parameter(q, optimizer)


def moment(q: Question) -> str | None:
    """The moment of the peak; None for a number of parameters."""
    if q.config is None:
        return None
    moments = peak_moments(**step_options(q))
    return max(moments, key=lambda name: moments[name])


def uneven(q: Question) -> int | None:
    """Bytes if all tokens chose the same experts, the first or the last of each layer; None without experts.

    Also None if it is not counted: on ranks that share experts or a sequence.

    What is alive at any moment is linear in the experts' shares, so its maximum is where the shares are extreme.
    """
    if q.config is None or not q.config.experts:
        return None
    if q.placed.ep > 1 or q.placed.cp > 1:
        return None
    assert q.batch and q.sequence
    none = [0] * (q.config.experts - q.config.experts_per_token)
    all_tokens = [q.batch * q.sequence] * q.config.experts_per_token
    both = (none + all_tokens, all_tokens + none)
    return max(step_peak(**step_options(q), expert_tokens=shares).total for shares in both)


def pass_flops(q: Question, **changes: Any) -> Breakdown:
    """FLOPs of a forward and backward pass of one sequence by component, without recomputation."""
    assert q.config and q.sequence
    return training_flops(q.config, batch=1, sequence=q.sequence, **{**trained(q), **changes})


def extra_flops(q: Question, **changes: Any) -> float:
    """Recomputation by checkpointing and chunks, as a fraction of the pass without it."""
    again = pass_flops(q, **{"checkpointing": q.checkpointing, "chunks": q.chunks, **changes})
    return again.get("recomputed forward", 0) / pass_flops(q).total


def leaves(q: Question) -> tuple[Leaf, ...]:
    """The parameters of the whole model, adapters among them."""
    assert q.config
    return program(q.config, batch=1, sequence=1, attention="sdpa", **trained(q)).leaves


def key_value_copies(q: Question) -> int:
    """Parameters of keys and values that ranks of a tp group hold a second time: all of theirs, less those of the model."""
    config = q.config
    assert config

    def held(tp: int) -> int:
        walked = program(config, batch=1, sequence=1, attention="sdpa", layout=Layout(tp=tp))
        return sum(leaf.count * leaf.tensor.elements for leaf in walked.leaves if leaf.component in ("key", "value"))

    return q.placed.tp * held(q.placed.tp) - held(1)


def trainable(q: Question) -> int:
    """Parameters that get gradients."""
    return sum(leaf.count * leaf.tensor.elements for leaf in leaves(q) if leaf.tensor.needs_gradient)


def wire(q: Question, chip: Accelerator) -> tuple[Breakdown | None, StepSeconds | None, Note | None]:
    """Bytes that one accelerator sends in a step, the bounds of the step's seconds, and the reason if there are none."""
    if q.config is None or not q.batch or not q.sequence:
        return None, None, None
    sent = communication(q.config, **_step_size(q)) if q.count > 1 else None
    if peak_of(chip) is None:
        return sent, None, None
    try:
        seconds = _seconds(q, chip)
    except ValueError:
        inside = link_speed(chip) is None and sent and any(name.endswith("inside a node") for name in sent)
        return sent, None, Note("links unknown", {"title": chip.title}) if inside else Note("network unknown")
    return sent, seconds, None


def mfu_seconds(q: Question, chip: Accelerator) -> float | None:
    """Seconds of a step at the MFU; None for a number of parameters, and without a peak."""
    peak = peak_of(chip)
    if q.config is None or not q.step_sequences or peak is None:
        return None
    return pass_flops(q).total * q.step_sequences / (q.count * peak * q.mfu)


def asked_of_products(q: Question, chip: Accelerator) -> Asked | None:
    """What the MFU asks of matrix products under this layout, for a step whose seconds `wire` has."""
    step = mfu_seconds(q, chip)
    assert step is not None
    at_peak = replace(q, product_rate=1.0)
    slow = _seconds(at_peak, chip)
    quick = causal_seconds(at_peak, chip) or slow
    # If nothing overlaps, a stage at the peak computes for this long, the others as slow as it; the rest of the step is sending.
    computing = slow.compute / (1 - q.placed.bubble)
    left = step - (slow.upper - computing)
    return Asked(
        lower=quick.compute / (1 - quick.bubble) / step if quick.lower <= step else None,
        upper=computing / left if left >= computing else None,
        highest_mfu=q.mfu * step / quick.lower,
    )


def causal_seconds(q: Question, chip: Accelerator) -> StepSeconds | None:
    """The seconds of a step if attention leaves out what a causal mask hides; None if it computes all pairs."""
    return _seconds(q, chip, causal=True) if q.can_be_causal else None


def causal_saving(q: Question) -> float:
    """The share of a pass's FLOPs that causal attention leaves out, if it can."""
    if q.config is None or not q.can_be_causal:
        return 0.0
    return 1 - pass_flops(q, causal=True).total / pass_flops(q).total


def link_bytes(q: Question) -> int | None:
    """Bytes that one accelerator sends over its own link to other nodes in a step; None if nothing is sent."""
    if q.config is None or q.count == 1:
        return None
    return leaving_bytes(q.config, **_step_size(q))


def _step_size(q: Question) -> dict[str, Any]:
    """The arguments that `communication` and `step_seconds` share, besides the model."""
    return {"node": q.per_node, **step_program(q)}


def _seconds(q: Question, chip: Accelerator, **changes: Any) -> StepSeconds:
    assert q.config
    machine: dict[str, Any] = {
        "accelerator": chip,
        "matmul_efficiency": q.product_rate,
        "between_nodes": q.between_nodes,
    }
    return step_seconds(q.config, **machine, **_step_size(q), **changes)
