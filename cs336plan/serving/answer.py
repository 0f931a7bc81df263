"""The answer to a question about serving, and its price."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.chip import allowance
from cs336kit.predict.decoding.bounds import Bounds
from cs336kit.predict.decoding.memory import ServedBytes, served_bytes
from cs336kit.predict.hardware import Accelerator
from cs336plan.answers import Note, sentences
from cs336plan.serving import words
from cs336plan.serving.question import ServingQuestion


@dataclass(frozen=True)
class ServingAdvice:
    """One change, or several together, that makes at least one sequence fit."""

    #: fields of the question and their new values
    changes: dict[str, Any]
    #: sequences that fit then
    largest_batch: int
    #: whether the rate between nodes is needed, too, and not given
    between_nodes: bool = False

    @property
    def change(self) -> str:
        """In words, with the options of the command."""
        return words.change(self.changes, self.between_nodes)

    def __str__(self) -> str:
        sequences = "1 sequence fits" if self.largest_batch == 1 else f"{self.largest_batch:,} sequences fit"
        return f"{self.change}: then {sequences}"


class PerToken(NamedTuple):
    """Of an output token, (at best, if nothing overlaps): steps of a batch, averaged over the answer, and prompts.

    In seconds of one token, or in what a million of them cost.
    """

    batch: int
    decoding: tuple[float, float]
    prompts: tuple[float, float]

    @property
    def total(self) -> tuple[float, float]:
        """Both parts together."""
        return self.decoding[0] + self.prompts[0], self.decoding[1] + self.prompts[1]


@dataclass(frozen=True)
class ServingAnswer(ServedBytes):
    """The answer: bytes, bounds of a prompt and of a token, and the largest batches."""

    question: ServingQuestion
    chip: Accelerator
    parameters: int
    allowance: Breakdown
    allowance_reason: str
    #: the most sequences whose cache fits; 0 if not even one does
    largest_batch: int
    prefill: Bounds
    #: (batch, bounds of one token of each of its sequences)
    tokens: tuple[tuple[int, Bounds], ...]
    #: (at best, if nothing overlaps): the largest batch whose token takes no more than the latency asked for
    batch_for_latency: tuple[int, int] | None
    #: facts about numbers that are not exact; sentences where the kit says them of the chip or of the model
    facts: tuple[Note | str, ...]
    #: seconds of a token at `sustained_batch`, averaged over the answer: at best, and if nothing overlaps
    average: tuple[float, float] | None = None
    #: if not one sequence fits: changes that were tried and make it fit
    advice: tuple[ServingAdvice, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """The facts as sentences."""
        return sentences(self.facts, words.NOTES)

    @property
    def page_waste(self) -> tuple[float, int]:
        """Bytes of a sequence's last page that stay unused: on average over all lengths, and at worst."""
        worst = (self.question.page - 1) * self.cache_bytes_per_token
        return worst / 2, worst

    def total(self, batch: int) -> int:
        """Bytes of weights, working tensors, allowance, and the whole pages of `batch` sequences with their answers."""
        return super().total(batch) + self.allowance.total

    @property
    def active_parameters(self) -> int:
        """Parameters that take part in one token: of a mixture's experts, those it visits."""
        return active_parameters(self.question.config).total

    @property
    def sustained(self) -> PerToken | None:
        """Seconds of an output token if a prompt arrives whenever an answer ends; None if no batch fits.

        Each token takes a step of its batch divided by the batch, with a cache that grows from the prompt to the end of the
        answer, and the pass of a prompt divided by the answer's tokens. At best, so many prompts are processed together that
        reading the weights does not count; else one after another. No token is decoded meanwhile.
        """
        q, batch = self.question, self.sustained_batch
        if self.average is None:
            return None
        prompt, output = self.prefill, q.output_tokens
        together = max(prompt.compute, prompt.links, prompt.cache_bytes / (self.chip.bandwidth * q.efficiency))
        least, most = self.average
        return PerToken(batch, (least / batch, most / batch), (together / output, prompt.most / output))

    @property
    def cost(self) -> PerToken | None:
        """What a million output tokens cost at the price that was given; None without a price, and if no batch fits."""
        q, seconds = self.question, self.sustained
        if seconds is None or q.price_per_hour is None:
            return None
        rate = q.price_per_hour * q.count / 3600 * 1e6
        (a, b), (c, d) = seconds.decoding, seconds.prompts
        return PerToken(seconds.batch, (rate * a, rate * b), (rate * c, rate * d))

    @property
    def sustained_batch(self) -> int:
        """The batch asked for if it fits; else the largest that surely, or at best, meets the latency; else the largest."""
        asked = self.question.batch
        if asked is not None and asked <= self.largest_batch:
            return asked
        if self.batch_for_latency is not None:
            best, sure = self.batch_for_latency
            return sure or best
        return self.largest_batch


def memory_fields(q: ServingQuestion, what: Accelerator) -> dict[str, Any]:
    """The fields of an answer that are bytes on one accelerator, and how many sequences fit."""
    free, reason = allowance(q.allowance, device=what, count=q.count)
    taken = served_bytes(q)
    fit = taken.fitting(what.memory_bytes - free.total)
    return {**vars(taken), "allowance": free, "allowance_reason": reason, "largest_batch": fit}
