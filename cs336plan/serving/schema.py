"""What an answer about serving says in JSON: every quantity with its key and its unit."""

from cs336kit.predict.chip import peak_of
from cs336kit.predict.decoding.bounds import Bounds
from cs336kit.predict.decoding.load import packing_of
from cs336kit.predict.packed import packing_called
from cs336plan.answers import Row
from cs336plan.serving.answer import PerToken, ServingAnswer

#: Raised whenever a key of the JSON output changes its meaning or is removed.
SCHEMA = 3
#: Every quantity of `cs336kit serve --json` in order. One that does not apply is null.
ROWS: tuple[Row[ServingAnswer], ...] = (
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


def _row(answer: ServingAnswer, batch: int, bounds: Bounds) -> dict[str, object]:
    return {
        "batch": batch, **_seconds(bounds), "tokens_per_second_most": batch / bounds.least,
        "tokens_per_second_least": batch / bounds.most, "total_bytes": answer.total(batch),
        "fits": batch <= answer.largest_batch,
    }  # fmt: skip


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
