"""What a training plan says in JSON: every quantity with its key, its unit, and where it comes from."""

from cs336kit.predict.chip import peak_of
from cs336plan.answers import BOUNDS, Row, explained
from cs336plan.training import explain
from cs336plan.training.answer import Answer, seconds_as_dict

#: Raised whenever a key of the JSON output changes its meaning or is removed.
SCHEMA = 4
#: Every quantity of `cs336kit plan --json` in order. One that does not apply is null.
ROWS: tuple[Row[Answer], ...] = (
    Row("schema", f"{SCHEMA}; raised when a key changes its meaning or goes", lambda a: SCHEMA),
    Row("command", '"plan"', lambda a: "plan"),
    Row("model", "name as given", lambda a: a.question.name),
    Row("parameters", "of the whole model", explained=explain.parameters),
    Row("active_parameters", "those that take part for one token: fewer in a mixture of experts"),
    Row("trainable_parameters", "those that get gradients; null for a number of parameters", lambda a: a.trainable),
    Row("device", "whose rules for what an operation keeps: cuda or cpu"),
    Row("accelerator", 'name of the table, or "given"', lambda a: a.chip.name),
    Row("count", "accelerators"),
    Row("layout", "text of the layout, such as fsdp=64,tp=8", lambda a: str(a.question.placed) if a.question.batch else None),
    Row("sharded", "whether parameters, gradients and states are split over all"),
    Row("precision", "policy of element types"),
    Row("optimizer", "name"),
    Row("fused", "whether the optimizer is one kernel, without temporary tensors"),
    Row("attention", '"sdpa", "eager" or "flash_attention"'),
    Row("checkpointing", "whether blocks keep only their input"),
    Row("chunks", "parts of the tokens whose loss is computed one after the other"),
    Row("lora_rank", "rank of the adapters, or null"),
    Row("base", "how frozen matrices are packed, or null"),
    Row("batch", "sequences of one micro-batch, on one accelerator"),
    Row("sequence", "tokens of a sequence"),
    Row("accumulate", "micro-batches of one optimizer step"),
    Row("global_batch", "sequences of one optimizer step over all accelerators", lambda a: a.question.step_sequences),
    Row("tokens", "to train on, or null"),
    Row("steps", "optimizer steps, or null"),
    Row("implied_global_batch", "tokens of a step that tokens and steps imply, or null", lambda a: a.implied_batch),
    Row("mfu", "model FLOPs utilization of the whole run, as given: what `days` and everything from them assume"),
    Row("product_rate", "share of the peak at which matrix products run: what `step_seconds` and everything from them assume"),
    Row("asked_product_rate",
        "{lower, upper}: product_rate of a run at `mfu`, if all overlaps and if nothing does; null: above 1",
        lambda a: a.asked and (a.asked.lower, a.asked.upper), BOUNDS),
    Row("peak_flops_per_second", "dense peak of matrix products, or null", lambda a: peak_of(a.chip)),
    Row("flops", "of the whole run without recomputation, or null"),
    Row("six_nd_flops", "6ND of the whole run: 6 × active parameters × tokens, or null"),
    Row("recomputed_fraction", "what checkpointing and chunks compute again, per FLOP of the run", lambda a: a.recomputed),
    Row("days", "of the whole run at the MFU, or null", explained=explain.time),
    Row("mfu_step_seconds", "of one optimizer step at the MFU, or null", lambda a: a.mfu_seconds),
    Row("mfu_tokens_per_second", "of all accelerators at the MFU, or null"),
    Row("within_days", "days that the run may take, as given, or null"),
    Row("accelerators_within_days",
        "the fewest accelerators, in whole nodes above one node, whose `days` are no more than those, or null"),
    Row("step_seconds",
        "{lower, upper, likely, compute, inside, between, bubble} of one optimizer step at product_rate, or null: "
        "likely is no bound, and adds what products wait for, while all else that is sent overlaps with them; compute has "
        "attention over all pairs, lower and bubble causal attention where it can be had; inside has rings that leave the node, "
        "too, where their hops inside it are the slower ones", lambda a: seconds_as_dict(a.seconds, a.causal),
        explained=explain.step),
    Row("step_mfu", "{lower, upper}: MFU of a run in steps of step_seconds, or null", parts=BOUNDS),
    Row("tokens_per_second", "{lower, upper} of all accelerators: tokens of a step / step_seconds, not at mfu, or null",
        parts=BOUNDS),
    Row("run_days", "{lower, upper}: steps of the tokens × step_seconds, or null", parts=BOUNDS),
    Row("wire_bytes", "bytes that one accelerator sends in a step, by collective and whether its ranks share a node, or null",
        lambda a: a.wire),
    Row("link_bytes", "those of them that leave the node over the link of one accelerator, or null"),
    Row("memory_bytes", "bytes by bucket at the peak of a step on one accelerator", lambda a: a.memory,
        explained=explain.buckets),
    Row("peak_moment", "of the step, or null", lambda a: a.moment),
    Row("total_bytes", "sum of memory_bytes", lambda a: a.memory.total),
    Row("uneven_experts_bytes", "the same if all tokens chose the same experts, or null", lambda a: a.uneven),
    Row("allowance_bytes", "bytes left free, by reason", lambda a: a.allowance, explained=explain.allowance),
    Row("available_bytes", "memory of one accelerator", lambda a: a.chip.memory_bytes),
    Row("fits", "whether total and allowance are within what is available; a number of parameters has no activations",
        explained=explain.fits),
    Row("advice", "list of {change, costs, slower}: cheapest first; slower is a fraction of time or null",
        lambda a: [{"change": one.change, "costs": one.costs, "slower": one.slower} for one in a.advice]),
    Row("largest_model", "parameters that fit with gradients, states and temporary tensors of the optimizer's step"),
    Row("accelerator_hours", "count × hours, or null"),
    Row("cost", "accelerator hours × the price given, or null"),
    Row("energy_kwh", "accelerator hours × the watts given, or null"),
    Row("run_cost", "{lower, upper}: what run_days cost at the price given, or null", parts=BOUNDS),
    Row("run_energy_kwh", "{lower, upper}: what run_days take at the watts given, or null", parts=BOUNDS),
    Row("layouts", "with --find, list of {layout, total_bytes, step_seconds, fits}: quickest first; else null", lambda a: None),
    Row("largest_batch", "with --largest-batch, sequences of the largest micro-batch that fits, 0 if not even one; else null",
        lambda a: None),
    Row("explain", "with --explain, {quantity: its formula with numbers}; else null", lambda a: None),
    Row("sensitivity", "with --sensitivity, list of {change, days, bytes}: factors by one change, the most first; else null",
        lambda a: None),
    Row("traced", "where transformers' own modules were counted, {by, architecture, kept (it had been counted before), whole, "
        "upper_bound (fits is null where it only may fit), components, forward_flops, training_flops, saved_bytes, left_out, "
        "step_flops, flops_per_token}; else null", lambda a: None),
    Row("notes", "sentences about numbers that are not exact", lambda a: [*filter(None, [a.other_layouts]), *a.notes]),
)  # fmt: skip
KEYS = {row.key: row.words for row in ROWS}


def formulas(plan: Answer) -> dict[str, str]:
    """Quantity → its formula with numbers; several formulas of one quantity follow each other."""
    rows: dict[str, str] = {}
    for name, formula in explained(plan, ROWS):
        rows[name] = f"{rows[name]}; {formula}" if name in rows else formula
    return rows
