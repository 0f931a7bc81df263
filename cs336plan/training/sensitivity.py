"""What changes an answer most: every input changed by itself, with days and bytes relative to what they were."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cs336kit.predict.grid import as_text
from cs336kit.predict.settle import PATTERNS
from cs336kit.predict.transformer import TransformerConfig
from cs336plan.training.answer import Answer
from cs336plan.training.plan import days_and_bytes
from cs336plan.training.question import Question

#: Continuous inputs are changed by this fraction; counts and sizes are doubled.
_STEP = 0.1


@dataclass(frozen=True)
class Change:
    """One input changed: days and bytes of one accelerator as factors of their old values; days None without tokens."""

    what: str
    days: float | None
    bytes: float

    @property
    def largest(self) -> float:
        """How far the larger of the two changes is from a factor of 1."""
        return max(abs(factor - 1) for factor in (self.days, self.bytes) if factor is not None)


def sensitivity(plan: Answer) -> list[Change]:
    """Every single change of an input, the one with the largest effect first."""
    changes = []
    for what, values in _changes(plan):
        try:
            days, size = days_and_bytes(replace(plan.question, **values))
        except ValueError:  # a sequence beyond the model's positions, a width that heads do not divide
            continue
        factor = None if plan.days is None or days is None else days / plan.days
        changes.append(Change(what, factor, size / plan.memory.total))
    return sorted(changes, key=lambda change: -change.largest)


def _changes(plan: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    q = plan.question
    if q.tokens is not None and q.steps is None:
        for sign in (1, -1):
            yield f"tokens {sign * _STEP:+.0%}", {"tokens": int(q.tokens * (1 + sign * _STEP))}
    if q.tokens is not None:
        for mfu in (min(q.mfu * (1 + _STEP), 1.0), q.mfu * (1 - _STEP)):
            more = mfu / q.mfu - 1  # less than a tenth if the limit is closer
            if round(more, 2):
                yield f"MFU {more:+.0%}", {"mfu": mfu}
    same = {"global_batch": None, "steps": None, "tokens": q.tokens}
    yield _twice(q, same)
    if q.config is None:
        for sign in (1, -1):
            yield f"parameters {sign * _STEP:+.0%}", {"model": int(plan.parameters * (1 + sign * _STEP))}
        return
    assert q.batch and q.sequence
    yield f"batch × 2 ({2 * q.batch})", {"batch": 2 * q.batch, **same}
    yield f"sequence × 2 ({2 * q.sequence:,})", {"sequence": 2 * q.sequence, **same}
    yield f"sequence / 2 ({q.sequence // 2:,})", {"sequence": q.sequence // 2, **same}
    yield from _of_the_run(q)
    yield from _of_the_model(q.config)


def _twice(q: Question, same: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Twice the accelerators: in a layout, twice the ranks that share state, or the replicas if none do."""
    count = q.count * 2
    if q.layout is None:
        return f"accelerators × 2 ({count:,})", {"count": count, **same}
    axis = next((name for name in ("fsdp", "zero2", "zero1") if getattr(q.placed, name) > 1), "dp")
    size = 2 * getattr(q.placed, axis)
    layout = replace(q.placed, **{axis: size})
    return f"accelerators × 2 ({axis}={size})", {"count": count, "layout": layout, **same}


def _of_the_run(q: Question) -> Iterator[tuple[str, dict[str, Any]]]:
    other = "without" if q.checkpointing else "with"
    yield f"{other} checkpointing", {"checkpointing": not q.checkpointing}
    if q.chunks == 1:
        yield "loss in 8 chunks", {"chunks": 8}
    if q.passes == 1:
        yield "2 micro-batches a step", {"accumulate": 2, "global_batch": None}
    if q.count > 1 and q.layout is None:
        yield "replicated" if q.sharded else "sharded", {"sharded": not q.sharded}
    if q.optimizer == "adamw":
        yield "8-bit AdamW", {"optimizer": "adamw8bit"}
    if q.lora_rank:
        yield f"adapters' rank × 2 ({2 * q.lora_rank})", {"lora_rank": 2 * q.lora_rank}


def _of_the_model(config: TransformerConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in ("layers", "d_ff", "vocab"):
        value = getattr(config, name)
        for sign in (1, -1):
            changed = round(value * (1 + sign * _STEP))
            if changed != value:
                yield f"{name} {changed / value - 1:+.0%}", {"model": _with(config, name, changed)}


def _with(config: TransformerConfig, name: str, value: int) -> TransformerConfig:
    """Another size. Added layers are like the last ones: a pattern may begin with unique layers, such as dense ones."""
    changes: dict[str, Any] = {name: value}
    if name == "layers" and value > config.layers:
        patterns = {each: getattr(config, each) for each in PATTERNS}
        changes |= {
            each: (*pattern, *pattern[config.layers - value :]) for each, pattern in patterns.items() if pattern
        }
    return replace(config, **changes)


def sensitivity_text(plan: Answer) -> str:
    """The changes as a table: factors of days and of bytes."""
    rows = [("one change", "days", "bytes")]
    for change in sensitivity(plan):
        rows.append((change.what, "–" if change.days is None else f"× {change.days:.3f}", f"× {change.bytes:.3f}"))
    text = "what moves the answer, the most first\n" + as_text(rows, "<>>", gap=3)
    if plan.days is not None and plan.question.config:
        text += "\nthe MFU stays as given, so that recomputation and sending do not move the days"
    return text
