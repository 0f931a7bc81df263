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

#: model_type → the published model, its parameters in billions as its makers say, and fields other than the class's own.
FILES: dict[str, tuple[str, float | None, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3-Next-80B-A3B", 80, {}),
    "nemotron_h": ("(the class's defaults)", None, {}),
    "glm4_moe": ("GLM-4.5-Air", 106, {}),
    "minimax": ("(the class's defaults)", None, {}),
    "minimax_m2": ("MiniMax-M2", 230, {}),
    "gemma3n": ("(the class's defaults)", None, {}),
    "gemma4": ("(the class's defaults)", None, {}),
    "jamba": ("Jamba-v0.1", 52, {}),
    "bamba": ("Bamba-9B", 9.8, {"attn_layer_indices": [9, 18, 27]}),
    "falcon_h1": ("(the class's defaults)", None, {}),
    "lfm2": ("LFM2-2.6B", 2.6, {}),
    "lfm2_moe": ("LFM2-8B-A1B", 8.3, {}),
    "granitemoehybrid": ("(the class's defaults)", None, {}),
    "qwen3_vl": ("(the class's defaults)", None, {}),
    "qwen3_vl_moe": ("(the class's defaults)", None, {}),
    "qwen3_5": ("(the class's defaults)", None, {}),
    "qwen3_5_moe": ("(the class's defaults)", None, {}),
    "ernie4_5_moe": ("ERNIE-4.5-21B-A3B", 21, {}),
    "hunyuan_v1_moe": ("(the class's defaults)", None, {}),
    "kimi_linear": ("Kimi-Linear-48B-A3B", 48, {}),
    "deepseek_v32": ("DeepSeek-V3.2", 671, {}),
    "olmo_hybrid": ("(the class's defaults)", None, {}),
    "zamba2": ("(the class's defaults)", None, {}),
    "mamba2": ("mamba2-2.7b, as its class has it", None, {}),
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
