"""`python -m benchmarks.kept`: bytes kept for the backward pass, and the peak of both passes, traced beside steps that run.

Nineteen small models of as many architectures of transformers, 40 policies each: precision, attention, dropout, checkpointing.
Traced on fake tensors by `cs336plan.trace`; counted by the kit's instruments while the module runs with its own loss, without a
cache of keys and values. Some families alone: `python -m benchmarks.kept llama mixtral`.
"""

import argparse
import itertools
import sys
import time
from typing import Any, NamedTuple

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.traced import BATCH, SEQUENCE, named, ran, small
from cs336kit.predict.grid import as_text
from cs336plan.trace import traced
from cs336plan.trace.tracing import ATTENTIONS, PRECISIONS

FAMILIES = (
    "gpt2", "opt", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "mixtral", "olmo2", "stablelm",
    "bloom", "falcon", "gptj", "starcoder2", "granite", "cohere",
)  # fmt: skip


class Policy(NamedTuple):
    """How a model is trained."""

    precision: str
    attention: str
    dropout: float
    checkpointing: bool


POLICIES = [Policy(*each) for each in itertools.product(PRECISIONS, ATTENTIONS, (0.0, 0.1), (False, True))]


def config_of(name: str, dropout: float) -> dict[str, Any]:
    """A small config.json of this architecture with the same probability for each of its dropouts."""
    fields = CONFIG_MAPPING[name]().to_dict()
    drops = [field for field in fields if field.endswith(("dropout", "pdrop")) and field != "classifier_dropout"]
    return small(name) | dict.fromkeys(drops, dropout)


class Row(NamedTuple):
    """One model under one policy: bytes that are kept and bytes at the peak, traced and counted."""

    name: str
    policy: Policy
    traced: tuple[int, int]
    counted: tuple[int, int]

    def cells(self) -> tuple[str, ...]:
        precision, attention, dropout, checkpointing = self.policy
        how = (precision, attention, str(dropout), "checkpointed" if checkpointing else "")
        each = zip(self.traced, self.counted, strict=True)
        return (self.name, *how, *(cell for t, c in each for cell in (f"{t:,}", f"{c:,}", f"{t - c:,}")))


HEADERS = (
    "model", "precision", "attention", "dropout", "", "kept, traced", "counted", "difference", "peak, traced", "counted",
    "difference",
)  # fmt: skip
_ALIGNED = "<<<<<>>>>>>"


def row_of(name: str, policy: Policy) -> Row:
    """An architecture under a policy, traced and run."""
    values, options = config_of(name, policy.dropout), policy._asdict()
    del options["dropout"]
    found = traced(values, batch=BATCH, sequence=SEQUENCE, kernels=False, answering=False, keep=False, **options)
    real = ran(values, inference=False, **options)
    return Row(name, policy, (found.saved_bytes, found.passes_peak_bytes), (real.saved_bytes, real.passes_peak_bytes))


def main(arguments: list[str] | None = None) -> int:
    """Compare the families named, all of them for none: a table for each, and at the end what differs by name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kept", description=__doc__.splitlines()[0])
    names = named(parser, FAMILIES, f"some of: {', '.join(FAMILIES)}", arguments).names or FAMILIES
    started, rows = time.monotonic(), list[Row]()
    for place, name in enumerate(names, start=1):
        rows += (new := [row_of(name, policy) for policy in POLICIES])
        exact = sum(row.traced == row.counted for row in new)
        print(as_text([HEADERS, *(row.cells() for row in new)], _ALIGNED))
        seconds = time.monotonic() - started
        print(f"[{place} of {len(names)}] {name}: {exact} of {len(new)} exact, after {seconds:.0f} s\n", flush=True)
    off = [row for row in rows if row.traced != row.counted]
    print(f"{len(rows) - len(off)} of {len(rows)} exact, with transformers {transformers.__version__}")
    if off:
        print(as_text([HEADERS, *(row.cells() for row in off)], _ALIGNED))
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
