"""`python -m benchmarks.traced_files`: files of 2025 and 2026 at their full size, planned and served by tracing.

Prints the name, how it was counted, the parameters beside the published number, the seconds of a plan and of an answer about
serving, and the most memory that the process has had. Sizes are what transformers' own configuration class has by default,
which is the first published model of most families, or the fields below, as their config.json has them. Each is answered in
a process of its own, without kept results. Some alone: `python -m benchmarks.traced_files lfm2 qwen3_next`.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from cs336kit.command import main
from cs336kit.predict.grid import as_text
from cs336plan.trace.store import VARIABLE

#: model_type → the published model, its parameters in billions as its makers say, and where the class has others, its fields.
FILES: dict[str, tuple[str, float | None, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3-Next-80B-A3B", 80, {}),
    "qwen3_5": ("Qwen3.5-9B", 9, {}),
    "qwen3_5_moe": ("Qwen3.5-35B-A3B", 35, {}),
    "qwen3_vl": ("Qwen3-VL-8B, its text model", 8.2, {"vision_config": {}, "tie_word_embeddings": False, "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    }}),
    "qwen3_vl_moe": ("Qwen3-VL-30B-A3B, its text model", 30.5, {
        "vision_config": {}, "tie_word_embeddings": False, "text_config": {
        "model_type": "qwen3_vl_moe_text", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
        "num_experts_per_tok": 8, "vocab_size": 151936,
    }}),
    "nemotron_h": ("Nemotron 3 Nano 30B-A3B", 31.6, {
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_hidden_layers": 52,
        "hidden_size": 2688, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
        "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 1856,
        "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "vocab_size": 131072,
    }),
    "glm4_moe": ("GLM-4.5-Air (106 with its MTP layer)", 106, {}),
    "glm_moe_dsa": ("GLM-5", 744, {}),
    "minimax": ("MiniMax-Text-01", 456, {
        "hidden_size": 6144, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 9216, "num_local_experts": 32, "num_experts_per_tok": 2, "vocab_size": 200064,
        "layer_types": (["linear_attention"] * 7 + ["full_attention"]) * 10,
    }),
    "minimax_m2": ("MiniMax-M2", 230, {}),
    "gemma3n_text": ("(the class's defaults)", None, {}),
    "gemma4": ("Gemma 4 E2B, its text model", 5.1, {}),
    "jamba": ("Jamba-v0.1", 52, {}),
    "bamba": ("Bamba-9B", 9.8, {"attn_layer_indices": [9, 18, 27]}),
    "falcon_h1": ("(the class's defaults)", None, {}),
    "lfm2": ("LFM2-1.2B", 1.17, {
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 12288, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    }),
    "lfm2_moe": ("LFM2-8B-A1B", 8.3, {
        "num_hidden_layers": 24, "layer_types": [
            "full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)
        ],
    }),
    "granitemoehybrid": ("Granite 4.0 H Tiny", 6.9, {
        "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
        "num_local_experts": 64, "num_experts_per_tok": 6, "intermediate_size": 512, "shared_intermediate_size": 1024,
        "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "vocab_size": 100352, "tie_word_embeddings": True,
        "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    }),
    "ernie4_5_moe": ("ERNIE-4.5-21B-A3B", 21.8, {}),
    "hunyuan_v1_moe": ("Hunyuan-A13B", 80.4, {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 3072, "num_experts": 64, "moe_topk": 8, "vocab_size": 128167, "tie_word_embeddings": True,
    }),
    "kimi_linear": ("Kimi-Linear-48B-A3B", 49.1, {}),
    "deepseek_v32": ("DeepSeek-V3.2", 671, {}),
    "olmo_hybrid": ("Olmo-Hybrid-7B", 7.4, {}),
    "zamba2": ("(the class's defaults)", None, {}),
    "mamba2": ("Mamba-Codestral-7B", 7.3, {}),
}  # fmt: skip


def answered(name: str) -> dict[str, Any]:
    """Both answers to one file in this process: parameters, how counted, seconds, the most memory of the process in GB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"model_type": name, **FILES[name][2]}))
        found: dict[str, Any] = {}
        for command in ("plan", "serve"):
            out, started = StringIO(), time.monotonic()
            with redirect_stdout(out):
                main([command, str(path), "--modules", "transformers", "--json"])
            found[command] = json.loads(out.getvalue()) | {"seconds": time.monotonic() - started}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {**found, "gigabytes": most}


def row(name: str) -> tuple[str, ...]:
    """One line of the table; what a process cannot answer is said in its place."""
    environment = {**os.environ, VARIABLE: ""}
    words = [sys.executable, "-m", "benchmarks.traced_files", "--one", name]
    ran = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    title, published, _ = FILES[name]
    if ran.returncode:
        return name, title, (ran.stderr.strip().splitlines() or ["ended"])[-1][:60], "", "", "", "", "", ""
    found = json.loads(ran.stdout)
    plan, serve = found["plan"], found["serve"]
    if error := plan.get("error") or serve.get("error"):
        return name, title, error.partition(": ")[2][:60], "", "", "", "", "", ""
    how = "whole" if plan["traced"]["whole"] else "by periods"
    how += ", upper bound" * plan["traced"]["upper_bound"]
    state = serve["traced"]["state_bytes"]
    return (
        name, title, how, f"{plan['parameters'] / 1e9:.2f}", "" if published is None else f"{published:g}",
        f"{serve['cache_bytes_per_token']:,}" if state is not None else "not counted",
        f"{plan['seconds']:.0f}", f"{serve['seconds']:.0f}", f"{found['gigabytes']:.1f}",
    )  # fmt: skip


def table(names: list[str]) -> None:
    """Print a line for each as it is done, and the table at the end."""
    head = ("model_type", "model", "counted", "10⁹ parameters", "published", "cache a token", "plan s", "serve s", "GB")
    rows = [head]
    for name in names:
        rows.append(row(name))
        print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print(as_text(rows, "<<<>>>>>>"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(answered(sys.argv[2])))
    else:
        table(sys.argv[1:] or list(FILES))
