"""The two napkin questions in one answer: how long does a training run take, and does it fit?"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.checks import finite_results
from cs336kit.predict.chip import allowance, check_room, chip, peak_of
from cs336kit.predict.engine.collectives import OF_EXPERTS
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.napkin import delivered_flops, largest_model, six_nd
from cs336kit.predict.optimizers import optimizer_spec
from cs336kit.predict.precision import ELEMENT_BYTES, POLICIES
from cs336kit.predict.transformer import TransformerConfig
from cs336plan.answers import Note, plain_values
from cs336plan.training import memory as of
from cs336plan.training.advice import advice, layouts_may_fit
from cs336plan.training.answer import SEEN, Answer
from cs336plan.training.question import Question, settled, writes_scores
from cs336plan.training.schema import ROWS
from cs336plan.training.text import text


class Plan(Answer):
    """The answer, as text and as plain values."""

    @finite_results()
    def __str__(self) -> str:
        """The answer as text, in GiB and days."""
        return text(self)

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON, under the names of `schema.KEYS`: counts are ints, bytes are bytes, days a float."""
        return plain_values(self, ROWS)


@finite_results()
def plan(question: Question) -> Plan:
    """Answer a question. Impossible or contradictory ones raise a ValueError that says what to change.

    - Time: the FLOPs of a run over count · peak · MFU, with the dense peak of the precision. The FLOPs of a configuration are
      exact (attention over all pairs, no recomputation, which MFU leaves out); those of a number of parameters are 6PN.
    - Seconds of a step: two bounds, which follow from `product_rate` and the links and do not depend on the MFU. They include
      matrix products, recomputation, the pipeline bubble and communication, and leave out what `predict.step_seconds` leaves
      out; the lower one also leaves out the pairs that the mask hides. `run_days` is what the tokens take in such steps.
    - Memory per accelerator: what is alive at the peak of a step, by bucket. That and the allowance (context and libraries,
      fragmentation, communication buffers) have to fit. The optimizer's temporary tensors are those of torch's foreach
      implementation, its default on CUDA, unless the question says `fused`. Experts are taken to share the tokens equally;
      the answer also says what the most unequal shares would need, unless ranks of ep divide the experts.
    """
    q = settled(question)
    P = of.parameter_count(q)
    what, sourced = _chip(q)
    free, reason = allowance(q.allowance, device=what, count=q.count)
    check_room(free, what.memory_bytes)
    room = what.memory_bytes - free.total
    flops, napkin, days = _time(q, P, peak_of(what))
    memory = of.memory(q)
    sent, seconds, why = of.wire(q, what)
    fits = memory.total <= room
    advised = () if fits else advice(q, what)
    each = of.largest_bytes_per_parameter(q)
    largest = largest_model(q.count, memory_bytes=room, bytes_per_parameter=each, sharded=q.sharded)
    notes = _notes(
        q, given=question.attention is not None, together=memory.total, why=why, bounded=seconds is not None,
        seen=days is not None or (seconds is not None and q.count > 1),
    )  # fmt: skip
    return Plan(
        question=q, chip=what, parameters=P, trainable=of.trainable(q) if q.config else None, flops=flops,
        six_nd_flops=napkin, recomputed=of.extra_flops(q) if q.config else 0.0, days=days, memory=memory,
        moment=of.moment(q), uneven=of.uneven(q), allowance=free, allowance_reason=reason, fits=fits,
        advice=advised, largest_model=largest,
        modules=of.modules(q, what), facts=(*sourced, *notes),
        layouts_may_fit=not fits and layouts_may_fit(q, advised), wire=sent,
        seconds=seconds, causal=of.causal_seconds(q, what) if seconds else None, link_bytes=of.link_bytes(q),
        accelerators_within_days=_enough(q, flops, peak_of(what)), mfu_seconds=of.mfu_seconds(q, what),
        asked=of.asked_of_products(q, what) if seconds else None,
    )  # fmt: skip


def days_and_bytes(question: Question) -> tuple[float | None, int]:
    """Two answers alone: the days of a run, None without tokens, and the bytes of one accelerator at the peak."""
    q = settled(question)
    return _time(q, of.parameter_count(q), peak_of(_chip(q)[0]))[2], of.memory(q).total


def _chip(q: Question) -> tuple[Accelerator, tuple[str, ...]]:
    return chip(
        q.accelerator, memory_bytes=q.memory_bytes, peak_flops_per_second=q.peak_flops_per_second, link=q.link,
        precision=POLICIES[q.precision].products, needs_peak=q.tokens is not None,
    )  # fmt: skip


def _time(q: Question, P: int, peak: float | None) -> tuple[int | None, int | None, float | None]:
    """FLOPs of the run, 6PN, and days; None without tokens."""
    if q.tokens is None:
        return None, None, None
    tokens = int(q.tokens)
    napkin = flops = int(six_nd(active_parameters(q.config).total if q.config else P, tokens=tokens))
    if q.config and q.sequence:
        flops = of.pass_flops(q).total * tokens // q.sequence
    assert peak is not None
    try:
        return flops, napkin, _days(q, flops, q.count, peak)
    except OverflowError:
        raise ValueError(f"{tokens:.3g} tokens take more FLOPs than can be divided into days: give fewer") from None


def _days(q: Question, flops: int, count: int, peak: float) -> float:
    """Days that `count` accelerators take at the MFU."""
    return flops / delivered_flops(count, peak_flops_per_second=peak, days=1, mfu=q.mfu)


def _enough(q: Question, flops: int | None, peak: float | None) -> int | None:
    """The fewest accelerators, in whole nodes where one is not enough, that take no more than `within_days`; None: not asked."""
    if q.within_days is None or flops is None or peak is None:
        return None
    count = ceil(_days(q, flops, 1, peak) / q.within_days)
    count -= count > 1 and _days(q, flops, count - 1, peak) <= q.within_days  # the quotient is rounded
    node = q.node_for(count)
    return count if count <= node else -(-count // node) * node


def _notes(q: Question, *, given: bool, together: int, why: Note | None, seen: bool, bounded: bool) -> Iterator[Note]:
    """What the numbers leave out or take for granted.

    `given`: whether the question named an attention; `why` there are no seconds of a step; `seen`: whether the answer shows
    FLOPs (or a step that does not say so).
    """
    yield from _of_kernel(q, together, given=given)
    yield from _of_the_run(q)
    if q.base and q.config:
        yield from _of_packing(q, q.config)
    if why is not None:
        yield why
    if seen and (hidden := of.causal_saving(q)) >= SEEN:
        yield Note("all pairs, bounded" if bounded else "all pairs", {"hidden_share": hidden})


def _of_kernel(q: Question, together: int, *, given: bool) -> Iterator[Note]:
    """Which attention is counted where torch's fused function has no kernel for the heads, and what the other one needs."""
    if given and writes_scores(q):
        yield Note("scores written")
    if not given and q.attention == "flash_attention":
        written = of.memory(replace(q, attention="sdpa")).total
        yield Note("kernel", {"written_bytes": written, "counted_bytes": together})


def _of_the_run(q: Question) -> Iterator[Note]:
    if optimizer_spec(q.optimizer).foreach is None:
        yield Note("temporary tensors", {"optimizer": q.optimizer})
    if q.optimizer == "muon":
        yield Note("muon")
    if q.placed.dp > 1 and not q.placed.zero_stage:
        yield Note("replicas")
    if q.config and not q.config.kv_latent and q.placed.tp > q.config.kv_heads:
        copies, heads, ranks = of.key_value_copies(q), q.config.kv_heads, q.placed.tp
        copied = copies * ELEMENT_BYTES[POLICIES[q.precision].weights]
        numbers = {"ranks": ranks, "heads": heads, "each": ranks // heads, "copies": copies, "copied_bytes": copied}
        yield Note("heads copied", numbers)
    if q.placed.bubble > SEEN:
        # Source: Narayanan et al. 2021, section 2.2: the bubble takes 1/v of the time.
        p, m, v = q.placed.pp, q.placed.microbatches, 4
        yield Note("interleaving", {"bubble_share": (p - 1) / (v * m + p - 1), "groups": v})


def _of_packing(q: Question, config: TransformerConfig) -> Iterator[Note]:
    """What else frozen weights may take beside packed ones."""
    element = ELEMENT_BYTES[POLICIES[q.precision].weights]
    frozen = [leaf for leaf in of.leaves(q) if not leaf.tensor.needs_gradient]
    if element < 4:
        whole = [
            leaf
            for leaf in frozen
            if leaf.tensor.storage.bytes == ELEMENT_BYTES[leaf.tensor.dtype] * leaf.tensor.elements
        ]
        more = (4 - element) * sum(leaf.count * leaf.tensor.elements for leaf in whole)
        yield Note("packed, others in fp32", {"more_bytes": more})
    else:
        yield Note("packed")
    if config.experts:
        # Source: transformers v5.23.0, MixtralExperts and its likes; integrations/bitsandbytes.py, replace_with_bnb_linear.
        packed = [leaf for leaf in frozen if leaf.component in OF_EXPERTS]
        more = sum(leaf.count * (element * leaf.tensor.elements - leaf.tensor.storage.bytes) for leaf in packed)
        yield Note("experts packed", {"more_bytes": more})
    yield Note("unpacking")
