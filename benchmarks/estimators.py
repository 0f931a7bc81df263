"""`python -m benchmarks.estimators`: error and time of this kit's estimates beside those of published estimators.

The truth is counted from real modules: parameters and FLOPs on meta tensors, saved activations on fake tensors, the
KV cache from its tensors. `llm-flops` and `llm-analysis` take part where they are installed; they are no dependencies.
"""

import contextlib
import dataclasses
import importlib
import logging
import subprocess
import sys
import timeit
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from cs336kit import lm, measure, predict
from cs336kit.command.arguments import Parser
from cs336kit.predict import MODELS, TransformerConfig
from cs336kit.predict.decoder.programs import forget
from cs336kit.teach.tables import Table

QUANTITIES = ("parameters", "forward FLOPs", "saved activations, bytes", "KV cache, bytes")
#: Models of the comparison, and the sequence length for each.
CASES = (
    ("gpt2", 1024),
    ("gpt2-xl", 1024),
    ("llama-2-7b", 4096),
    ("llama-3-8b", 8192),
    ("qwen2.5-7b", 4096),
    ("mistral-7b", 8192),
    ("mixtral-8x7b", 4096),
    ("falcon-7b", 2048),
    ("llama-3-70b", 8192),
)


def truth(config: TransformerConfig, sequence: int) -> dict[str, int]:
    """Each quantity at batch 1, counted. Activations: bf16 model, fused attention; a mixture of experts has none, since
    its routing needs data, which fake tensors lack."""
    with torch.device("meta"):
        model = lm.DecoderOnly(config, attention="eager").bfloat16()
        tokens = torch.zeros(1, sequence, dtype=torch.long)
    counted = {"parameters": sum(p.numel() for p in model.parameters())}
    if config.experts:
        # Routing cannot run without data: count a dense model with the MLPs that a token visits, and the router by hand.
        wide = dataclasses.replace(config, experts=0, experts_per_token=0, d_ff=config.experts_per_token * config.d_ff)
        router = 2 * sequence * config.layers * config.d_model * config.experts
        counted["forward FLOPs"] = truth(wide, sequence)["forward FLOPs"] + router
    else:
        with torch.no_grad():
            counted["forward FLOPs"] = measure.flops(lambda: model(tokens)).total
        with FakeTensorMode():
            fake = lm.DecoderOnly(config, attention="sdpa", dtype=torch.bfloat16)
            ids = torch.zeros(1, sequence, dtype=torch.long)
            loss = measure.saved_activation_bytes(
                lambda: F.cross_entropy(fake(ids).flatten(0, 1).float(), ids.flatten())
            )
        counted["saved activations, bytes"] = loss.total
    if not config.experts:
        with torch.no_grad():
            cache = lm.KVCache(config)
            model(tokens, cache=cache)
        counted["KV cache, bytes"] = sum(t.numel() * t.element_size() for t in cache.tensors())
    return counted


def _kit(config, sequence):
    return {
        "parameters": lambda: predict.parameters(config).total,
        "forward FLOPs": lambda: predict.forward_flops(config, batch=1, sequence=sequence).total,
        "saved activations, bytes": lambda: (
            predict.saved_activation_bytes(config, batch=1, sequence=sequence, precision="bf16", attention="sdpa").total
        ),
        "KV cache, bytes": lambda: predict.kv_cache_bytes(config, batch=1, sequence=sequence, precision="bf16"),
    }


def _llm_flops(config, sequence):
    llmflops = importlib.import_module("llmflops")
    memory, flops = (importlib.import_module(f"llmflops.{name}") for name in ("memory", "flops"))
    c = config
    theirs = llmflops.ModelConfig(
        name="model",
        hidden_size=c.d_model,
        num_layers=c.layers,
        num_attention_heads=c.heads,
        vocab_size=c.vocab,
        intermediate_size=c.d_ff,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=c.context,
        mlp_type="gated" if c.mlp == "swiglu" else "standard",
        num_norms_per_layer=c.norms_per_block,
        norm_type=c.norm,
        norm_bias=c.norm_bias,
        num_experts=c.experts or None,
        num_experts_per_tok=c.experts_per_token or 2,
        sliding_window=c.window,
        positional=c.positions,
        tie_word_embeddings=c.tied_head,
        attention_bias=c.bias != "none",
        mlp_bias=c.bias == "all",
    )
    return {
        "parameters": lambda: memory.parameter_count(theirs).total,
        "forward FLOPs": lambda: flops.forward_flops(theirs, 1, sequence, count_elementwise=False).total,
        "saved activations, bytes": lambda: memory.training_activation_bytes(
            theirs, 1, sequence, "bf16", gradient_checkpointing=False
        ),
        "KV cache, bytes": lambda: memory.kv_cache_bytes(theirs, 1, sequence, "bf16"),
    }


def _llm_analysis(config, sequence):
    analysis, configs = (importlib.import_module(f"llm_analysis.{name}") for name in ("analysis", "config"))
    c = config
    theirs = configs.ModelConfig(
        name="model",
        num_layers=c.layers,
        n_head=c.heads,
        hidden_dim=c.d_model,
        vocab_size=c.vocab,
        max_seq_len=c.context,
        num_key_value_heads=c.kv_heads,
        ffn_embed_dim=c.d_ff,
        expansion_ratio=c.d_ff / c.d_model,
        model_type="llama" if c.mlp == "swiglu" else "gpt2",
        moe_num_experts=c.experts or 1,
        moe_top_k=c.experts_per_token or 1,
    )
    analysis.logger.setLevel(logging.ERROR)
    gpu = configs.get_gpu_config_by_name("a100-sxm-80gb")
    estimator = analysis.LLMAnalysis(theirs, gpu, flops_efficiency=1, hbm_memory_efficiency=1)
    gated = c.mlp == "swiglu"
    return {
        "parameters": estimator.get_num_params_total,
        "forward FLOPs": lambda: estimator.get_num_flops_fwd_total(1, sequence),
        "saved activations, bytes": lambda: (
            c.layers
            * estimator.get_activation_memory_per_layer(1, sequence, is_inference=False, mlp_gated_linear_units=gated)
        ),
        "KV cache, bytes": lambda: c.layers * estimator.get_memory_kv_cache_per_layer(1, sequence),
    }


ESTIMATORS = {"cs336kit": _kit, "llm-flops": _llm_flops, "llm-analysis": _llm_analysis}
#: What each needs; a package may be there, and something that it imports not.
_NEEDED = {"cs336kit": "cs336kit", "llm-flops": "llmflops.memory", "llm-analysis": "llm_analysis.analysis"}


def installed() -> dict[str, Callable]:
    """The estimators that can be imported here, by name."""
    found = {}
    for name, make in ESTIMATORS.items():
        # A package that is there but does not work with the others installed here cannot take part either.
        with contextlib.suppress(Exception):
            importlib.import_module(_NEEDED[name])
            found[name] = make
    return found


def _estimate(function: Callable[[], float], counted: int) -> str:
    """Relative error and microseconds, or why there is none."""
    try:
        value = function()
        # Every answer from nothing: what the kit remembers between questions is forgotten before each. The best of a
        # hundred: other programs on the machine only ever add time.
        microseconds = min(timeit.repeat(function, setup=forget, number=1, repeat=100)) * 1e6
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:40]
    error = "exact" if value == counted else f"{value / counted - 1:+.2%}"
    return f"{error}, {microseconds:,.0f} µs"


def compare_estimators(cases=CASES) -> Table:
    """A row for each model and quantity: what is true, then error and time of each estimator that is installed."""
    makers = installed()
    rows = []
    for name, sequence in cases:
        config = MODELS[name]
        counted = truth(config, sequence)
        estimates = {estimator: make(config, sequence) for estimator, make in makers.items()}
        for quantity in QUANTITIES:
            if quantity in counted:
                row = [_estimate(estimates[estimator][quantity], counted[quantity]) for estimator in makers]
                rows.append((f"{name}, S = {sequence}", quantity, f"{counted[quantity]:,}", *row))
    return Table(("model", "quantity", "counted", *makers), tuple(rows), "<<>" + ">" * len(makers))


def import_milliseconds(module: str) -> float:
    """How long a new interpreter takes to import a module, the best of five."""
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    return 1e3 * min(float(run.stdout) for run in runs)


def main() -> int:
    """Print the table, what importing costs, and which published estimators are missing."""
    print(compare_estimators())
    modules = {name: "cs336kit.predict" if name == "cs336kit" else _NEEDED[name] for name in installed()}
    times = {name: import_milliseconds(module) for name, module in modules.items()}
    shown = (f"{name} {ms:,.0f} ms ({ms / times['cs336kit']:.1f}×)" for name, ms in times.items())
    print(f"\nimport: {', '.join(shown)}")
    missing = [name for name in ESTIMATORS if name not in installed()]
    if missing:
        print(f"\nnot installed here: {', '.join(missing)} (they are on PyPI; this kit does not depend on them)")
    return 0


if __name__ == "__main__":
    Parser(description=__doc__).parse_args()
    sys.exit(main())
