"""What changes, advice and notes are called: facts in, sentences out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cs336kit.predict.layouts import as_layout
from cs336plan.training.costs import Change, Cost
from cs336plan.training.question import Question

#: Kind of change → its words, and what it costs besides FLOPs and what is sent. In braces stand fields with their new values;
#: {sharded}, {fused} and {global_batch} are what to leave out of the command.
_CHANGES = {
    "fused attention": ("fused attention (--attention {attention})",
        "less time: scores never leave the chip, though the backward pass computes them again"),
    "kernel": ("a kernel that knows windows, caps and sinks (--attention {attention})",
        "less time: scores never leave the chip"),
    "sequence parallel": ("sequence parallelism (--layout {layout})", ""),
    "zero1": ("sharing optimizer state over the replicas (--layout {layout}{sharded})", ""),
    "zero2": ("sharing optimizer state and gradients over the replicas (--layout {layout}{sharded})", ""),
    "fsdp": ("sharding over {count:,} accelerators (--layout {layout})", "parameters are gathered for each micro-batch"),
    "fused optimizer": ("a fused optimizer (--fused)", "no more FLOPs, and one kernel for the whole step"),
    "micro-batches": (
        "the same batch in more micro-batches (--batch {batch} --accumulate {accumulate} --layout {layout})",
        "no more FLOPs; smaller matrix products may run less well"),
    "chunks": ("the loss in {chunks} chunks (--chunks {chunks})", ""),
    "checkpointing": ("activation checkpointing (--checkpointing)", ""),
    "batch": ("a batch of {batch} per accelerator (--batch {batch}{global_batch})",
        "another global batch, and smaller matrix products may run less well"),
    "packed base": ("a frozen base of 4 bits (--qlora {lora_rank} in place of --lora {lora_rank})",
        "rounded weights, unpacked for every product"),
    "adamw8bit": ("an optimizer with states of 8 bits (--optimizer adamw8bit{fused})", "rounded states"),
    "sharded": ("sharding over the {count} accelerators (leave --replicated out)", ""),
    "tensor parallel": ("tensor parallel inside a node (--layout {layout} --accumulate {accumulate}{sharded})", ""),
}  # fmt: skip
#: The option of a new layout in the words of a change, with what joins it to them.
_OF_LAYOUT = re.compile(r" \(--layout \{layout\}\)| --layout \{layout\}|--layout \{layout\}, ")


def change(q: Question, chosen: Sequence[Change], changes: Mapping[str, Any]) -> str:
    """All changes of an advice in words, with the options of the command."""
    words = _changes(q, chosen, changes)
    if "count" not in changes:
        return " and ".join(words)
    return ", ".join([*words, _more(q, chosen, changes)]) if words else f"sharding over {_more(q, chosen, changes)}"


def _changes(q: Question, chosen: Sequence[Change], changes: Mapping[str, Any]) -> list[str]:
    """Each change in words. All layouts are one option, which the last of them gives, or what comes behind them."""
    words, placed = [], "count" in changes
    without = "" if q.global_batch is None else f"{_accumulate(q)}, without --global-batch"
    values: dict[str, Any] = {
        **vars(q), **changes, "count": q.count, "layout": "{layout}", "fused": ", without --fused" * q.fused,
        "sharded": ", without --replicated" * (q.layout is None and not q.sharded), "global_batch": without,
    }  # fmt: skip
    for each in reversed(chosen):
        text = _CHANGES[each.kind][0].format(**values)
        if placed or "layout" not in each.changes:
            text = _OF_LAYOUT.sub("", text)
        placed = placed or "{layout}" in text
        words.append(text.replace("{layout}", str(changes.get("layout"))))
    return words[::-1]


def _more(q: Question, chosen: Sequence[Change], changes: Mapping[str, Any]) -> str:
    """More accelerators and the options that give them, which keep the global batch where they can."""
    after = replace(q, **changes)
    other = q.global_batch is not None and after.global_batch is None
    option = f"--count {after.count}" if q.layout is None else f"--layout {after.layout}"
    if q.global_batch is not None and not any("accumulate" in each.changes for each in chosen):
        option += _accumulate(q) if other else f" --accumulate {after.passes}" * (after.passes != q.passes)
    out = [*["--replicated"] * (q.layout is None and not q.sharded), *["--global-batch"] * other]
    without = f", without {' and '.join(out)}" if out else ""
    return f"{after.count:,} accelerators ({option}{without})"


def _accumulate(q: Question) -> str:
    """The option for as many micro-batches, unless they are those of a step by default."""
    usual = 1 if q.layout is None else as_layout(q.layout).pp
    return "" if q.passes == usual else f" --accumulate {q.passes}"


def costs(q: Question, chosen: Sequence[Change], changes: Mapping[str, Any], cost: Cost | None) -> str:
    """What an advice costs: FLOPs, what is sent, and what takes time of which nobody knows how long."""
    batch = replace(q, **changes).step_sequences
    more = f"more accelerators{', and another global batch' * (batch != q.step_sequences)}"
    if cost is None:
        return f"{changes['count'] // q.count} times the {more.removeprefix('more ')}"
    said = [_CHANGES[each.kind][1] for each in chosen]
    alone = said[0] if len(chosen) == 1 else ""
    words = alone or (f"{100 * cost.flops:.1f} % more FLOPs" if cost.flops else "no more FLOPs")
    if cost.seen:
        words += ("; " if alone else ", ") + _on_the_wire(cost)
    elif any(each.changes.keys() & {"layout", "sharded"} for each in chosen):
        words += f", and {'fewer' if cost.fewer else 'as many'} bytes on the wire"
    if len(chosen) > 1:
        words += "".join(f"; {text}" for each, text in zip(chosen, said, strict=True) if each.unknown)
    return f"{words}, and {more}" if "count" in changes else "together " * (len(chosen) > 1) + words


def _on_the_wire(cost: Cost) -> str:
    words = f"{cost.sent / 1e9:,.1f} GB more on the wire for each step and accelerator"
    if cost.seconds is None:
        return f"{words}; how long depends on links of which no speed is known"
    if not cost.seconds:
        return f"{words}, in no more time"
    words += f", {cost.seconds:,.2f} s if nothing overlaps"
    return words + ("" if cost.share is None else f": up to {100 * cost.share:,.1f} % of a step")


def other_layouts(q: Question) -> str:
    """Where to look for other ways to divide the model over the same accelerators."""
    checkpointing = "" if q.checkpointing else "--checkpointing "
    instead = "--find" if q.layout is None else f"--count {q.count} --find in place of --layout"
    if q.count > q.per_node and q.between_nodes is None:
        instead += " --between-nodes RATE"
    other = "" if q.layout is None else "other "
    return (
        f"{other}layouts that divide a sequence or a layer may fit on these {q.count:,} accelerators: "
        f"{checkpointing}{instead}"
    )


_NO_KERNEL = "torch's fused attention has no kernel for windows, caps or sinks with these heads"
_PAIRS = (
    "FLOPs count attention over all pairs of positions, as is usual for MFU; without the pairs that the mask hides they are "
    "{hidden_share:.0f} % fewer"
)
_PACKED = "packed are the matrices of linear layers in the blocks, not embeddings, head and norms"
#: Kind of note → its sentence (see `answers.sentences`).
NOTES = {
    "scores written": f"{_NO_KERNEL}, so scores for all pairs are counted; --attention flash_attention counts a kernel that "
        "knows them",
    "kernel": "attention is that of a kernel that knows windows, caps and sinks (FlashAttention, FlexAttention), as such models "
        f"are run: {_NO_KERNEL} and writes the scores of all pairs, with which a step needs {{written_bytes}} GiB together in "
        "place of {counted_bytes} (--attention sdpa)",
    "all pairs": _PAIRS,
    "all pairs, bounded": f"{_PAIRS}, as in the lower bound of a step",
    "links unknown": "seconds of a step need the speed of the links inside a node, which is not known of {title}: give --link "
        "32GB/s or what yours is, or take another accelerator",
    "network unknown": "seconds of a step need the speed between nodes, which no table has: give --between-nodes 400Gb/s or what "
        "yours is",
    "temporary tensors": "the temporary tensors of a step of {optimizer} are not known here and left out",
    "muon": "muon takes the matrices of the blocks, and adamw everything else",
    "replicas": "replicas keep each gradient once, as DistributedDataParallel does with gradient_as_bucket_view=True; without "
        "it, its buckets take as much again",
    "heads copied": "{ranks} ranks of tp divide {heads} key/value heads, so that each head is on {each} of them and counted on "
        "each: {copies:,} parameters of a tp group are copies, {copied_bytes} GiB of weights, besides their gradients and states",
    "interleaving": "the stages of the pipeline are not interleaved: with v groups of layers on each rank (Megatron's "
        "interleaved 1F1B) the bubble is (p − 1)/(v·m + p − 1), {bubble_share:.1f} % for v = {groups}, and stages send v times "
        "as much to each other",
    "packed": _PACKED,
    "packed, others in fp32": f"{_PACKED}, which peft's prepare_model_for_kbit_training keeps in fp32: {{more_bytes}} GiB more",
    "experts packed": "the experts are packed, too; transformers 5 holds those of a layer in one tensor, and bitsandbytes packs "
        "only linear layers, so that with these two they take up to {more_bytes} GiB more",
    "unpacking": "unpacking the frozen matrices for each product takes time that no number here has",
    "batch of layouts": "the layouts are for a global batch of {asked:,} sequences; {count:,} accelerators that each work on "
        "{batch} cannot make it, so that everything else is for one of {made:,}",
}  # fmt: skip
