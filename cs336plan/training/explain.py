"""The formula of each line of an answer, with its numbers."""

from collections.abc import Iterator

from cs336kit.predict.accounting import active_parameters, forward_flops, saved_activation_bytes
from cs336kit.predict.chip import peak_of
from cs336kit.predict.decoder.layers import stages
from cs336kit.predict.optimizers import optimizer_spec
from cs336kit.predict.precision import ELEMENT_BYTES, POLICIES
from cs336kit.predict.training import peak_moments, step_peak
from cs336kit.predict.words import duration, size
from cs336plan.training import memory as of
from cs336plan.training.answer import Answer
from cs336plan.training.question import step_program
from cs336plan.training.step import links

#: How many components of the saved bytes are named individually.
_LARGEST = 5


def parameters(plan: Answer) -> Iterator[tuple[str, str]]:
    q = plan.question
    if q.config is None:
        yield "parameters", f"{plan.parameters:,}, as given"
        return
    parts: dict[str, list[str]] = {}
    for leaf in of.leaves(q):
        if leaf.component != "adapters":
            shape = "·".join(f"{n:,}" for n in leaf.tensor.shape)
            parts.setdefault(leaf.component, []).append(f"{leaf.count:,} × {shape}" if leaf.count > 1 else shape)
    for name, terms in parts.items():
        yield f"parameters, {name}", " + ".join(dict.fromkeys(_times(terms)))
    if q.config.experts:
        active = f"{active_parameters(q.config).total:,}: of each layer's experts those that a token visits"
        yield "parameters, active", active


def _times(terms: list[str]) -> list[str]:
    """Equal terms only once, each with its number."""
    return [f"{terms.count(term)} × ({term})" if terms.count(term) > 1 else term for term in terms]


def time(plan: Answer) -> Iterator[tuple[str, str]]:
    q = plan.question
    if plan.days is None or plan.flops is None or q.tokens is None:
        return
    if q.config and q.sequence:
        forward = forward_flops(q.config, batch=1, sequence=q.sequence)
        both = of.pass_flops(q)
        parts = " + ".join(f"{name} {n:.4g}" for name, n in forward.items() if n)
        yield "FLOPs forward", f"{parts} (attention over all pairs of positions)"
        ratio = f"{both.total / forward.total:.3f} × forward {forward.total:.6g}"
        why = "each matrix product has one more for each input that needs a gradient"
        yield "FLOPs of a sequence", f"{both.total:.6g} = {ratio} ({why})"
        yield "FLOPs", f"{both.total:.6g} × {q.tokens:,} tokens / {q.sequence:,} = {plan.flops:.6g}"
        each = f"{active_parameters(q.config).total:,}" + " active" * bool(q.config.experts)
        yield "FLOPs by 6ND", f"6 × {each} parameters × {q.tokens:,} tokens = {plan.six_nd_flops:.6g}"
    else:
        yield "FLOPs", f"6 × {plan.parameters:,} × {q.tokens:,} = {plan.flops:.6g}"
    a_day = f"{peak_of(plan.chip):.4g} FLOP/s × {q.mfu:g} × 86,400 s"
    yield "days", f"{plan.flops:.6g} / ({q.count:,} × {a_day}) = {plan.days:,.4g}, {duration(plan.days)}"
    if plan.accelerators_within_days is not None:
        many = plan.accelerators_within_days
        node = q.node_for(many)
        up = "rounded up" + f" to whole nodes of {node}" * (many > node)
        enough = f"{plan.flops:.6g} / ({a_day} × {q.within_days:g}), {up}: {many:,}"
        yield "accelerators within these days", enough
    hours = f"{_digits(plan.accelerator_hours or 0)} hours"
    if plan.cost is not None:
        yield "cost", f"{hours} × {q.price_per_hour:g} = {_digits(plan.cost)}"
    if plan.energy_kwh is not None:
        yield "energy", f"{hours} × {q.watts:,g} W / 1000 = {_digits(plan.energy_kwh)} kWh"


def _digits(value: float) -> str:
    """Two digits after the point, or three significant ones for numbers below 1."""
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def step(plan: Answer) -> Iterator[tuple[str, str]]:
    if plan.seconds is None or plan.step_bounds is None:
        return
    s, (lower, upper) = plan.seconds, plan.step_bounds
    # If nothing overlaps, each stage may be as slow as the slowest; if everything does, the others fill the pipeline sooner.
    turns = plan.question.placed.bubble
    waits = f", what each micro-batch has of both / (1 − {turns:.4g})" if turns else ""
    causal = f"{plan.causal.compute:,.4g} s (causal attention)" if plan.causal else f"{s.compute:,.4g} s"
    bubble = (plan.causal or s).bubble
    filled = f" / (1 − {bubble:.4g} pipeline bubble)" if bubble else ""
    sending = ", ".join(links(lower, s, plan.question.placed, ",.4g"))
    yield "step, if all overlaps", f"the longest of computing {causal}{filled}, {sending}: {lower:,.4g} s"
    both = f"computing {s.compute:,.4g} s (attention over all pairs) + sending {s.inside + s.between:,.4g} s"
    yield "step, if nothing does", f"{both}{waits}: {upper:,.4g} s"
    if plan.run_days is not None and plan.question.tokens is not None:
        steps = f"{-(-int(plan.question.tokens) // s.tokens):,} steps"
        days = " to ".join(f"{each:,.4g}" for each in plan.run_days)
        yield "days at these steps", f"{steps} × {lower:,.4g} to {upper:,.4g} s / 86,400 s = {days}"


def allowance(plan: Answer) -> Iterator[tuple[str, str]]:
    yield "allowance", " + ".join(f"{name} {size(part)} GiB" for name, part in plan.allowance.items()) or "0"


def fits(plan: Answer) -> Iterator[tuple[str, str]]:
    verdict = "≤" if plan.fits else ">"
    total, free = plan.memory.total, plan.allowance.total
    yield "fits", f"{size(total)} + {size(free)} GiB {verdict} {size(plan.chip.memory_bytes)} GiB"


def buckets(plan: Answer) -> Iterator[tuple[str, str]]:
    q, kind = plan.question, POLICIES[plan.question.precision]
    P = plan.parameters
    n = plan.trainable if plan.trainable is not None else P
    share = f" / {q.placed.shards:,} accelerators" if q.placed.shards > 1 else ""
    if q.layout is not None:
        share = f", of which a rank of {q.placed} has its part"
    states = len(optimizer_spec(q.optimizer).tensors)
    packed = f", matrices of blocks in {q.base}" if q.base else ""
    yield "parameters' bytes", f"{P:,} × {ELEMENT_BYTES[kind.weights]} ({kind.weights}){packed}{share}"
    if optimizer_spec(q.optimizer).shaped:
        yield "optimizer state", f"by the shape of each tensor ({q.optimizer}){share}"
    else:
        element = f"{ELEMENT_BYTES[kind.states]} ({kind.states})"
        yield "optimizer state", f"{n:,} × {states} × {element} and 4 for each tensor's step{share}"
    if kind.master_weights:
        yield "master weights", f"{n:,} × {ELEMENT_BYTES[kind.master_weights]} ({kind.master_weights}){share}"
    gradients = f"{n:,} × {ELEMENT_BYTES[kind.gradients]} ({kind.gradients}){share}"
    if q.config is None:
        yield "gradients", gradients
        if "temporary tensors" in plan.memory:
            each = of.step_bytes_per_parameter(q, q.optimizer)
            yield "temporary tensors", f"{n:,} × {each} (torch's foreach implementation of {q.optimizer}){share}"
        return
    at_peak = f"those that are there at the peak, {plan.moment}"
    yield "gradients", f"{size(plan.memory['gradients'])} GiB of {gradients}: {at_peak}"
    if "gathered parameters" in plan.memory:
        gathered = (
            "whole, as many as there are at the peak: embeddings, final norm and head, beside them two blocks while a block "
            "runs, and no block in the loss; none in the optimizer's step"
        )
        yield "gathered parameters", gathered
    # Of a pipeline, the stage that has the peak.
    options = of.step_options(q)
    among = stages(q.config, q.placed)
    stage = max(among, key=lambda each: step_peak(**options, stage=each).total)
    kept = saved_activation_bytes(q.config, stage=stage, **step_program(q))
    at_the_end = f"{size(kept.total)} GiB when the forward pass ends"
    if q.placed.pp > 1:
        many = q.placed.in_flight(stage)
        flight = f"{many} micro-batch{'es' * (many > 1)} in flight on stage {stage + 1} of {q.placed.pp}"
        at_the_end = f"{flight}, with {size(kept.total)} GiB each when their forward pass ends"
    largest = sorted(kept.items(), key=lambda item: -item[1])
    terms = [f"{name} {size(part)}" for name, part in largest[:_LARGEST]]
    if rest := sum(part for _, part in largest[_LARGEST:]):
        terms.append(f"all others {size(rest)}")
    yield "activations", f"{size(plan.memory['activations'])} GiB at the peak, of {at_the_end}: {', '.join(terms)}"
    what_else = "what else is alive at the peak: gradients on their way, and results of single operations"
    yield "temporary tensors", what_else
    ordered = sorted(peak_moments(**options).items(), key=lambda item: -item[1])
    rows = ", ".join(f"{name} {size(live)}" for name, live in ordered)
    yield "peak", f"the highest of these, beside parameters and states (GiB): {rows}"
