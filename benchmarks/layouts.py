"""Layouts: `python -m benchmarks.layouts [COUNT]` prints what ranks of `lm.parallelize` have and send, with how far predict is
off in brackets; then, of so many random configurations on random layouts, what is wrong; and it times a search.

Wrong is: parts that do not add up to the peak, or a part below 0; more ranks that share state at a higher peak than their
padding explains; a lower bound of a step above the upper one; fewer bytes between two stages than none; any error that is
not a sentence.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cs336kit.command.arguments import Parser, count
from cs336kit.predict import (
    MODELS,
    POLICIES,
    Layout,
    TransformerConfig,
    communication,
    find_layouts,
    peak_moments,
    program,
    step_peak,
    step_seconds,
)
from cs336kit.predict.engine.states import whole_elements
from cs336kit.predict.grid import as_text
from cs336kit.predict.layouts import STAGES, divisors

STATES = ("parameters", "optimizer state", "master weights")


@dataclass(frozen=True)
class Case:
    """A step of a model under a layout: what `step_peak` takes."""

    config: TransformerConfig
    layout: Layout
    step: dict[str, Any]
    optimizer: dict[str, Any]


def any_config(r: random.Random) -> TransformerConfig:
    """A small decoder, drawn over the choices that change what ranks do."""
    heads, head_dim = r.choice([2, 4, 8, 12]), r.choice([4, 8])
    experts = r.choice([0, 0, 4, 8])
    latent = r.random() < 0.1
    return TransformerConfig(
        layers=r.choice([1, 2, 4, 6, 8]), d_model=heads * head_dim, heads=heads, head_dim=head_dim,
        kv_heads=None if latent else r.choice([count for count in (1, 2, 4, heads) if heads % count == 0]),
        kv_latent=8 if latent else 0, rotary_dim=2 if latent else None,
        d_ff=r.choice([24, 48, 96, 40]), vocab=r.choice([13, 50, 256, 1000]), context=96, mlp=r.choice(["gelu", "swiglu"]),
        norm=r.choice(["layernorm", "rmsnorm"]), positions="rope" if latent else r.choice(["learned", "rope", "none"]),
        bias=r.choice(["all", "none", "qkv"]), tied_head=r.random() < 0.5, window=r.choice([None, None, 5, 30]),
        experts=experts, experts_per_token=r.choice([1, 2]) if experts else None,
        shared_d_ff=r.choice([0, 24]) if experts else 0, sparse_layers=r.choice([None, (True, False)]) if experts else None,
        dropout=r.choice([0.0, 0.0, 0.1]), norms_per_block=1 if r.random() < 0.2 else 2,
    )  # fmt: skip


def any_layout(r: random.Random, config: TransformerConfig, sequence: int) -> Layout:
    """Mostly one by which the model divides."""

    def size(of: int) -> int:
        return r.choice(divisors(of, 16)) if r.random() < 0.5 else 1

    shared = {r.choice(list(STAGES)): r.choice([1, 2, 3, 8, 100])} if r.random() < 0.7 else {}
    tp, pp = size(config.heads), size(config.layers)
    return Layout(
        **shared, dp=r.choice([1, 1, 2, 5]), tp=tp, pp=pp, ep=size(config.experts) if config.experts else 1,
        cp=size(sequence), sp=tp > 1 and r.random() < 0.5, microbatches=r.choice([None, 1, 3, 16]),
        schedule=r.choice(["1f1b", "gpipe"]) if pp > 1 else "1f1b",
    )  # fmt: skip


def any_case(r: random.Random) -> Case:
    """A configuration, a layout and every option of a step."""
    config, sequence = any_config(r), r.choice([1, 8, 24, 48, 96])
    step = {
        "batch": r.choice([1, 2, 3]), "sequence": sequence, "precision": r.choice(sorted(POLICIES)),
        "attention": r.choice(["eager", "sdpa"]), "checkpointing": r.random() < 0.4, "device": r.choice(["cpu", "cuda"]),
        "chunks": r.choice([1, 1, 3]), **({"lora_rank": 2} if r.random() < 0.15 else {}),
    }  # fmt: skip
    optimizer = {"optimizer": r.choice(["sgd", "adamw", "adafactor", "muon"]), "foreach": r.random() < 0.5}
    return Case(config, any_layout(r, config, sequence), step, optimizer)


def faults(case: Case) -> Iterator[str]:
    """What is wrong with the answers about a case; a ValueError for one that cannot be."""
    config, layout, step = case.config, case.layout, case.step
    peak = step_peak(config, layout=layout, **step, **case.optimizer)
    moments = peak_moments(config, layout=layout, **step, **case.optimizer)
    states = sum(peak[name] for name in STATES if name in peak)
    if peak.total - states != max(moments.values()):
        yield f"parts {peak.total - states} and peak {max(moments.values())}"
    listed = sum(
        count * wire.bytes
        for op, count in program(config, layout=layout, **step).operations()
        for wire in op.collectives
        if wire.when == "step"
    )
    once = communication(config, layout=replace(layout, microbatches=1), stage=0, **step).total
    twice = communication(config, layout=replace(layout, microbatches=2), stage=0, **step).total
    if 2 * once - twice != listed:
        yield f"{2 * once - twice} bytes are sent once in a step, and the list has {listed}"
    seconds = step_seconds(config, layout=layout, accelerator="h100-sxm", between_nodes=50e9, **step)
    if seconds.lower > seconds.upper * (1 + 1e-12):
        yield f"bounds {seconds.lower} and {seconds.upper}"
    for name in STAGES:
        if (size := getattr(layout, name)) > 1:
            for more in (size + 1, 2 * size):
                divided = replace(layout, **{name: more})
                fewer = step_peak(config, layout=divided, **step, **case.optimizer).total
                # At most two blocks and one block's gradients are whole at a time.
                pairs = zip(_whole_bytes(config, divided, step), _whole_bytes(config, layout, step), strict=True)
                padding = 3 * sum(max(0, after - before) for after, before in pairs)
                if fewer > peak.total + padding:
                    yield f"{name}={more} needs {fewer} and {name}={size} {peak.total}"
    more = step_peak(config, layout=replace(layout, dp=2 * layout.dp), **step, **case.optimizer)
    # The first replicas of shards hold what they have all-reduced beside the sums of earlier micro-batches.
    held_back = layout.zero_stage == 3 and layout.microbatches > 1 and layout.dp == 1
    if more.total < peak.total if held_back else more != peak:
        yield "more replicas change the peak"


def _whole_bytes(config: TransformerConfig, layout: Layout, step: dict[str, Any]) -> list[int]:
    """Bytes of each parameter of both ends of the pipeline with the padding of gathered ones, 4 for each element."""
    if layout.zero_stage < 3:
        return []
    ends = [program(config, layout=layout, stage=stage, **step) for stage in sorted({0, layout.pp - 1})]
    return [4 * leaf.count * whole_elements(walked, leaf) for walked in ends for leaf in walked.leaves]


def sweep(count: int, *, seed: int = 0) -> tuple[Counter[str], list[tuple[Case, str]]]:
    """(how many were answered and refused, what is wrong) of so many random cases."""
    r, seen, wrong = random.Random(seed), Counter[str](), []
    for _ in range(count):
        case = any_case(r)
        try:
            wrong += [(case, fault) for fault in faults(case)]
            seen["answered"] += 1
        except ValueError as error:
            seen["refused"] += 1
            if not str(error) or "\n" in str(error):
                wrong.append((case, f"not a sentence: {error!r}"))
        except Exception as error:
            wrong.append((case, f"{type(error).__name__}: {error}"))
    return seen, wrong


def main(arguments: list[str] | None = None) -> int:
    """Print the faults and the seconds of a search; 1 if something is wrong, 2 for a wrong question."""
    parser = Parser(description=__doc__)
    parser.add_argument(
        "COUNT", nargs="?", type=count, default=10_000, help="of random configurations (default: 10,000)"
    )
    cases = parser.parse_args(arguments).COUNT
    if cases < 0:
        parser.error(f"COUNT is {cases}: at least 0 configurations can be drawn")
    from benchmarks.ranks import table  # torch is for this part alone

    rows, differing = table()
    print(as_text(rows, "<<>" + ">" * (len(rows[0]) - 3), gap=2))
    print(f"{len(rows) - 1} ranks of {len({row[:2] for row in rows}) - 1} layouts", *differing, sep="\n")
    start = time.perf_counter()
    seen, wrong = sweep(cases)
    for case, fault in wrong:
        print(f"{fault}\n  {case}")
    taken = time.perf_counter() - start
    print(f"{cases:,} random configurations and layouts in {taken:,.0f} s: {dict(seen)}, {len(wrong)} wrong")
    start = time.perf_counter()
    found = find_layouts(
        MODELS["llama-3-70b"], count=1024, accelerator="h100-sxm", sequence=8192, between_nodes=50e9, checkpointing=True
    )
    print(f"layouts of llama-3-70b on 1,024 H100, found in {time.perf_counter() - start:.2f} s; the best: {found[0]}")
    return bool(wrong or differing)


if __name__ == "__main__":
    sys.exit(main())
