"""Serving a model of a file that is counted by tracing: weights, cache, and lower bounds of a prompt and of a token."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.checks import fraction, positive_int
from cs336kit.predict.chip import allowance, check_room, chip, peak_of
from cs336kit.predict.decoding.load import LARGEST_BATCH, products_of
from cs336kit.predict.grid import as_text
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.optimizers import STATE_TYPES
from cs336kit.predict.packed import EXPERTS, packed_bytes, packing_called
from cs336kit.predict.words import digits, folded, row, size
from cs336plan.serving.schema import KEYS, SCHEMA
from cs336plan.traced_answers.counted import Counted, File, count, refuse_others

#: Options that go into such an answer, by the names that the parser gives them.
TAKEN = {
    "prompt", "output", "batch", "weights", "cache", "accelerator", "memory_bytes", "peak_flops_per_second", "bandwidth",
    "efficiency", "allowance",
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "batch": None, "weights": "bf16", "cache": "bf16", "memory_bytes": None, "peak_flops_per_second": None, "bandwidth": None,
    "efficiency": 1.0, "allowance": None,
}  # fmt: skip
#: Tokens of a prompt and of an answer where none are given, unless the model takes fewer.
_PROMPT, _OUTPUT = 2048, 512


@dataclass(frozen=True)
class TracedServed:
    """The answer; `cache_bytes` of one sequence at its end, None where the cache could not be counted."""

    counted: Counted
    asked: Mapping[str, Any]
    chip: Accelerator
    weights: Breakdown
    #: bytes of weights that work on one token
    active_bytes: int
    cache_bytes: int | None
    allowance: Breakdown
    reason: str
    notes: tuple[str, ...]

    @property
    def length(self) -> int:
        return int(self.asked["prompt"]) + int(self.asked["output"])

    @property
    def largest_batch(self) -> int | None:
        """Sequences whose caches fit beside the weights, at most LARGEST_BATCH."""
        if self.cache_bytes is None:
            return None
        left = self.chip.memory_bytes - self.allowance.total - self.weights.total
        return max(0, min(left // self.cache_bytes, LARGEST_BATCH) if self.cache_bytes else LARGEST_BATCH * (left >= 0))

    def _seconds(self, read: int, flops: int) -> tuple[float, str]:
        share = self.asked["efficiency"]
        memory, compute = read / (share * self.chip.bandwidth), flops / (share * (peak_of(self.chip) or 1))
        return max(memory, compute), "memory" if memory >= compute else "compute"

    @property
    def prompt_seconds(self) -> tuple[float, str] | None:
        """The least that a prompt takes, and what bounds it."""
        flops = self.counted.found.prefill_flops
        return None if flops is None else self._seconds(self.active_bytes, flops)

    def token_seconds(self, batch: int) -> tuple[float, str] | None:
        """The least that a token of each of so many sequences takes at the end of their answers, and what bounds it."""
        flops = self.counted.found.decode_flops
        if flops is None or self.cache_bytes is None:
            return None
        return self._seconds(self.active_bytes + batch * self.cache_bytes, batch * flops)

    @property
    def rows(self) -> list[tuple[int, float, str]]:
        """(batch, seconds of a token, what bounds it): one sequence, the batch asked for, and the largest."""
        batches = sorted({1, self.asked["batch"] or 1, self.largest_batch or 1})
        found = ((batch, self.token_seconds(batch)) for batch in batches)
        return [(batch, *bound) for batch, bound in found if bound is not None]

    def __str__(self) -> str:
        return "\n".join([*self.counted.head(), *self._memory(), *self._times()])

    def _memory(self) -> Iterator[str]:
        q, found = self.asked, self.counted.found
        yield f"weights in {q['weights']}, cache in {q['cache']}, on {self.chip.name}"
        for name, value in self.weights.items():
            yield row(name, value)
        yield row("allowance", self.allowance.total)
        yield from folded(self.reason, indent="    ")
        yield row("available", self.chip.memory_bytes)
        if self.cache_bytes is None:
            return
        yield row("cache of a sequence", self.cache_bytes, f"prompt {q['prompt']:,}, answer {q['output']:,} tokens")
        grows = f"{found.cache_bytes_per_token:,} bytes of it for each further token"
        states = f", {found.state_bytes:,} bytes of states whatever the length" * bool(found.state_bytes)
        yield from folded(grows + states, indent="    ")
        if self.largest_batch:
            sentence = f"the memory holds {self.largest_batch:,} sequence{'s' * (self.largest_batch > 1)} at most"
            yield from folded(f"{sentence}: what a prompt's pass needs besides is not counted", indent="  ", first="")
        else:
            more = self.weights.total + self.allowance.total + self.cache_bytes - self.chip.memory_bytes
            yield f"it does not fit: {size(more)} GiB too much for one sequence"

    def _times(self) -> Iterator[str]:
        found = self.counted.found
        if found.prefill_flops is not None and found.decode_flops is not None:
            line = f"FLOPs: {found.prefill_flops:.4g} of a prompt, {found.decode_flops:.4g} of a token after it"
            yield from folded(line, indent="  ", first="")
        if (prompt := self.prompt_seconds) is not None:
            yield "no less than, where reading and computing overlap and nothing else takes time:"
            yield f"  time to first token (TTFT): {digits(1e3 * prompt[0])} ms ({prompt[1]} bound)"
        if self.rows:
            table = [("batch", "ms a token", "tokens per second", "bound by")]
            table += [(f"{b:,}", digits(1e3 * s), digits(b / s), bound) for b, s, bound in self.rows]
            yield from ("  " + line for line in as_text(table, ">>><", gap=3).splitlines())
        for note in self.notes:
            yield from folded(note, indent="  ", first="note: ")

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of every answer about serving; null where tracing says nothing."""
        q, found, most = self.asked, self.counted.found, self.largest_batch
        prompt = self.prompt_seconds
        known = {
            "schema": SCHEMA, "command": "serve", "model": self.counted.file.name, "parameters": found.parameters.total,
            "active_parameters": found.active_parameters, "accelerator": self.chip.name, "count": 1,
            "peak_flops_per_second": peak_of(self.chip), "bandwidth_bytes_per_second": self.chip.bandwidth,
            **{name: q[name] for name in ("efficiency", "weights", "cache", "prompt", "output")},
            "weight_bytes": dict(self.weights.items()), "cache_bytes": self.cache_bytes,
            "cache_bytes_per_token": found.cache_bytes_per_token, "allowance_bytes": dict(self.allowance.items()),
            "available_bytes": self.chip.memory_bytes, "largest_batch": most,
            "prefill_seconds": None if prompt is None else {"least": prompt[0], "bound": prompt[1]},
            "tokens": [
                {"batch": b, "least": s, "bound": bound, "tokens_per_second_most": b / s, "fits": most is not None and b <= most}
                for b, s, bound in self.rows
            ],
            "notes": list(self.notes),
            "traced": self.counted.values() | {
                "state_bytes": found.state_bytes, "prefill_flops": found.prefill_flops, "decode_flops": found.decode_flops,
            },
        }  # fmt: skip
        return {**dict.fromkeys(KEYS), **known}


def serve(file: File, given: Mapping[str, Any], options: Mapping[str, str]) -> TracedServed:
    """The answer to these options, under the parser's names; `options`: name → the option, for what is refused."""
    refuse_others(given, TAKEN, options)
    half = max(1, (file.context or 2 * _PROMPT) // 2)
    q = {"accelerator": "h100-sxm", "prompt": min(half, _PROMPT), "output": min(half, _OUTPUT), **_DEFAULTS, **given}
    for name in ("prompt", "output"):
        positive_int(name, q[name])
    if q["batch"] is not None:
        positive_int("batch", q["batch"])
    fraction("efficiency", q["efficiency"])
    _check_types(q["weights"], q["cache"])
    numbers = {name: q[name] for name in ("memory_bytes", "peak_flops_per_second", "bandwidth")}
    try:
        what, sourced = chip(q["accelerator"], precision=products_of(q["weights"]), **numbers)
    except ValueError:
        if products_of(q["weights"]) == "bf16":
            raise
        what, sourced = chip(q["accelerator"], precision="bf16", **numbers)
        sourced = (*sourced, f"{what.name} has no sourced {products_of(q['weights'])} peak: products in bf16")
    if "bandwidth" not in what.facts:
        raise ValueError("a latency needs the bandwidth of the memory: give bandwidth, such as 3.35e12")
    free, reason = allowance(q["allowance"], device=what, count=1)
    check_room(free, what.memory_bytes)
    counted = count(file, batch=1, sequence=q["prompt"], precision="bf16")
    found = counted.found
    weights, active = _weights(counted, q["weights"])
    notes = [*sourced, *counted.notes]
    if q["weights"] != "bf16":
        notes.append(
            f"all matrices of blocks in {q['weights']}: those that a published file leaves as they are take more"
        )
    if found.active_parameters is None:
        notes.append("the experts do not tell how many of them work on a token: all weights are taken to be read")
    elif found.active_parameters < found.parameters.total:
        notes.append(
            "tokens of a batch are taken to choose the same experts: others read more weights, and take longer"
        )
    cache = None if found.cache is None else found.cache_bytes(q["prompt"] + q["output"])
    return TracedServed(
        counted=counted, asked=q, chip=what, weights=weights, active_bytes=active, cache_bytes=cache, allowance=free,
        reason=reason, notes=tuple(notes),
    )  # fmt: skip


def _check_types(weights: str, cache: str) -> None:
    """Refuse packings whose bytes depend on which rows a matrix has, or on which matrices are packed, and other caches."""
    kind = packing_called(weights)
    countable = kind is not None and not kind.table and bool(kind.group or not kind.scale_bits)
    if weights not in ("bf16", "fp16") and (weights.endswith(EXPERTS) or not countable):
        raise ValueError(
            f"weights in {weights} cannot be counted by tracing: give bf16, fp16, or a packing of all matrices: fp8, int4"
        )
    if cache != "bf16":
        raise ValueError(
            f"tracing counts the cache as the module keeps it, in bf16, and not in {cache}: leave --cache out"
        )


def _weights(counted: Counted, weights: str) -> tuple[Breakdown, int]:
    """Bytes of the weights by kind, and of those that a token takes: experts that are not chosen, and a table of embeddings
    from which rows are looked up, are not read.
    """
    found = counted.found
    tables = found.parameters.get("embeddings", 0)
    # A matrix has two sizes, or three with those of experts together; a convolution has one channel in the middle.
    matrices = sum(prod(s) for s, _ in found.trained if len(s) == 2 or (len(s) == 3 and s[1] > 1)) - tables
    bytes_of_all = sum(prod(shape) * STATE_TYPES[kind] for shape, kind in found.trained)
    if packing_called(weights) is None:
        parts, each = {"weights": bytes_of_all}, 2.0
    else:
        packed = packed_bytes(matrices, weights)
        parts, each = {f"matrices in {weights}": packed, "all else": bytes_of_all - 2 * matrices}, packed / matrices
    total = found.parameters.total
    idle = each * (total - (total if found.active_parameters is None else found.active_parameters))
    text = counted.file.text
    head = text.get("vocab_size"), text.get("hidden_size")
    looked_up = tables - head[0] * head[1] if isinstance(head[0], int) and isinstance(head[1], int) else 0
    whole = Breakdown(parts, unit="bytes")
    return whole, int(whole.total - idle - 2 * max(0, looked_up))
