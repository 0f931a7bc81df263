"""`python -m benchmarks.sharded`: what a rank of torch's fully_shard keeps and has at the peak, traced and on real ranks.

Two processes on this machine, joined by gloo, shard small models of transformers layer by layer, as a user would, and run two
rounds of a step on random tokens while the kit's instruments watch. Beside it stands what `cs336plan.trace` counts of one rank
on fake tensors: bytes of its parameters, bytes that autograd keeps, the peak of both passes of the first round, and of both
rounds. Some architectures alone: `python -m benchmarks.sharded llama mixtral`.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.traced import ROWS, named, small
from cs336kit import measure
from cs336kit._torch import local
from cs336kit.predict.grid import as_text
from cs336plan.trace import build, traced
from cs336plan.trace.kernels import kernels

RANKS = 2
#: Dense, with windows, mixtures, state spaces, linear attention, one from before Llama.
FAMILIES = ("llama", "qwen3", "gemma", "gemma2", "gpt2", "mixtral", "qwen3_moe", "nemotron_h", "qwen3_next", "lfm2")
#: (batch, sequence, precision, checkpointing): activations or parameters are most of the peak.
POLICIES = (
    (2, 24, "bf16", False), (1, 2, "fp32", False), (2, 24, "fp32", True), (1, 2, "autocast", False), (2, 24, "autocast", True),
)  # fmt: skip


class Rank(NamedTuple):
    """Bytes of one rank."""

    parameters: int
    saved: int
    first_round: int
    both_rounds: int


def case(name: str) -> dict[str, Any]:
    """A small config.json whose layers are there more than twice where the family lets them."""
    values = small(name)
    if values.get("num_hidden_layers") == 2 and "layer_types" not in values:
        values["num_hidden_layers"] = 4
    return values | {"n_layer": 4} if "n_layer" in values else values


def on_ranks(questions: Sequence[tuple[dict[str, Any], tuple[int, int, str, bool]]]) -> list[Rank]:
    """What this rank has; runs on each rank of a process group."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return [_rank(values, *policy, mesh) for values, policy in questions]


def _rank(values: dict[str, Any], batch: int, sequence: int, precision: str, checkpointing: bool, mesh: Any) -> Rank:
    torch.manual_seed(0)
    config = build.configuration(build.read(values).values)
    model, _ = build.model_of(config, precision=precision, attention="sdpa", checkpointing=checkpointing)
    layers = build.layers_of(model, config)
    assert isinstance(layers, nn.ModuleList)
    mixed = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if precision == "autocast" else {}
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(**mixed))
    tokens = torch.randint(0, config.vocab_size, (batch, sequence))

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss  # type: ignore[no-any-return]

    with kernels(model, fused=False):
        loss().backward()
        model.zero_grad()
        losses: list[Tensor] = []
        saved = measure.saved_activation_bytes(lambda: losses.append(loss()) or losses[0]).total  # type: ignore[func-returns-value]
        losses.pop().backward()
        model.zero_grad()
        first = measure.peak_bytes(lambda: loss().backward())
        model.zero_grad()
        both = measure.peak_bytes(lambda: [loss().backward() for _ in range(2)])
    return Rank(sum(local(p).nbytes for p in model.parameters()), saved, first, both)


def counted(values: dict[str, Any], batch: int, sequence: int, precision: str, checkpointing: bool) -> Rank:
    """The same of a traced model."""
    how: dict[str, Any] = {"batch": batch, "sequence": sequence, "precision": precision, "checkpointing": checkpointing}
    how |= {"layout": f"fsdp={RANKS}", "kernels": False, "answering": False, "keep": False}
    once, twice = (traced(values, accumulating=again, **how) for again in (False, True))
    return Rank(once.parameter_bytes, once.saved_bytes, once.passes_peak_bytes, twice.passes_peak_bytes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each architecture and policy; 1 where one differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__.splitlines()[0])
    names = named(parser, ROWS, f"none: {', '.join(FAMILIES)}", arguments).names or FAMILIES
    questions = [(case(name), policy) for name in names for policy in POLICIES]
    real = measure.run_ranks(on_ranks, questions, ranks=RANKS, timeout=3000, device="cpu")[0]
    rows, off = [("architecture", "batch", "precision", "", *Rank._fields)], 0
    for (values, policy), ran in zip(questions, real, strict=True):
        batch, sequence, precision, checkpointing = policy
        found = counted(values, *policy)
        off += found != ran
        cells = [f"{r:,}" + f" ({f - r:+,})" * (f != r) for f, r in zip(found, ran, strict=True)]
        how = f"{batch} × {sequence}", precision, "checkpointed" * checkpointing
        rows.append((values["model_type"], *how, *cells))
    print(as_text(rows, "<<<<>>>>", gap=2))
    print(f"{len(rows) - 1} rows, {off} of them not as they ran")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
