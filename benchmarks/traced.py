"""`python -m benchmarks.traced`: small models of many architectures, traced on fake tensors and really run, side by side.

Each row says how it was counted, and the differences: parameters, FLOPs of a forward pass and of a step, saved bytes, the
peak of both passes, the cache, prefill and decode. Some architectures alone: `python -m benchmarks.traced llama jamba`; with
`--precision autocast` or `--checkpointing` under another policy. Kernels of packages are left out on both sides, since a CPU
runs none.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.architectures import _TINY
from cs336kit.predict.checks import one_of
from cs336kit.predict.grid import as_text
from cs336plan.trace import Traced, build, counting, traced
from cs336plan.trace.kernels import kernels

BATCH, SEQUENCE = 2, 24
#: More are a row that is not small, and would fill the memory of the machine.
MOST_PARAMETERS = 30_000_000
#: Further sizes of small models, under the names of any family.
SIZES = _TINY | {
    "sliding_window": 12, "attention_chunk_size": 12, "window_size": 12, "n_group": 1, "topk_group": 1,
    "mamba_d_state": 16, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_chunk_size": 8,
    "mamba_dt_rank": 4, "state_size": 16, "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "chunk_size": 8,
    "mamba_ngroups": 1, "n_groups": 1, "mamba_d_ssm": 128, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "moe_shared_expert_intermediate_size": 48,
    "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "attention_hidden_size": 64, "vocab_size_per_layer_input": 128,
    "hidden_size_per_layer_input": 16, "global_head_dim": 16, "num_kv_shared_layers": 0,
}  # fmt: skip
#: model_type → fields of its own, by which every kind of its layers is there.
ROWS: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {}, "qwen2": {}, "qwen3": {}, "qwen3_moe": {}, "qwen2_moe": {}, "mixtral": {}, "olmoe": {},
    "qwen3_next": {"num_hidden_layers": 4}, "qwen3_5_text": {"num_hidden_layers": 4},
    "gemma": {}, "gemma2": {}, "gemma3_text": {"num_hidden_layers": 6}, "gemma4_text": {"num_hidden_layers": 6},
    "gpt2": {}, "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2}, "gpt_neox": {}, "gptj": {},
    "gpt_oss": {}, "opt": {}, "bloom": {}, "falcon": {}, "stablelm": {}, "starcoder2": {},
    "phi": {}, "phi3": {}, "phimoe": {}, "cohere": {}, "cohere2": {"num_hidden_layers": 4}, "nemotron": {},
    "deepseek_v2": {}, "deepseek_v3": {}, "deepseek_v32": {}, "glm4": {}, "glm4_moe": {}, "dots1": {},
    "granite": {}, "granitemoe": {},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "olmo2": {}, "olmo3": {"num_hidden_layers": 4}, "smollm3": {"num_hidden_layers": 4}, "seed_oss": {},
    "exaone4": {"num_hidden_layers": 4}, "ernie4_5": {}, "ernie4_5_moe": {}, "hunyuan_v1_dense": {}, "hunyuan_v1_moe": {},
    "minimax": {}, "minimax_m2": {}, "afmoe": {}, "apertus": {}, "arcee": {}, "diffllama": {},
    "mamba": {}, "mamba2": {"num_heads": 4, "head_dim": 32}, "falcon_mamba": {},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]}, "falcon_h1": {},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "nemotron_h": {"layers_block_type": ["mamba", "attention", "mlp", "moe"], "num_hidden_layers": 4},
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"], "linear_head_dim": 16,
        "linear_num_heads": 4, "num_experts_per_token": 2,
    },
    "olmo_hybrid": {}, "recurrent_gemma": {}, "rwkv": {},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "attention_hidden_size": 128},
}  # fmt: skip


def small(name: str) -> dict[str, Any]:
    """A config.json of this architecture with two layers, or what its row says, and sizes of a few dozen."""
    fields = CONFIG_MAPPING[name]().to_dict()
    values = {field: size for field, size in SIZES.items() if field in fields}
    values |= {field: 2 for field in ("num_hidden_layers", "n_layer", "n_layers") if field in fields}
    if "kv_lora_rank" in values:  # each head has its own keys there
        values["num_key_value_heads"] = values["num_attention_heads"]
        values.pop("head_dim", None)
    return {"model_type": name, **values, **ROWS.get(name, {})}


class Real(NamedTuple):
    """What a real module shows, with the instruments around passes that run."""

    parameters: int
    forward_flops: int
    training_flops: int
    saved_bytes: int
    passes_peak_bytes: int
    #: bytes of the cache of one sequence at lengths on both sides of the window
    cache: tuple[int, ...] | None
    prefill_flops: int | None
    decode_flops: int | None


#: A few tokens, the window of these models, more than it.
LENGTHS = (5, 12, 40)


def of(found: Traced) -> Real:
    """The same numbers of a traced model."""
    cache = None if found.cache is None else tuple(found.cache_bytes(n) for n in LENGTHS)
    return Real(
        found.parameters.total, found.forward_flops, found.training_flops, found.saved_bytes, found.passes_peak_bytes,
        cache, found.prefill_flops, found.decode_flops,
    )  # fmt: skip


def ran(values: dict[str, Any], *, inference: bool = True, **policy: Any) -> Real:
    """The real module, built and run."""
    config = build.configuration(build.read(values).values)
    precision = policy.get("precision", "bf16")
    model, _ = build.model_of(
        config,
        precision=precision,
        attention=policy.get("attention", "sdpa"),
        checkpointing=policy.get("checkpointing", False),
    )
    with kernels(model, fused=False):
        found = counting.passes(model, (), batch=BATCH, sequence=SEQUENCE, precision=precision)
        cache: tuple[int, ...] | None = None
        prefill = decode = None
        if inference:
            try:
                cache = tuple(counting.cache_bytes(model, precision, length) for length in LENGTHS)
            except ValueError:
                cache = None
            prefill, decode = counting.answering_flops(model, batch=BATCH, sequence=SEQUENCE, precision=precision)
    numbers = found.forward_flops, found.training_flops, found.saved_bytes, found.peak_bytes
    return Real(sum(p.numel() for p in model.parameters()), *numbers, cache, prefill, decode)


def compared(name: str, **policy: Any) -> tuple[Traced, Real, float]:
    """An architecture traced and really run, and the seconds that tracing took."""
    values, started = small(name), time.monotonic()
    found = traced(values, batch=BATCH, sequence=SEQUENCE, kernels=False, keep=False, **policy)
    seconds = time.monotonic() - started
    if found.parameters.total > MOST_PARAMETERS:
        raise ValueError(f"{name} has {found.parameters.total:,} parameters with these fields, which is not small")
    return found, ran(values, inference=found.cache is not None, **policy), seconds


def _cells(name: str, found: Traced, real: Real, seconds: float) -> tuple[str, ...]:
    cells = []
    for ours, theirs in zip(of(found), real, strict=True):
        cells.append("-" if theirs is None or ours is None else "exact" if ours == theirs else f"{ours} for {theirs}")
    return (name, "upper bound" if found.upper_bound else "exact", *cells, f"{seconds:.1f}")


HEADERS = (
    "architecture", "counted", "parameters", "forward", "training", "saved", "peak", "cache", "prefill", "decode", "seconds",
)  # fmt: skip


def named(
    parser: argparse.ArgumentParser,
    known_ones: Iterable[str],
    help: str,
    arguments: Sequence[str] | None,
    lacking: str | None = None,
) -> argparse.Namespace:
    """The options, with the architectures named as `names`, and transformers told to be quiet.

    For a name that is not known, or where something is `lacking`: a sentence, and exit code 2.
    """
    parser.add_argument("names", nargs="*", metavar="ARCHITECTURE", help=help)
    options = parser.parse_args(arguments)
    try:
        for name in options.names:
            one_of("architecture", name, known_ones)
        if lacking:
            raise ValueError(lacking)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each architecture named, all of them for none; returns 1 where one differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traced", description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--checkpointing", action="store_true")
    options = named(parser, CONFIG_MAPPING, "model_types of transformers; none: the table's", arguments)
    torch.manual_seed(0)
    rows, off = [HEADERS], 0
    for name in options.names or ROWS:
        try:
            found, real, seconds = compared(name, precision=options.precision, checkpointing=options.checkpointing)
        except ValueError as error:
            print(f"{name}: {error}", flush=True)
            off += 1
            continue
        rows.append(_cells(name, found, real, seconds))
        off += of(found) != real
        print(*rows[-1], sep="  ", flush=True)
    print(as_text(rows, "<<" + ">" * 9))
    print(f"{len(rows) - 1} architectures, {off} of them not as they ran")
    return int(off > 0)


if __name__ == "__main__":
    sys.exit(main())
