"""The answer to a question about a training run as text, for a terminal of 80 columns."""

from collections.abc import Iterator

from cs336kit.predict.chip import peak_of
from cs336kit.predict.words import accelerators, amount, duration, folded, row, short, size
from cs336plan.answers import explained
from cs336plan.training.answer import SEEN, Answer
from cs336plan.training.memory import largest_bytes_per_parameter
from cs336plan.training.question import Question
from cs336plan.training.schema import ROWS
from cs336plan.training.step import step


def text(plan: Answer) -> str:
    """The answer, one idea per line."""
    return "\n".join(
        line
        for part in (_model(plan), _time(plan), _batch(plan), step(plan), _memory(plan), _verdict(plan))
        for line in part
    )


def explanations(plan: Answer) -> str:
    """How each number of the answer is computed: the quantity, its formula, and the numbers in it."""
    rows = [folded(f"{name} = {formula}", indent="    ", first="  ") for name, formula in explained(plan, ROWS)]
    return "\n".join(["where the numbers come from", *(line for lines in rows for line in lines)])


def _model(plan: Answer) -> Iterator[str]:
    q = plan.question
    line = f"{q.name}: {plan.parameters:,} parameters"
    if plan.active_parameters < plan.parameters:
        line += f", {plan.active_parameters:,} of them active for a token"
    if plan.trainable is not None and plan.trainable != plan.parameters:
        adapters = f", and {plan.trainable:,} of adapters (rank {q.lora_rank})"
        line += adapters if q.lora_rank else f", {plan.trainable:,} of them trained"
    yield from folded(line, indent="  ", first="")


def _time(plan: Answer) -> Iterator[str]:
    q = plan.question
    if plan.days is None or plan.flops is None:
        return
    peak = (peak_of(plan.chip) or 0) / 1e12
    yield (
        f"time: {duration(plan.days)} for {plan.flops:.4g} FLOPs (6ND: {plan.six_nd_flops:.4g})\n"
        f"  on {accelerators(q.count, plan.chip.name)} ({peak:,.4g} TFLOP/s each) at an MFU of {q.mfu:g}"
    )
    if plan.accelerators_within_days is not None:
        many = plan.accelerators_within_days
        node = q.node_for(many)
        nodes = f" ({many // node:,} nodes of {node})" * (many > node)
        sentence = (
            f"within {q.within_days:g} day{'s' * (q.within_days != 1)} it takes {many:,} of them{nodes} at this MFU"
        )
        able = q.layout is None and (q.global_batch is None or q.global_batch % ((q.batch or 1) * many) == 0)
        if many > q.count:
            sentence += f"; all else here is for {q.count:,}" + f", and --count {many} plans those" * able
        yield from folded(sentence, indent="    ", first="  ")
    if plan.recomputed:
        yield f"  and {100 * plan.recomputed:.1f} % more FLOPs that are computed again, which MFU leaves out"
    if plan.cost is not None:
        hours = amount(plan.accelerator_hours or 0)
        yield f"cost: {amount(plan.cost)} for {hours} accelerator hours at {q.price_per_hour:g} each"
    if plan.energy_kwh is not None:
        yield f"energy: {amount(plan.energy_kwh)} kWh at {q.watts:,g} W for each accelerator"


def _batch(plan: Answer) -> Iterator[str]:
    q = plan.question
    if q.batch and q.sequence and q.step_sequences:
        ranks = q.placed.data_ranks
        on = f" on each of {ranks:,}" if ranks > 1 else ""
        several = f", {q.passes:,} a step (gradient accumulation)" * (q.passes > 1)
        yield from folded(f"micro-batch: {q.batch} × {q.sequence:,} tokens{on}{several}", indent="  ", first="")
        sequences = f"{q.step_sequences:,} sequence{'s' * (q.step_sequences > 1)}"
        yield f"  a step takes {sequences}, {q.step_sequences * q.sequence:,} tokens (global batch)"
        if plan.steps is not None and q.steps is None:
            yield f"  {plan.steps:,} steps for {q.tokens:,} tokens"
    if plan.implied_batch is not None and q.steps is not None:
        per = f"{plan.implied_batch:,} tokens a step"
        other = ""
        if q.step_sequences and q.sequence:
            implied = -(-plan.implied_batch // q.sequence)
            per += f", {implied:,} sequences of {q.sequence:,}"
            if q.step_sequences != implied:
                other = f": another global batch than this one{_nearest(plan.implied_batch, q)}"
        yield from folded(f"{q.tokens:,} tokens in {q.steps:,} steps imply {per}{other}", indent="    ", first="  ")


def _nearest(tokens: int, q: Question) -> str:
    """The option for a global batch of about `tokens` tokens, which the ranks can split into whole micro-batches."""
    if not q.batch or not q.sequence:
        return ""
    together = q.batch * q.placed.data_ranks
    nearest = max(1, round(tokens / q.sequence / together)) * together
    taken = nearest == q.step_sequences
    return ", the nearest of whole micro-batches" if taken else f" (--global-batch {nearest})"


def _how(plan: Answer) -> str:
    q = plan.question
    how = [q.precision, "fused " * q.fused + q.optimizer]
    if q.batch:
        how += [
            f"batch {q.batch} × {q.sequence}",
            {"flash_attention": "flash attention"}.get(q.attention or "", f"{q.attention} attention"),
        ]
    how += ["checkpointing"] * q.checkpointing
    if q.chunks > 1:
        how.append(f"loss in {q.chunks} chunks")
    if q.lora_rank:
        how.append(f"adapters on {', '.join(q.lora_targets)}")
    if q.base:
        how.append(f"frozen matrices in {q.base}")
    if q.frozen:
        how.append(f"frozen: {', '.join(q.frozen)}")
    if q.layout is not None:
        how.append(f"layout {q.placed}")
    elif q.count > 1:
        how.append("sharded" if q.sharded else "replicated")
    return ", ".join(how)


def _memory(plan: Answer) -> Iterator[str]:
    when = f" at the peak, {plan.moment}" if plan.moment else ", without activations"
    yield f"memory per accelerator{when}"
    yield from folded(f"({_how(plan)})", indent="   ", first="  ")
    for name, value in plan.memory.items():
        yield row(name, value, "(none at this moment)" if name == "gradients" and not value else "")
    yield row("together", plan.memory.total)
    yield row("allowance", plan.allowance.total)
    yield from folded(plan.allowance_reason, indent="    ")
    yield row("available", plan.chip.memory_bytes)
    if plan.uneven is None and getattr(plan.question.model, "experts", None):
        ranks = plan.question.placed.ep
        who = f"each of the {ranks} ranks of ep" if ranks > 1 else "each expert"
        sentence = (
            f"{who} is taken to get an equal share of the tokens; one that gets more needs more, which is not counted"
        )
        yield from folded(f"({sentence})", indent="   ", first="  ")
    elif plan.uneven is not None and plan.uneven > (1 + SEEN) * plan.memory.total:
        sentence = f"experts share the tokens equally; if all chose the same: {size(plan.uneven)} GiB"
        yield from folded(f"({sentence})", indent="   ", first="  ")


def _verdict(plan: Answer) -> Iterator[str]:
    q = plan.question
    left = plan.chip.memory_bytes - plan.allowance.total - plan.memory.total
    if plan.fits and plan.moment is None:
        freed = plan.memory.get("temporary tensors", 0)
        sentence = f"it fits without activations: {size(left + freed)} GiB are left for them"
        if freed:
            sentence += f" (the optimizer's step, which comes when they are gone, leaves {size(left)} GiB)"
        yield from folded(sentence, indent="  ", first="")
    elif plan.fits:
        yield f"it fits, and {size(left)} GiB are left"
    elif plan.other_layouts and not plan.advice:
        too_much = f"it does not fit: {size(-left)} GiB too much, and no change that was tried is enough"
        sentence = f"{too_much}; {plan.other_layouts}"
        yield from folded(sentence, indent="  ", first="")
    else:
        yield f"it does not fit: {size(-left)} GiB too much" + ("; what helps, cheapest first:" if plan.advice else "")
        if not plan.advice and (plan.moment is None or q.count == 1):
            smaller = "a smaller model" if plan.moment is None else "a shorter sequence or a smaller model"
            more = "sharding over more accelerators is not enough"
            yield from folded(f"{smaller} may fit: {more}", indent="  ")
    for one in plan.advice:
        yield from folded(str(one), indent="    ", first="  - ")
    whose = f"activation bytes: {plan.modules}" if plan.moment else ""
    for note in filter(None, (plan.other_layouts if plan.advice else "", *plan.notes, whose)):
        yield from folded(note, indent="  ", first="note: ")
    if q.lora_rank or q.frozen or q.layout is not None:
        return
    shared = q.sharded and q.count > 1
    kind = "over all accelerators" if shared else "on each accelerator"
    without = f"without activations{' and gathered parameters' * shared}"
    each = f"{short(plan.largest_model)} parameters at {largest_bytes_per_parameter(q)} bytes each"
    yield from folded(f"largest model {kind}, {without}: {each}", indent="  ", first="")
