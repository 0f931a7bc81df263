"""`python -m benchmarks.adapters`: adapters as `cs336plan.trace` counts them, beside a step that really runs under PEFT.

Small models of twelve architectures of transformers, for each the layers of queries and values or "all-linear", every
precision that is traced, with and without checkpointing: trained parameters, FLOPs of both passes, saved bytes and the peak of
both passes. PEFT's side is `peft.get_peft_model` as it comes: no dropout, adapters of a model in half precision in fp32,
checkpointing switched on before. This needs `pip install peft`. Some architectures alone: `python -m benchmarks.adapters gpt2`.

With peft 0.21.2, transformers 5.23.0 and torch 2.13.0, all 240 were exact.
"""

import argparse
import itertools
import sys
from importlib.metadata import version
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

from benchmarks.traced import BATCH, SEQUENCE, named, small
from cs336kit.predict.grid import as_text
from cs336plan.trace import build, counting, traced
from cs336plan.trace.anatomy import trained
from cs336plan.trace.kernels import kernels
from cs336plan.trace.tracing import PRECISIONS

#: Why PEFT cannot be compared with, None where it can.
LACKING = None if find_spec("peft") else "PEFT is not installed here: pip install peft"
#: model_type → the names of the layers of its queries and values (falcon and GPT-2 have one for queries, keys and values).
FAMILIES: dict[str, list[str]] = {
    "llama": ["q_proj", "v_proj"], "qwen2": ["q_proj", "v_proj"], "mixtral": ["q_proj", "v_proj"], "gpt2": ["c_attn"],
    "gemma3_text": ["q_proj", "v_proj"], "falcon": ["query_key_value"], "phi": ["q_proj", "v_proj"],
    "opt": ["q_proj", "v_proj"], "deepseek_v3": ["q_b_proj", "kv_b_proj"], "qwen3_next": ["q_proj", "v_proj", "in_proj_qkvz"],
    "nemotron_h": ["q_proj", "v_proj", "in_proj"], "lfm2": ["q_proj", "v_proj", "in_proj"],
}  # fmt: skip
#: What PEFT has no "all-linear" for: it refuses out_proj there.
EVERY = {"nemotron_h": ["q_proj", "k_proj", "v_proj", "o_proj", "in_proj", "up_proj", "down_proj"]}
RANK = 3


class Policy(NamedTuple):
    """Which layers have adapters, and how the model is trained."""

    targets: str
    precision: str
    checkpointing: bool


POLICIES = [
    Policy(*each) for each in itertools.product(("queries and values", "every layer"), PRECISIONS, (False, True))
]


class Row(NamedTuple):
    """One model under one policy: trained parameters with their types, training FLOPs, saved bytes, peak; traced, and run."""

    name: str
    policy: Policy
    traced: tuple[Any, ...]
    ran: tuple[Any, ...]

    def cells(self) -> tuple[str, ...]:
        targets, precision, checkpointing = self.policy
        ours, theirs = ((sum(prod(shape) for shape, _ in side[0]), *side[1:]) for side in (self.traced, self.ran))
        each = (f"{a:,}" if a == b else f"{a:,} for {b:,}" for a, b in zip(ours, theirs, strict=True))
        exact = "exact" if self.traced == self.ran else "differs"
        return (self.name, targets, precision, "checkpointed" if checkpointing else "", exact, *each)


HEADERS = ("model", "adapters", "precision", "", "", "trained", "training FLOPs", "saved", "peak")


def ran(values: dict[str, Any], targets: list[str] | str, precision: str, checkpointing: bool) -> tuple[Any, ...]:
    """What a real module shows under PEFT."""
    import peft

    model, _ = build.model_of(
        build.configuration(build.read(values).values),
        precision=precision,
        attention="sdpa",
        checkpointing=checkpointing,
    )
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=RANK, target_modules=targets))
    with kernels(model, fused=False):
        found = counting.passes(adapted, (), batch=BATCH, sequence=SEQUENCE, precision=precision)
    return tuple(sorted(trained(adapted))), found.training_flops, found.saved_bytes, found.peak_bytes


def row_of(name: str, policy: Policy) -> Row:
    """An architecture under a policy, traced and run."""
    values, (which, precision, checkpointing) = small(name), policy
    targets = EVERY.get(name, "all-linear") if which == "every layer" else FAMILIES[name]
    found = traced(
        values, batch=BATCH, sequence=SEQUENCE, precision=precision, checkpointing=checkpointing, lora_rank=RANK,
        lora_targets=targets, kernels=False, answering=False, keep=False,
    )  # fmt: skip
    ours = tuple(sorted(found.trained)), found.training_flops, found.saved_bytes, found.passes_peak_bytes
    return Row(name, policy, ours, ran(values, targets, precision, checkpointing))


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each of the architectures named, all of them for none; returns 1 where one differs, 2 without PEFT."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__.splitlines()[0])
    names = named(parser, FAMILIES, f"some of: {', '.join(FAMILIES)}", arguments, LACKING).names or FAMILIES
    rows = []
    for name in names:
        rows += (new := [row_of(name, each) for each in POLICIES])
        print(as_text([HEADERS, *(row.cells() for row in new)], "<<<<<>>>>"), flush=True)
    exact = sum(row.traced == row.ran for row in rows)
    versions = ", ".join(f"{package} {version(package)}" for package in ("peft", "transformers", "torch"))
    print(f"{exact} of {len(rows)} exact, with {versions}")
    return int(exact < len(rows))


if __name__ == "__main__":
    sys.exit(main())
