"""The two napkin questions in one answer: how long does a training run take, and does it fit?"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from cs336kit.predict.accounting import active_parameters
from cs336kit.predict.checks import finite_results
from cs336kit.predict.chip import allowance, check_room, chip, peak_of
from cs336kit.predict.engine.collectives import OF_EXPERTS
from cs336kit.predict.engine.operations import ELEMENT_BYTES
from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.napkin import delivered_flops, largest_model, six_nd
from cs336kit.predict.optimizers import optimizer_spec
from cs336kit.predict.precision import POLICIES
from cs336plan.training import memory as of
from cs336plan.training.advice import advice, layouts_may_fit
from cs336plan.training.answer import Plan as Plan
from cs336plan.training.changes import Advice as Advice
from cs336plan.training.question import Question as Question
from cs336plan.training.question import settled
from cs336plan.training.text import SEEN


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
    asides = [
        *_of_kernel(q, memory.total, given=question.attention is not None),
        *_notes(q),
        *_of_transformers(q, memory.total),
        why,
        *_of_attention(q, seen=days is not None or (seconds is not None and q.count > 1), bounded=seconds is not None),
    ]
    return Plan(
        question=q, chip=what, parameters=P, trainable=of.trainable(q) if q.config else None, flops=flops,
        six_nd_flops=napkin, recomputed=of.extra_flops(q) if q.config else 0.0, days=days, memory=memory,
        moment=of.moment(q), uneven=of.uneven(q), allowance=free, allowance_reason=reason, fits=fits,
        advice=advised, largest_model=_largest(q, room),
        flavour=of.flavour(q, what), notes=(*sourced, *filter(None, asides)),
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


def _largest(q: Question, room: int) -> int:
    """Parameters that fit in the optimizer's step."""
    return largest_model(
        q.count, memory_bytes=room, bytes_per_parameter=of.largest_bytes_per_parameter(q), sharded=q.sharded
    )


def _of_attention(q: Question, *, seen: bool, bounded: bool) -> Iterator[str]:
    """What the FLOPs count, if the answer shows any (or a step that does not say so) and a causal mask makes a difference."""
    saving = of.causal_saving(q) if seen else 0.0
    if saving >= SEEN:
        yield (
            "FLOPs count attention over all pairs of positions, as is usual for MFU; without the pairs that the mask "
            f"hides they are {100 * saving:.0f} % fewer" + (", as in the lower bound of a step" if bounded else "")
        )


def _of_kernel(q: Question, together: int, *, given: bool) -> Iterator[str]:
    """Which attention is counted where torch's fused function has no kernel for the heads, and what the other one needs."""
    why = "torch's fused attention has no kernel for windows, caps or sinks with these heads"
    if given and of.writes_scores(q):
        yield f"{why}, so scores for all pairs are counted; --attention flash_attention counts a kernel that knows them"
    if not given and q.attention == "flash_attention":
        written = of.memory(replace(q, attention="sdpa")).total
        yield (
            f"attention is that of a kernel that knows windows, caps and sinks (FlashAttention, FlexAttention), as such models "
            f"are run: {why} and writes the scores of all pairs, with which a step needs {written / 2**30:,.2f} GiB together in "
            f"place of {together / 2**30:,.2f} (--attention sdpa)"
        )


def _of_transformers(q: Question, ours: int) -> Iterator[str]:
    """Where transformers' modules need more than the course's, beyond the per cent by which their peak may be off."""
    if q.flavour != "course" or q.count > 1 or q.config is None:
        return
    try:
        theirs = of.memory(replace(q, flavour="transformers")).total
    except ValueError:  # not described, or not counted with adapters and the like
        return
    if theirs > (1 + SEEN) * ours:
        yield f"the modules of transformers need {theirs / 2**30:,.2f} GiB together, which --flavour transformers counts"


def _notes(q: Question) -> tuple[str, ...]:
    notes = []
    if optimizer_spec(q.optimizer).foreach is None:
        notes.append(f"the temporary tensors of a step of {q.optimizer} are not known here and left out")
    if q.optimizer == "muon":
        notes.append("muon takes the matrices of the blocks, and adamw everything else")
    if q.placed.dp > 1 and not q.placed.stage:
        notes.append(
            "replicas keep each gradient once, as DistributedDataParallel does with gradient_as_bucket_view=True; without it, "
            "its buckets take as much again"
        )
    if q.config and not q.config.kv_latent and q.placed.tp > q.config.kv_heads:
        copies = of.key_value_copies(q)
        size = copies * ELEMENT_BYTES[POLICIES[q.precision].weights] / 2**30
        notes.append(
            f"{q.placed.tp} ranks of tp divide {q.config.kv_heads} key/value heads, so that each head is on "
            f"{q.placed.tp // q.config.kv_heads} of them and counted on each: {copies:,} parameters of a tp group are copies, "
            f"{size:,.2f} GiB of weights, besides their gradients and states"
        )
    if q.placed.bubble > SEEN:
        # Source: Narayanan et al. 2021, section 2.2: the bubble takes 1/v of the time.
        p, m, v = q.placed.pp, q.placed.microbatches, 4
        notes.append(
            "the stages of the pipeline are not interleaved: with v groups of layers on each rank (Megatron's interleaved 1F1B) "
            f"the bubble is (p − 1)/(v·m + p − 1), {100 * (p - 1) / (v * m + p - 1):.1f} % for v = {v}, and stages send v times "
            "as much to each other"
        )
    if q.base and q.config:
        element = ELEMENT_BYTES[POLICIES[q.precision].weights]
        whole = sum(
            leaf.count * leaf.tensor.elements
            for leaf in of.leaves(q)
            if not leaf.tensor.needs_gradient
            and leaf.tensor.storage.bytes == ELEMENT_BYTES[leaf.tensor.dtype] * leaf.tensor.elements
        )
        kept = f", which peft's prepare_model_for_kbit_training keeps in fp32: {(4 - element) * whole / 2**30:,.2f} GiB more"
        notes.append(
            f"packed are the matrices of linear layers in the blocks, not embeddings, head and norms{kept * (element < 4)}"
        )
        if q.config.experts:
            # Source: transformers v5.23.0, MixtralExperts and its likes; integrations/bitsandbytes.py, replace_with_bnb_linear.
            packed = [leaf for leaf in of.leaves(q) if leaf.component in OF_EXPERTS and not leaf.tensor.needs_gradient]
            more = sum(leaf.count * (element * leaf.tensor.elements - leaf.tensor.storage.bytes) for leaf in packed)
            notes.append(
                "the experts are packed, too; transformers 5 holds those of a layer in one tensor, and bitsandbytes packs only "
                f"linear layers, so that with these two they take up to {more / 2**30:,.2f} GiB more"
            )
        notes.append("unpacking the frozen matrices for each product takes time that no number here has")
    return tuple(notes)
