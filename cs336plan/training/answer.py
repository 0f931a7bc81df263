"""The answer to a question about a training run: its numbers, and those that follow from them."""

from dataclasses import dataclass

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.network import StepSeconds
from cs336plan.answers import Note, sentences
from cs336plan.training import words
from cs336plan.training.changes import Advice
from cs336plan.training.memory import Asked
from cs336plan.training.question import Question

#: The share by which a number has to change before an answer mentions it.
SEEN = 0.05


@dataclass(frozen=True)
class Answer:
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


def seconds_as_dict(seconds: StepSeconds | None, causal: StepSeconds | None = None) -> dict[str, float] | None:
    """The bounds of a step, the lower one with causal attention, and what they are made of, as plain values."""
    if seconds is None:
        return None
    names = ("lower", "upper", "likely", "compute", "inside", "between", "bubble")
    values = {name: getattr(seconds, name) for name in names}
    return values | {name: getattr(causal or seconds, name) for name in ("lower", "bubble")}
