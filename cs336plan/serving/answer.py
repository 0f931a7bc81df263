"""The answer to a question about serving, its price, and its plain values."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.chip import allowance, peak_of
from cs336kit.predict.decoding.bounds import Bounds
from cs336kit.predict.decoding.load import packing_of
from cs336kit.predict.decoding.memory import ServedBytes, served_bytes
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.packed import packing_called
from cs336plan.answers import Note, Row, plain_values, sentences
from cs336plan.serving import words
from cs336plan.serving.question import ServingQuestion

#: Raised whenever a key of the JSON output changes its meaning or is removed.
SCHEMA = 3
#: Every quantity of `cs336kit serve --json` in order. One that does not apply is null.
ROWS: tuple[Row["Served"], ...] = (
    Row("schema", f"{SCHEMA}; raised when a key changes its meaning or goes", lambda a: SCHEMA),
    Row("command", '"serve"', lambda a: "serve"),
    Row("model", "name as given", lambda a: a.question.name),
    Row("parameters", "of the whole model"),
    Row("active_parameters", "those that take part in one token: of a mixture's experts, the ones it visits"),
    Row("accelerator", 'name of the table, or "given"', lambda a: a.chip.name),
    Row("count", "accelerators that divide every layer among them (tensor parallel)"),
    Row("peak_flops_per_second", "dense peak of the products", lambda a: peak_of(a.chip)),
    Row("bandwidth_bytes_per_second", "of the accelerator's memory", lambda a: a.question.bandwidth or a.chip.bandwidth),
    Row("efficiency", "share of that peak and of that bandwidth at which all times are, 1 if not given"),
    Row("weights", "type of the served weights", lambda a: a.question.weights),
    Row("published_weights", "type in which the model is published, or null where it is not known",
        lambda a: a.question.config.stored or None),
    Row("bits_per_weight", "of a packed matrix with its scales, or null",
        lambda a: getattr(packing_called(packing_of(a.question.stored)), "bits_per_weight", None)),
    Row("cache", "type of the cache's elements"),
    Row("prompt", "tokens of a prompt"),
    Row("output", "tokens of an answer"),
    Row("chunk", "tokens of a prompt that one pass takes, at most the prompt", lambda a: a.question.pass_tokens),
    Row("weight_bytes", "of one accelerator, by kind of parameter", lambda a: a.weights),
    Row("cache_bytes", "of one sequence with prompt and answer"),
    Row("cache_bytes_per_token", "of one more token of a sequence"),
    Row("working_bytes", "of one pass of a prompt, beside what it leaves in the cache"),
    Row("logits_bytes", "of one sequence's logits, in bf16 and fp32"),
    Row("page_tokens", "tokens of a page of the cache", lambda a: a.question.page),
    Row("page_waste_bytes", "{average, worst}: of a sequence's last page", lambda a: a.page_waste, ("average", "worst")),
    Row("allowance_bytes", "bytes left free, by reason", lambda a: a.allowance),
    Row("available_bytes", "memory of one accelerator", lambda a: a.chip.memory_bytes),
    Row("largest_batch", "sequences whose cache fits, 0 if not even one"),
    Row("prefill_seconds", "{least, most, bound, sent_bytes} of one prompt: if all overlaps, if nothing does, and which of "
        "memory, compute and links the first is", lambda a: _seconds(a.prefill)),
    Row("tokens", "list of {batch, least, most, bound, sent_bytes, tokens_per_second_most, tokens_per_second_least, total_bytes, "
        "fits}", lambda a: [_row(a, batch, bounds) for batch, bounds in a.tokens]),
    Row("latency", "seconds that a token may take, as given, or null"),
    Row("batch_for_latency", "{at_best, if_nothing_overlaps}: largest batches within the latency, or null",
        parts=("at_best", "if_nothing_overlaps")),
    Row("sustained", "{batch, tokens_per_second_most, tokens_per_second_least, requests_per_second_most, "
        "requests_per_second_least}: of output tokens where prompts arrive as answers end, over the whole answer; batch: the "
        "one asked for where it fits, else the largest that meets the latency or fits; null where no batch can be",
        lambda a: a.sustained and _throughput(a.sustained, a.question.output_tokens)),
    Row("cost_per_million_tokens",
        "{least, most, batch, decoding, prompts}: a million output tokens with their prompts, from the "
        "price given, and the {least, most} of both parts, averaged over the answer, at best of prompts together; batch: that "
        "of sustained; null without a price, or where no batch can be", lambda a: a.cost and _cost(a.cost)),
    Row("advice", "list of {change, changes, largest_batch}: where nothing fits, what was tried and makes a sequence fit, in "
        "words and as options with their values, and the sequences that fit then",
        lambda a: [{"change": one.change, "changes": one.changes, "largest_batch": one.largest_batch} for one in a.advice]),
    Row("traced", "where transformers' own modules were counted, {by, architecture, kept (it had been counted before), whole, "
        "upper_bound, components, forward_flops, training_flops, saved_bytes, left_out, state_bytes, prefill_flops, "
        "decode_flops}, with lower bounds alone beside it; else null", lambda a: None),
    Row("notes", "sentences about numbers that are not exact", lambda a: list(a.notes)),
)  # fmt: skip
KEYS = {row.key: row.words for row in ROWS}


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
        return words.change(self)

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
class Served(ServedBytes):
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

    def __str__(self) -> str:
        """The answer as text, in GiB and milliseconds."""
        from cs336plan.serving.text import text

        return text(self)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of KEYS."""
        return plain_values(self, ROWS)


def _row(answer: Served, batch: int, bounds: Bounds) -> dict[str, object]:
    return {
        "batch": batch, **_seconds(bounds), "tokens_per_second_most": batch / bounds.least,
        "tokens_per_second_least": batch / bounds.most, "total_bytes": answer.total(batch),
        "fits": batch <= answer.largest_batch,
    }  # fmt: skip


def memory_fields(q: ServingQuestion, what: Accelerator) -> dict[str, Any]:
    """The fields of an answer that are bytes on one accelerator, and how many sequences fit."""
    free, reason = allowance(q.allowance, device=what, count=q.count)
    taken = served_bytes(q)
    fit = taken.fitting(what.memory_bytes - free.total)
    return {**vars(taken), "allowance": free, "allowance_reason": reason, "largest_batch": fit}


def _throughput(each: PerToken, output: int) -> dict[str, object]:
    least, most = each.total
    return {
        "batch": each.batch, "tokens_per_second_most": 1 / least, "tokens_per_second_least": 1 / most,
        "requests_per_second_most": 1 / least / output, "requests_per_second_least": 1 / most / output,
    }  # fmt: skip


def _cost(cost: PerToken) -> dict[str, object]:
    return {
        "least": cost.total[0], "most": cost.total[1], "batch": cost.batch,
        "decoding": {"least": cost.decoding[0], "most": cost.decoding[1]},
        "prompts": {"least": cost.prompts[0], "most": cost.prompts[1]},
    }  # fmt: skip


def _seconds(bounds: Bounds) -> dict[str, object]:
    return {"least": bounds.least, "most": bounds.most, "bound": bounds.bound, "sent_bytes": bounds.sent}
