"""The answer to a question about serving as text and as plain values."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from cs336kit.predict._common.grid import as_text
from cs336kit.predict._planner.text import WIDTH, folded, row, size
from cs336kit.predict.packed import PACKINGS

if TYPE_CHECKING:
    from cs336kit.predict.serving import Bounds, Served

#: Raised whenever a key of the JSON output changes its meaning or goes.
SERVING_SCHEMA = 2
#: Every key of `cs336kit serve --json` in order, with its meaning. A key that does not apply is null.
SERVING_KEYS = {
    "schema": "2; raised when a key changes its meaning or goes",
    "command": '"serve"',
    "model": "name as given",
    "parameters": "of the whole model",
    "accelerator": 'name of the table, or "given"',
    "count": "accelerators that divide every layer among them (tensor parallel)",
    "peak_flops_per_second": "dense peak of the products",
    "bandwidth_bytes_per_second": "of the accelerator's memory",
    "weights": "type of the served weights",
    "bits_per_weight": "of a packed matrix with its scales, or null",
    "cache": "type of the cache's elements",
    "prompt": "tokens of a prompt",
    "output": "tokens of an answer",
    "weight_bytes": "of one accelerator, by kind of parameter",
    "cache_bytes": "of one sequence with prompt and answer",
    "cache_bytes_per_token": "of one more token of a sequence",
    "working_bytes": "of one prompt's pass, beside what it leaves in the cache",
    "logits_bytes": "of one sequence's logits, in bf16 and fp32",
    "page_tokens": "tokens of a page of the cache",
    "page_waste_bytes": "{average, worst}: of a sequence's last page",
    "allowance_bytes": "bytes left free, by reason",
    "available_bytes": "memory of one accelerator",
    "largest_batch": "sequences whose cache fits, 0 if not even one",
    "prefill_seconds": "{least, most, bound, sent_bytes} of one prompt: bounds, and which of memory and compute the lower one is",
    "tokens": "list of {batch, least, most, bound, sent_bytes, tokens_per_second_most, tokens_per_second_least, total_bytes, "
    "fits}",
    "latency": "seconds that a token may take, as given, or null",
    "batch_for_latency": "{at_best, if_nothing_overlaps}: largest batches within the latency, or null",
    "cost_per_million_tokens": "{least, most, batch, decoding, prompts}: a million output tokens with their prompts, from the "
    "price given, and the {least, most} of both parts; batch: the one asked for where it fits, else the largest that meets the "
    "latency or fits; null without a price, or where no batch can be",
    "advice": "list of {change, changes, largest_batch}: where nothing fits, what was tried and makes a sequence fit, in words "
    "and as options with their values, and the sequences that fit then",
    "notes": "sentences about numbers that are not exact",
}


def as_dict(answer: "Served") -> dict[str, object]:
    """Plain values under the names of SERVING_KEYS."""
    q = answer.question
    average, worst = answer.page_waste
    best = answer.batch_for_latency
    cost = cost_of_tokens(answer)
    values: dict[str, object] = {
        "schema": SERVING_SCHEMA,
        "command": "serve",
        "model": q.name,
        "parameters": answer.parameters,
        "accelerator": answer.chip.name,
        "peak_flops_per_second": answer.chip.peak,
        "bandwidth_bytes_per_second": answer.chip.bandwidth,
        "bits_per_weight": PACKINGS[q.weights].bits_per_weight if q.weights in PACKINGS else None,
        "weight_bytes": dict(answer.weights.items()),
        "cache_bytes": answer.cache_bytes,
        "cache_bytes_per_token": answer.cache_bytes_per_token,
        "working_bytes": answer.working_bytes,
        "logits_bytes": answer.logits_bytes,
        "page_tokens": q.page,
        "page_waste_bytes": {"average": average, "worst": worst},
        "allowance_bytes": dict(answer.allowance.items()),
        "available_bytes": answer.chip.memory_bytes,
        "largest_batch": answer.largest_batch,
        "prefill_seconds": _seconds(answer.prefill),
        "tokens": [
            {
                "batch": batch, **_seconds(bounds), "tokens_per_second_most": batch / bounds.least,
                "tokens_per_second_least": batch / bounds.most, "total_bytes": answer.total(batch),
                "fits": batch <= answer.largest_batch,
            }
            for batch, bounds in answer.tokens
        ],
        "batch_for_latency": best and {"at_best": best[0], "if_nothing_overlaps": best[1]},
        "cost_per_million_tokens": cost and _cost(cost),
        "advice": [
            {"change": one.change, "changes": dict(one.changes), "largest_batch": one.largest_batch} for one in answer.advice
        ],
        "notes": list(answer.notes),
    }  # fmt: skip
    return {key: values[key] if key in values else getattr(q, key) for key in SERVING_KEYS}


def _seconds(bounds: "Bounds") -> dict[str, object]:
    return {"least": bounds.least, "most": bounds.most, "bound": bounds.bound, "sent_bytes": bounds.sent}


class Cost(NamedTuple):
    """Of a million output tokens, (at best, if nothing overlaps): tokens at a batch, and their share of the prompts."""

    batch: int
    decoding: tuple[float, float]
    prompts: tuple[float, float]

    @property
    def total(self) -> tuple[float, float]:
        """Both parts together."""
        return self.decoding[0] + self.prompts[0], self.decoding[1] + self.prompts[1]


def cost_of_tokens(answer: "Served") -> Cost | None:
    """What a million output tokens cost, from the price that was given; None without one, and where no batch can be.

    Each token takes a step of its batch divided by the batch, and the pass of a prompt divided by the answer's tokens:
    prompts are computed one after another, and no token is decoded meanwhile.
    """
    q, batch = answer.question, _priced_batch(answer)
    if q.price_per_hour is None or not batch:
        return None
    token, prompt, output = dict(answer.tokens)[batch], answer.prefill, q.output or 1
    rate = q.price_per_hour * q.count / 3600 * 1e6
    return Cost(
        batch, (rate * token.least / batch, rate * token.most / batch),
        (rate * prompt.least / output, rate * prompt.most / output),
    )  # fmt: skip


def _priced_batch(answer: "Served") -> int:
    """The batch asked for if it fits; else the largest that surely, or at best, meets the latency; else the largest."""
    asked = answer.question.batch
    if asked is not None and asked <= answer.largest_batch:
        return asked
    if answer.batch_for_latency is not None:
        best, sure = answer.batch_for_latency
        return sure or best
    return answer.largest_batch


def _cost(cost: Cost) -> dict[str, object]:
    return {
        "least": cost.total[0], "most": cost.total[1], "batch": cost.batch,
        "decoding": {"least": cost.decoding[0], "most": cost.decoding[1]},
        "prompts": {"least": cost.prompts[0], "most": cost.prompts[1]},
    }  # fmt: skip


def text(answer: "Served") -> str:
    """The answer, one idea a line, in 80 columns."""
    return "\n".join([*_head(answer), *_memory(answer), *_latency(answer), *_end(answer)])


def milliseconds(seconds: float) -> str:
    """A time with three digits."""
    return f"{1e3 * seconds:,.3g}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _head(answer: "Served") -> Iterator[str]:
    q, chip = answer.question, answer.chip
    yield f"{q.name}: {answer.parameters:,} parameters in {q.weights}, cache in {q.cache}"
    many = f"{q.count} × {chip.name}, each" if q.count > 1 else f"{chip.name},"
    yield f"on {many} {(chip.bandwidth or 0) / 1e12:.3g} TB/s and {(chip.peak or 0) / 1e12:,.4g} TFLOP/s"
    yield f"prompts of {q.prompt:,} tokens, answers of {q.output:,}"


def _memory(answer: "Served") -> Iterator[str]:
    q = answer.question
    average, worst = answer.page_waste
    yield "memory of one accelerator" if q.count > 1 else "memory"
    for name, part in answer.weights.items():
        packed = q.weights in PACKINGS and name.startswith("matrices")
        yield row(name, part, f"{PACKINGS[q.weights].bits_per_weight:.4g} bits a weight" if packed else "")
    yield row("one prompt's pass", answer.working_bytes)
    yield row("allowance", answer.allowance.total)
    yield from folded(answer.allowance_reason, indent="    ")
    yield row("logits of a sequence", answer.logits_bytes)
    yield row("cache of a sequence", answer.cache_bytes, f"{answer.cache_bytes_per_token:,} bytes a token")
    wasted = f"pages of {q.page} tokens leave {average / 2**20:,.2f} MiB of it empty on average, {worst / 2**20:,.2f} at worst"
    yield from folded(wasted, indent="    ")
    yield row("available", answer.chip.memory_bytes)
    if answer.largest_batch:
        yield f"the memory holds {answer.largest_batch:,} sequences at once"
    else:
        yield from _too_much(answer)


def _too_much(answer: "Served") -> Iterator[str]:
    """By how much one sequence does not fit, and what makes it fit."""
    over = f"it does not fit: {size(answer.total(1) - answer.chip.memory_bytes)} GiB too much for one sequence"
    if not answer.advice:
        sentence = (
            "; nor would it with weights and a cache of fewer bits, shorter sequences and more accelerators together"
        )
        yield from folded(f"{over}{sentence}: take a smaller model, or an accelerator with more memory", indent="  ")
        return
    yield f"  {over}; what helps:"
    for one in answer.advice:
        yield from folded(str(one), indent="    ", first="  - ")


def _latency(answer: "Served") -> Iterator[str]:
    q, prefill = answer.question, answer.prefill
    yield (
        f"the first token of a prompt takes {milliseconds(prefill.least)} to {milliseconds(prefill.most)} ms "
        f"({prefill.bound} bound)"
    )
    if_it_did = "" if answer.largest_batch else ", if it did fit"
    yield f"one token more, with {(q.prompt or 0) + (q.output or 0):,} tokens in the cache{if_it_did}:"
    rows = [("batch", "ms a token", "tokens per second", "GiB", "bound by", "")]
    for batch, bounds in answer.tokens:
        time = f"{milliseconds(bounds.least)} to {milliseconds(bounds.most)}"
        rate = f"{batch / bounds.most:,.0f} to {batch / bounds.least:,.0f}"
        mark = "does not fit" if batch > answer.largest_batch else ""
        rows.append((f"{batch:,}", time, rate, size(answer.total(batch)), bounds.bound, mark))
    wide, narrow = (["  " + line for line in as_text(rows, ">>>><<", gap=gap).splitlines()] for gap in (3, 2))
    yield from wide if max(map(len, wide)) <= WIDTH else narrow
    if q.latency is not None and answer.batch_for_latency is not None:
        best, sure = answer.batch_for_latency
        many = f"{best:,} sequences" if best else "no sequence"
        yield from folded(
            f"within {milliseconds(q.latency)} ms a token: at best {many}, {sure:,} if nothing overlaps", indent="  "
        )


def _end(answer: "Served") -> Iterator[str]:
    cost = cost_of_tokens(answer)
    if cost is not None:
        together = f"a million output tokens, prompts included, cost {_range(cost.total)} at batch {cost.batch:,}"
        yield from folded(together, indent="  ", first="")
        yield f"  decoding {_range(cost.decoding)}, prompts one after another {_range(cost.prompts)}"
    elif answer.question.price_per_hour is not None:
        why = "no batch meets the latency" if answer.largest_batch else "not one sequence fits"
        yield f"a million output tokens have no price: {why}"
    for note in (*answer.notes, *_LEFT_OUT):
        yield from folded(note, indent="  ", first="note: ")


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:,.3g} to {bounds[1]:,.3g}"


#: What the bounds say and what they leave out.
_LEFT_OUT = (
    "at best: weights and cache are read once while the chip computes; at most: each operation reads, computes and writes "
    "by itself, all at full rate. Launches, sampling and the scheduler are left out",
)
