"""The answer to a question about a training run, and its names in JSON."""

from collections.abc import Callable
from dataclasses import dataclass

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import finite_results
from cs336kit.predict.chip import peak_of
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.wires import StepSeconds
from cs336kit.predict.words import plain_values
from cs336plan.training.changes import Advice
from cs336plan.training.memory import Asked
from cs336plan.training.question import Question

#: Raised whenever a key of the JSON output changes its meaning or is removed.
SCHEMA = 3
#: Every key of `cs336kit plan --json` in order, with its meaning and its value; None: the attribute of the answer, or of its
#: question, that is called so. A key that does not apply is null.
_ROWS: dict[str, tuple[str, Callable[["Plan"], object] | None]] = {
    "schema": (f"{SCHEMA}; raised when a key changes its meaning or goes", lambda a: SCHEMA),
    "command": ('"plan"', lambda a: "plan"),
    "model": ("name as given", lambda a: a.question.name),
    "parameters": ("of the whole model", None),
    "active_parameters": ("those that take part for one token: fewer in a mixture of experts", None),
    "trainable_parameters": ("those that get gradients; null for a number of parameters", lambda a: a.trainable),
    "device": ("whose rules for what an operation keeps: cuda or cpu", None),
    "flavour": ("whose modules and which device's rules the activation bytes follow", None),
    "accelerator": ('name of the table, or "given"', lambda a: a.chip.name),
    "count": ("accelerators", None),
    "layout": ("text of the layout, such as fsdp=64,tp=8", lambda a: str(a.question.placed) if a.question.batch else None),
    "sharded": ("whether parameters, gradients and states are split over all", None),
    "precision": ("policy of element types", None),
    "optimizer": ("name", None),
    "fused": ("whether the optimizer is one kernel, without temporary tensors", None),
    "attention": ('"sdpa", "eager" or "flash_attention"', None),
    "checkpointing": ("whether blocks keep only their input", None),
    "chunks": ("parts of the tokens whose loss is computed one after the other", None),
    "lora_rank": ("rank of the adapters, or null", None),
    "base": ("how frozen matrices are packed, or null", None),
    "batch": ("sequences of one micro-batch, on one accelerator", None),
    "sequence": ("tokens of a sequence", None),
    "accumulate": ("micro-batches of one optimizer step", None),
    "global_batch": ("sequences of one optimizer step over all accelerators", lambda a: a.question.step_sequences),
    "tokens": ("to train on, or null", None),
    "steps": ("optimizer steps, or null", None),
    "implied_global_batch": ("tokens of a step that tokens and steps imply, or null", lambda a: a.implied_batch),
    "mfu": ("model FLOPs utilization of the whole run, as given: what `days` and everything from them assume", None),
    "product_rate": ("share of the peak at which matrix products run: what `step_seconds` and everything from them assume", None),
    "asked_product_rate": ("{lower, upper}: product_rate of a run at `mfu`, if all overlaps and if nothing does; null: above 1",
        lambda a: a.asked and _bounds((a.asked.lower, a.asked.upper))),
    "peak_flops_per_second": ("dense peak of matrix products, or null", lambda a: peak_of(a.chip)),
    "flops": ("of the whole run without recomputation, or null", None),
    "six_nd_flops": ("6ND of the whole run: 6 × active parameters × tokens, or null", None),
    "recomputed_fraction": ("what checkpointing and chunks compute again, per FLOP of the run", lambda a: a.recomputed),
    "days": ("of the whole run at the MFU, or null", None),
    "mfu_step_seconds": ("of one optimizer step at the MFU, or null", lambda a: a.mfu_seconds),
    "mfu_tokens_per_second": ("of all accelerators at the MFU, or null", None),
    "within_days": ("days that the run may take, as given, or null", None),
    "accelerators_within_days": ("the fewest accelerators, in whole nodes above one node, whose `days` are no more than those, "
        "or null", None),
    "step_seconds": ("{lower, upper, likely, compute, inside, between, bubble} of one optimizer step at product_rate, or null: "
        "likely is no bound, and adds what products wait for, while all else that is sent overlaps with them; compute has "
        "attention over all pairs, lower and bubble causal attention where it can be had; inside has rings that leave the node, "
        "too, where their hops inside it are the slower ones", lambda a: seconds_as_dict(a.seconds, a.causal)),
    "step_mfu": ("{lower, upper}: MFU of a run in steps of step_seconds, or null", lambda a: _bounds(a.step_mfu)),
    "tokens_per_second": ("{lower, upper} of all accelerators: tokens of a step / step_seconds, not at mfu, or null",
        lambda a: _bounds(a.tokens_per_second)),
    "run_days": ("{lower, upper}: steps of the tokens × step_seconds, or null", lambda a: _bounds(a.run_days)),
    "wire_bytes": ("bytes that one accelerator sends in a step, by collective and whether its ranks share a node, or null",
        lambda a: None if a.wire is None else dict(a.wire.items())),
    "link_bytes": ("those of them that leave the node over the link of one accelerator, or null", None),
    "memory_bytes": ("bytes by bucket at the peak of a step on one accelerator", lambda a: dict(a.memory.items())),
    "peak_moment": ("of the step, or null", lambda a: a.moment),
    "total_bytes": ("sum of memory_bytes", lambda a: a.memory.total),
    "uneven_experts_bytes": ("the same if all tokens chose the same experts, or null", lambda a: a.uneven),
    "allowance_bytes": ("bytes left free, by reason", lambda a: dict(a.allowance.items())),
    "available_bytes": ("memory of one accelerator", lambda a: a.chip.memory_bytes),
    "fits": ("whether total and allowance are within what is available; a number of parameters has no activations", None),
    "advice": ("list of {change, costs, slower}: cheapest first; slower is a fraction of time or null",
        lambda a: [{"change": one.change, "costs": one.costs, "slower": one.slower} for one in a.advice]),
    "largest_model": ("parameters that fit with gradients, states and temporary tensors of the optimizer's step", None),
    "accelerator_hours": ("count × hours, or null", None),
    "cost": ("accelerator hours × the price given, or null", None),
    "energy_kwh": ("accelerator hours × the watts given, or null", None),
    "run_cost": ("{lower, upper}: what run_days cost at the price given, or null", lambda a: _bounds(a.run_cost)),
    "run_energy_kwh": ("{lower, upper}: what run_days take at the watts given, or null", lambda a: _bounds(a.run_energy_kwh)),
    "layouts": ("with --find, list of {layout, total_bytes, step_seconds, fits}: quickest first; else null", lambda a: None),
    "largest_batch": ("with --largest-batch, sequences of the largest micro-batch that fits, 0 if not even one; else null",
        lambda a: None),
    "explain": ("with --explain, {quantity: its formula with numbers}; else null", lambda a: None),
    "sensitivity": ("with --sensitivity, list of {change, days, bytes}: factors by one change, the most first; else null",
        lambda a: None),
    "traced": ("where transformers' own modules were counted, {by, architecture, kept (it had been counted before), whole, "
        "upper_bound (fits is null where it only may fit), components, forward_flops, training_flops, saved_bytes, left_out, "
        "step_flops, flops_per_token}; else null", lambda a: None),
    "notes": ("sentences about numbers that are not exact", lambda a: [*filter(None, [a.other_layouts]), *a.notes]),
}  # fmt: skip
KEYS = {key: meaning for key, (meaning, _) in _ROWS.items()}


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
    flavour: str
    notes: tuple[str, ...]
    #: other ways to divide the model over the same accelerators, where nothing else helps on these; or ""
    other_layouts: str = ""
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
        return plain_values(self, _ROWS)


def _bounds(values: tuple[float | None, float | None] | None) -> dict[str, float | None] | None:
    return values and dict(zip(("lower", "upper"), values, strict=True))


def seconds_as_dict(seconds: StepSeconds | None, causal: StepSeconds | None = None) -> dict[str, float] | None:
    """The bounds of a step, the lower one with causal attention, and what they are made of, as plain values."""
    if seconds is None:
        return None
    names = ("lower", "upper", "likely", "compute", "inside", "between", "bubble")
    values = {name: getattr(seconds, name) for name in names}
    return values | {name: getattr(causal or seconds, name) for name in ("lower", "bubble")}
