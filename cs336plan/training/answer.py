"""The answer to a question about a training run, and its names in JSON."""

from dataclasses import dataclass

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import finite_results
from cs336kit.predict.chip import peak_of
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.network import StepSeconds
from cs336plan.answers import BOUNDS, Note, Row, explained, plain_values, sentences
from cs336plan.training import explain, words
from cs336plan.training.changes import Advice
from cs336plan.training.memory import Asked
from cs336plan.training.question import Question

#: The share by which a number has to change before an answer mentions it.
SEEN = 0.05
#: Raised whenever a key of the JSON output changes its meaning or is removed.
SCHEMA = 4
#: Every quantity of `cs336kit plan --json` in order. One that does not apply is null.
ROWS: tuple[Row["Plan"], ...] = (
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


@dataclass(frozen=True)
class Plan:
    """The answer: FLOPs, days, bytes per accelerator by bucket, whether they fit, and what to change."""

    question: Question
    chip: Accelerator
    parameters: int
    trainable: int | None
    flops: int | None
    six_nd_flops: int | None
    #: FLOPs of recomputation, per FLOP of the run; MFU leaves them out, and so do the days
    recomputed: float
    days: float | None
    memory: Breakdown
    #: the moment of a step at which `memory` is alive; None for a number of parameters
    moment: str | None
    #: total bytes if every token chose the same experts; None without experts
    uneven: int | None
    allowance: Breakdown
    #: what the allowance is based on
    allowance_reason: str
    fits: bool
    advice: tuple[Advice, ...]
    largest_model: int
    modules: str
    #: facts about numbers that are not exact; sentences where the kit says them of the chip or of the model
    facts: tuple[Note | str, ...]
    #: whether other ways to divide the model may help, where nothing else does on the same accelerators
    layouts_may_fit: bool = False
    #: bytes that one accelerator sends in a step; None with one accelerator, and for a number of parameters
    wire: Breakdown | None = None
    #: seconds of one optimizer step, with attention over all pairs; None if a number for it is missing
    seconds: StepSeconds | None = None
    #: the same if attention leaves out what a causal mask hides; None if it does not
    causal: StepSeconds | None = None
    #: bytes that one accelerator sends over its link between nodes in a step
    link_bytes: int | None = None
    #: the fewest accelerators, in whole nodes above one, that take no more than the question's `within_days`, at the MFU
    accelerators_within_days: int | None = None
    #: seconds of an optimizer step at the MFU; None for a number of parameters, and without a peak
    mfu_seconds: float | None = None
    #: the rate that the MFU asks of matrix products; None if a step has no bounds
    asked: Asked | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The facts as sentences."""
        return sentences(self.facts, words.NOTES)

    @property
    def other_layouts(self) -> str:
        """Where to look for other ways to divide the model, where nothing else helps on the same accelerators; or ""."""
        return words.other_layouts(self.question) if self.layouts_may_fit else ""

    @property
    def active_parameters(self) -> int:
        """Parameters used in computing one token."""
        config = self.question.config
        return active_parameters(config).total if config else self.parameters

    @property
    def accelerator_hours(self) -> float | None:
        return None if self.days is None else 24 * self.days * self.question.count

    @property
    def cost(self) -> float | None:
        """Money, in the currency of the price."""
        hours, price = self.accelerator_hours, self.question.price_per_hour
        return None if hours is None or price is None else hours * price

    @property
    def energy_kwh(self) -> float | None:
        hours, watts = self.accelerator_hours, self.question.watts
        return None if hours is None or watts is None else hours * watts / 1000

    @property
    def steps(self) -> int | None:
        """Optimizer steps that the tokens take; the last one may not be full."""
        q = self.question
        if q.steps is not None or q.tokens is None or q.step_sequences is None or q.sequence is None:
            return q.steps
        return -(-int(q.tokens) // (q.step_sequences * q.sequence))

    @property
    def step_bounds(self) -> tuple[float, float] | None:
        """Seconds of a step; the lower bound has causal attention, where that is possible."""
        return None if self.seconds is None else ((self.causal or self.seconds).lower, self.seconds.upper)

    @property
    def run_days(self) -> tuple[float, float] | None:
        """Days that the tokens take in steps of `step_bounds`, whatever the MFU."""
        if self.seconds is None or self.step_bounds is None or self.question.tokens is None:
            return None
        steps = -(-int(self.question.tokens) // self.seconds.tokens)
        least, most = (steps * seconds / 86400 for seconds in self.step_bounds)
        return least, most

    @property
    def tokens_per_second(self) -> tuple[float, float] | None:
        """Tokens per second of all accelerators, in the longest and in the shortest step of `step_bounds`."""
        if self.seconds is None or self.step_bounds is None:
            return None
        least, most = self.step_bounds
        return self.seconds.tokens / most, self.seconds.tokens / least

    @property
    def step_mfu(self) -> tuple[float, float] | None:
        """The MFU of a run whose steps take the longest, and the shortest, of `step_bounds`."""
        if self.step_bounds is None or self.mfu_seconds is None:
            return None
        least, most = self.step_bounds
        return self.question.mfu * self.mfu_seconds / most, self.question.mfu * self.mfu_seconds / least

    @property
    def mfu_tokens_per_second(self) -> float | None:
        """Of all accelerators, at the MFU."""
        q = self.question
        if not self.mfu_seconds or not q.step_sequences or not q.sequence:
            return None
        return q.step_sequences * q.sequence / self.mfu_seconds

    @property
    def run_cost(self) -> tuple[float, float] | None:
        """Money over `run_days`, in the currency of the price."""
        return self._over_the_run(self.question.price_per_hour)

    @property
    def run_energy_kwh(self) -> tuple[float, float] | None:
        """Energy over `run_days`."""
        watts = self.question.watts
        return self._over_the_run(None if watts is None else watts / 1000)

    def _over_the_run(self, each: float | None) -> tuple[float, float] | None:
        """`each` for every accelerator and every hour of `run_days`."""
        if each is None or self.run_days is None:
            return None
        least, most = (24 * days * self.question.count * each for days in self.run_days)
        return least, most

    @property
    def implied_batch(self) -> int | None:
        """Tokens of one step that a budget of tokens and a number of steps imply."""
        q = self.question
        return None if q.tokens is None or q.steps is None else -(-int(q.tokens) // q.steps)

    @finite_results()
    def __str__(self) -> str:
        """The answer as text, in GiB and days."""
        from cs336plan.training.text import text

        return text(self)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of KEYS: counts are ints, bytes are bytes, days a float."""
        return plain_values(self, ROWS)


def formulas(plan: Plan) -> dict[str, str]:
    """Quantity → its formula with numbers; several formulas of one quantity follow each other."""
    rows: dict[str, str] = {}
    for name, formula in explained(plan, ROWS):
        rows[name] = f"{rows[name]}; {formula}" if name in rows else formula
    return rows


def seconds_as_dict(seconds: StepSeconds | None, causal: StepSeconds | None = None) -> dict[str, float] | None:
    """The bounds of a step, the lower one with causal attention, and what they are made of, as plain values."""
    if seconds is None:
        return None
    names = ("lower", "upper", "likely", "compute", "inside", "between", "bubble")
    values = {name: getattr(seconds, name) for name in names}
    return values | {name: getattr(causal or seconds, name) for name in ("lower", "bubble")}
