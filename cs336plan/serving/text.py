"""The answer to a question about serving as text."""

from collections.abc import Iterator
from math import inf

from cs336kit.predict.chip import peak_of
from cs336kit.predict.grid import as_text
from cs336kit.predict.packed import packing_called
from cs336kit.predict.words import WIDTH, accelerators, digits, folded, row, size
from cs336plan.serving.answer import ServingAnswer


def text(answer: ServingAnswer) -> str:
    """The answer, one idea per line, in 80 columns."""
    return "\n".join([*_head(answer), *_memory(answer), *_latency(answer), *_end(answer)])


def milliseconds(seconds: float) -> str:
    return digits(1e3 * seconds)


def _span(least: float, most: float) -> str:
    """Two times, both in the unit of the longer one."""
    return f"{digits(least)} to {digits(most)} s" if most >= 1 else f"{milliseconds(least)} to {milliseconds(most)} ms"


def _rates(answer: ServingAnswer) -> str:
    q = answer.question
    given = {"peak": q.peak_flops_per_second is not None, "bandwidth": q.bandwidth is not None}
    share = f"{100 * q.efficiency:g} % of " if q.efficiency != 1 else ""
    if q.accelerator is None or all(given.values()):
        return f"{share}the rates given"
    if not any(given.values()):
        return f"{share}the datasheet's rates"
    one, other = sorted(given, key=lambda rate: not given[rate])
    return f"{share}the {one} given and the datasheet's {other}"


def _head(answer: ServingAnswer) -> Iterator[str]:
    q, chip = answer.question, answer.chip
    active = (
        f", {answer.active_parameters:,} of them active for a token"
        if answer.active_parameters < answer.parameters
        else ""
    )
    published = " as published" if q.stored == q.config.stored else ""
    what = f"{answer.parameters:,} parameters{active}, weights in {q.stored}{published}, cache in {q.cache}"
    yield from folded(f"{q.name}: {what}", indent="  ", first="")
    many = f"{accelerators(q.count, chip.name)} (tensor parallel), each" if q.count > 1 else f"{chip.name},"
    many = "an accelerator as given," if many == "given," else many
    yield f"on {many} {chip.bandwidth / 1e12:.3g} TB/s and {(peak_of(chip) or 0) / 1e12:,.4g} TFLOP/s"
    passes = f" in passes of {q.pass_tokens:,} tokens" * _has_chunks(answer)
    yield f"prompts of {q.prompt:,} tokens{passes}, answers of {q.output:,}"


def _has_chunks(answer: ServingAnswer) -> bool:
    return answer.question.pass_tokens < answer.question.prompt_tokens


def _memory(answer: ServingAnswer) -> Iterator[str]:
    q = answer.question
    average, worst = answer.page_waste
    yield "memory of one accelerator" if q.count > 1 else "memory"
    for name, part in answer.weights.items():
        packed = packing_called(name.rpartition(" in ")[2])
        yield row(name, part, f"{packed.bits_per_weight:.4g} bits a weight" if packed else "")
    yield row("prefill activations", answer.working_bytes, "of one pass" * _has_chunks(answer))
    yield row("allowance", answer.allowance.total)
    yield from folded(answer.allowance_reason, indent="    ")
    yield row("logits of a sequence", answer.logits_bytes)
    full = (q.config.window or inf) < q.length
    each = f"{answer.cache_bytes_per_token:,} bytes a {'further ' * full}token"
    yield row("cache of a sequence", answer.cache_bytes, each)
    wasted = f"pages of {q.page} tokens leave {average / 2**20:,.2f} MiB of it empty on average, {worst / 2**20:,.2f} at worst"
    yield from folded("; ".join(["windows are full"] * full + [wasted] * bool(worst)), indent="    ")
    yield row("available", answer.chip.memory_bytes)
    if answer.largest_batch:
        yield f"the memory holds {answer.largest_batch:,} sequence{'s' * (answer.largest_batch > 1)} at once"
    else:
        yield from _too_much(answer)


def _too_much(answer: ServingAnswer) -> Iterator[str]:
    """By how much one sequence does not fit, and what would make it fit."""
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


def _latency(answer: ServingAnswer) -> Iterator[str]:
    q, prefill = answer.question, answer.prefill
    if_it_did = "" if answer.largest_batch else ", if it did fit"
    yield from folded(f"at {_rates(answer)}, if all overlaps and if nothing does{if_it_did}:", indent="  ", first="")
    yield f"  time to first token (TTFT): {_span(prefill.least, prefill.most)} ({prefill.bound} bound)"
    yield f"  time per output token (TPOT) with a context of {q.length:,} tokens:"
    rows = [("batch", "ms a token", "tokens per second", "GiB", "bound by", "")]
    for batch, bounds in answer.tokens:
        time = f"{milliseconds(bounds.least)} to {milliseconds(bounds.most)}"
        rates = [digits(batch / seconds) for seconds in (bounds.most, bounds.least)]
        rate = " to ".join(dict.fromkeys(rates))
        mark = "does not fit" if batch > answer.largest_batch else ""
        rows.append((f"{batch:,}", time, rate, size(answer.total(batch)), bounds.bound, mark))
    wide, narrow = (["  " + line for line in as_text(rows, ">>>><<", gap=gap).splitlines()] for gap in (3, 2))
    yield from wide if max(map(len, wide)) <= WIDTH else narrow
    if q.latency is not None and answer.batch_for_latency is not None:
        best, sure = answer.batch_for_latency
        within = f"{milliseconds(q.latency)} ms a token at {_rates(answer)}"
        many, few = f"{best:,} sequence{'s' * (best > 1)}", f"{sure:,}" if sure else "none"
        line = f"within {within}: {many} if all overlaps, {few} if nothing does" if best else f"no batch meets {within}"
        yield from folded(line, indent="    ", first="  ")
    if (each := answer.sustained) is not None:
        rates = [f"{digits(1 / seconds / share)}" for share in (1, q.output_tokens) for seconds in reversed(each.total)]
        steady = "{} to {} tokens per second, {} to {} requests per second".format(*rates)
        yield from folded(f"sustained, prompts included, at batch {each.batch:,}: {steady}", indent="    ", first="  ")


def _end(answer: ServingAnswer) -> Iterator[str]:
    cost = answer.cost
    if cost is not None:
        together = f"a million output tokens, prompts included, cost {_range(cost.total)} at batch {cost.batch:,}"
        yield from folded(together, indent="    ", first="  ")
        prompts = f"prompts {_range(cost.prompts)} (at best several in one pass)"
        parts = f"decoding {_range(cost.decoding)}, averaged over the answer; {prompts}"
        yield from folded(parts, indent="      ", first="    ")
    elif answer.question.price_per_hour is not None:
        why = "no batch meets the latency" if answer.largest_batch else "not one sequence fits"
        yield f"  a million output tokens have no price: {why}"
    for note in (*answer.notes, _LEFT_OUT + _NO_FORECAST * (answer.question.efficiency == 1)):
        yield from folded(note, indent="  ", first="note: ")


def _range(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:,.3g} to {bounds[1]:,.3g}"


#: What the times mean and leave out, and that they are not a forecast; with an efficiency below 1, they may be one.
_LEFT_OUT = (
    "if all overlaps, a pass reads weights and cache once while the chip computes; if nothing does, each operation reads, "
    "computes and writes by itself. Launches, the latency of links, sampling and the scheduler are left out"
)
_NO_FORECAST = (
    ", and no kernel reaches these rates: engines are slower than the first bound, and many also than the second (--efficiency "
    "70% takes 70 % of both rates)"
)
