"""A change of a question, and what one or several of them cost: FLOPs, bytes that are sent, and time."""

from typing import Any, NamedTuple

from cs336kit.predict.hardware import Accelerator
from cs336kit.predict.links import link_speed
from cs336kit.predict.network import StepSeconds
from cs336kit.predict.precision import ELEMENT_BYTES, POLICIES
from cs336plan.training.memory import extra_flops, mfu_seconds, parameter_count, wire
from cs336plan.training.question import Question

#: Bytes of a step, and the share of it, that are too small to mention.
_LITTLE, _UNSEEN = 5e7, 5e-4


class Change(NamedTuple):
    """One change, before it is known what it costs."""

    #: what `training.words` calls it by
    kind: str
    #: fields of the question and their new values
    changes: dict[str, Any]
    #: whether it takes time of which nobody knows how long
    unknown: bool = False


class Cost(NamedTuple):
    """What changes take beyond the question's own run."""

    #: FLOPs per FLOP of the run
    flops: float
    #: bytes that one accelerator sends more in a step, and their seconds if nothing overlaps; None if a link's speed is not known
    sent: int
    seconds: float | None
    #: these seconds per second of a step at the MFU; None if not known
    share: float | None

    @property
    def seen(self) -> bool:
        """Whether what is sent is more by enough to mention."""
        return self.sent >= _LITTLE or (self.share or 0) >= _UNSEEN

    @property
    def fewer(self) -> bool:
        """Whether it is less by as much."""
        return self.sent <= -_LITTLE


def cost(q: Question, chip: Accelerator, changed: Question) -> Cost:
    """What a changed question costs beyond `q`."""
    extra = 0.0
    if q.config:
        before, after = (extra_flops(q, checkpointing=run.checkpointing, chunks=run.chunks) for run in (q, changed))
        extra = after - before
    return Cost(extra, *(_sent(q, chip, changed) if q.count > 1 else (0, 0.0, 0.0)))


def _sent(q: Question, chip: Accelerator, changed: Question) -> tuple[int, float | None, float | None]:
    """What a step of the changed question sends beyond that of `q`: bytes, seconds, and seconds per second of a step.

    Seconds of rings over their own links, with nothing overlapping; per second of a step at the MFU. None where the speed of
    a link is not known. Of a number of parameters, ZeRO 3 gathers the weights twice and scatters gradients once, and replicas
    reduce gradients: two ways of a ring.
    """
    if q.config is None:
        kind = POLICIES[q.precision]
        share = parameter_count(q) * (q.count - 1) / q.count * (changed.sharded and not q.sharded)
        more = int((2 * ELEMENT_BYTES[kind.products] - ELEMENT_BYTES[kind.gradients]) * share)
        link = link_speed(chip)
        return more, more / link if link and q.count <= q.per_node else None, None
    (after, then, _), (before, now, _) = wire(changed, chip), wire(q, chip)
    more = (after.total if after else 0) - (before.total if before else 0)
    step = mfu_seconds(q, chip)
    if then is None or now is None or not step:
        return more, None, None
    seconds = max(0.0, _sending(then, changed) - _sending(now, q))
    return more, seconds, seconds / step


def _sending(s: StepSeconds, q: Question) -> float:
    """Seconds of a step that are not computing, where nothing overlaps."""
    return s.upper - s.compute / (1 - q.placed.bubble)
