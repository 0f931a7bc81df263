"""`python -m benchmarks.frozen > before.jsonl`: 400 random questions and their answers, to see what a change moved.

Run it before a change and after it, and compare the two files with `diff`: where a change is meant to leave the numbers alone,
nothing differs. `--seed 1` asks others. Questions go through what a user calls: `cs336plan.plan`, `cs336plan.serve` and the
command `cs336kit`. An answer is its JSON and its text, a refusal its sentence. Each question has a seed of its own, so that one
kind more moves no other.
"""

import contextlib
import hashlib
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import cs336plan
from cs336kit.command import main as command
from cs336kit.command.arguments import Parser
from cs336kit.predict import TransformerConfig
from cs336plan import Question, ServingQuestion

#: Written out, so that a model more in the kit changes no question.
MODELS = (
    "gpt2", "gpt2-xl", "gpt3-175b", "llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "llama-3.2-1b",
    "smollm2-135m", "mistral-7b", "mixtral-8x7b", "mixtral-8x22b", "qwen2.5-7b", "qwen2.5-72b", "gemma-7b", "falcon-7b",
    "falcon-40b", "pythia-6.9b", "starcoder-15b", "palm-540b",
)  # fmt: skip
#: Names that the command reads besides: models whose layers differ, whose experts are many, or whose keys are latent.
HUB = (
    "llama-4-scout", "olmo-3-32b", "gpt-oss-20b", "gemma-3-12b", "gemma-2-9b", "deepseek-v2-lite", "deepseek-v3", "qwen3-30b-a3b",
    "smollm3-3b", "no-such-model",
)  # fmt: skip
CHIPS = (
    "h100-sxm",
    "h100-sxm",
    "a100-sxm-80gb",
    "a100-sxm-40gb",
    "b200-sxm",
    "mi300x",
    "rtx-4090",
    "l4",
    "tpu-v5p",
    "h1000",
)
POLICIES = ("mixed", "mixed", "bf16", "fp32", "autocast", "mixed-fp32-gradients", "bf16-fp32-moments", "fp16")
OPTIMIZERS = ("adamw", "adamw", "adamw", "sgd", "momentum", "adam", "adafactor", "muon", "lion", "adamw8bit", "rmsprop")
LAYOUTS = (
    "fsdp={}", "fsdp={}", "dp=2,fsdp={}", "zero1={}", "zero2={}", "dp={}", "fsdp={},tp=2", "zero1={},tp=4,sp=true",
    "pp=2,zero1={}", "pp=4,dp={},microbatches=8", "fsdp={},cp=2", "fsdp={},ep=2", "tp={}", "pp=2,tp=2,dp={},schedule=gpipe",
    "zero1={},fsdp=2",
)  # fmt: skip
#: What a number of parameters can be asked.
OF_A_NUMBER = (
    "accelerator", "count", "sharded", "tokens", "precision", "optimizer", "fused", "memory_bytes", "allowance", "price_per_hour",
    "within_days", "between_nodes",
)  # fmt: skip


def _some(random: Random, options: dict[str, tuple[float, Callable[[], Any]]]) -> dict[str, Any]:
    """Of each option, with its probability, a value."""
    return {name: draw() for name, (chance, draw) in options.items() if random.random() < chance}


def _config(random: Random) -> TransformerConfig:
    """A model of no name: sizes that divide and sizes that do not, and layers that differ in a pattern or without one."""
    layers, heads = random.choice((1, 2, 3, 5, 8, 12, 26)), random.choice((4, 8, 12))

    def pattern() -> tuple[bool, ...]:
        period = random.randint(2, 6)
        few = [random.random() < 0.5 for _ in range(period)]
        few[0] |= not any(few[:layers])  # a pattern of no layer is refused
        return tuple(few[i % period] for i in range(layers))

    positions = random.choice(("rope", "rope", "learned"))
    options: dict[str, tuple[float, Callable[[], Any]]] = {
        "kv_heads": (0.6, lambda: random.choice((1, 2, 4))),
        "tied_head": (0.5, lambda: False),
        "norm_placement": (0.3, lambda: random.choice(("post", "sandwich", "residual"))),
        "qk_norm": (0.3, lambda: random.choice(("head", "width"))),
        "dropout": (0.1, lambda: 0.1),
        "bias": (0.5, lambda: "none"),
    }
    fields = _some(random, options)
    if random.random() < 0.5:
        fields |= {"window": 128, "window_layers": random.choice((None, pattern()))}
    if random.random() < 0.4:
        fields |= {
            "experts": 8,
            "experts_per_token": 2,
            "dense_d_ff": 1500,
            "sparse_layers": random.choice((None, pattern())),
        }
    if positions == "rope" and random.random() < 0.3:
        fields["rope_layers"] = pattern()
    return TransformerConfig(
        layers=layers, d_model=heads * random.choice((64, 128)), heads=heads, vocab=random.choice((1000, 32000, 50257)),
        context=random.choice((512, 2048)), mlp="swiglu", d_ff=random.choice((1024, 2736)), norm="rmsnorm", positions=positions,
        **fields,
    )  # fmt: skip


def training(random: Random) -> dict[str, Any]:
    """The answer to a random question about a training run."""
    ranks = 2 ** random.randint(0, 6)
    layout = random.choice(LAYOUTS).format(ranks)
    batch, passes = 2 ** random.randint(0, 5), 2 ** random.randint(0, 3)
    options: dict[str, tuple[float, Callable[[], Any]]] = {
        "accelerator": (0.6, lambda: random.choice(CHIPS)),
        "count": (0.3, lambda: ranks),
        "layout": (0.5, lambda: layout),
        "sharded": (0.2, lambda: False),
        "batch": (0.6, lambda: batch),
        "sequence": (0.5, lambda: random.choice((128, 500, 512, 1024, 2048, 4096, 16384))),
        "tokens": (0.5, lambda: random.choice((1e9, 15e12))),
        "steps": (0.1, lambda: 1000),
        "global_batch": (0.1, lambda: batch * passes * ranks),
        "accumulate": (0.2, lambda: passes),
        "precision": (0.6, lambda: random.choice(POLICIES)),
        "optimizer": (0.5, lambda: random.choice(OPTIMIZERS)),
        "attention": (0.3, lambda: random.choice(("eager", "sdpa", "flash_attention"))),
        "checkpointing": (0.3, lambda: True),
        "chunks": (0.15, lambda: random.choice((2, 8))),
        "fused": (0.2, lambda: True),
        "lora_rank": (0.15, lambda: 16),
        "base": (0.1, lambda: random.choice(("nf4", "int8"))),
        "frozen": (0.08, lambda: ("token embedding",)),
        "device": (0.1, lambda: "cpu"),
        "memory_bytes": (0.2, lambda: random.choice((1e9, 16e9, 200e9))),
        "allowance": (0.1, lambda: random.choice((0, 0.08, 2**31))),
        "price_per_hour": (0.1, lambda: 2.5),
        "within_days": (0.1, lambda: 30),
        "between_nodes": (0.1, lambda: 25e9),
    }
    asked = _some(random, options)
    model: Any = random.choice((random.choice(MODELS), random.choice(MODELS), _config(random)))
    if random.random() < 0.1:  # a number of parameters is not asked about activations, with a few exceptions
        model = random.choice((8e9, 70_553_706_496))
        asked = {name: value for name, value in asked.items() if name in OF_A_NUMBER or random.random() < 0.05}
    elif random.random() < 0.8:  # nor are options given that contradict each other
        contradicted = {
            "layout": "count sharded",
            "lora_rank": "frozen",
            "fused": "optimizer",
            "global_batch": "accumulate",
        }
        asked = {
            n: v for n, v in asked.items() if not any(n in contradicted[o].split() for o in asked if o in contradicted)
        }
        if "lora_rank" not in asked:
            asked.pop("base", None)
        if "tokens" not in asked:
            asked = {name: value for name, value in asked.items() if name not in ("price_per_hour", "within_days")}
    return {"asked": {"model": str(model), **asked}, **_answer(lambda: cs336plan.plan(Question(model, **asked)))}


def serving(random: Random) -> dict[str, Any]:
    """The answer to a random question about serving a model."""
    options: dict[str, tuple[float, Callable[[], Any]]] = {
        "accelerator": (0.6, lambda: random.choice(CHIPS)),
        "count": (0.5, lambda: 2 ** random.randint(0, 4)),
        "prompt": (0.5, lambda: random.choice((1, 100, 400, 2000, 30000))),
        "output": (0.5, lambda: random.choice((1, 10, 100, 2000))),
        "batch": (0.3, lambda: 2 ** random.randint(0, 8)),
        "weights": (0.5, lambda: random.choice(("bf16", "fp8", "nf4", "int8", "int4-g32", "mxfp4"))),
        "cache": (0.2, lambda: random.choice(("fp8", "int8"))),
        "latency": (0.3, lambda: random.choice((0.001, 0.02, 0.1))),
        "page": (0.1, lambda: 256),
        "memory_bytes": (0.2, lambda: random.choice((1e9, 16e9))),
        "price_per_hour": (0.2, lambda: 2.5),
        "chunk": (0.2, lambda: 512),
        "efficiency": (0.2, lambda: 0.7),
    }
    asked = _some(random, options)
    model = random.choice((random.choice(MODELS), random.choice(MODELS), _config(random)))
    return {
        "asked": {"model": str(model), **asked},
        **_answer(lambda: cs336plan.serve(ServingQuestion(model, **asked))),
    }


def commanded(random: Random) -> dict[str, Any]:
    """What the command prints for random options, as JSON or as text."""
    ranks = 2 ** random.randint(0, 6)
    options: dict[str, tuple[float, Callable[[], Any]]] = {
        "--accelerator": (0.4, lambda: random.choice(CHIPS)),
        "--count": (0.5, lambda: str(ranks)),
    }
    name = random.choice(("plan", "plan", "plan", "serve"))
    if name == "plan":
        options |= {
            "--layout": (0.3, lambda: random.choice(LAYOUTS).format(ranks)),
            "--batch": (0.4, lambda: str(2 ** random.randint(0, 4))),
            "--sequence": (0.4, lambda: random.choice(("1024", "1k", "2Ki", "9"))),
            "--tokens": (0.5, lambda: "15T"),
            "--checkpointing": (0.3, lambda: ""),
            "--precision": (0.3, lambda: random.choice(POLICIES)),
            "--qlora": (0.1, lambda: "16"),
            random.choice(("--find", "--largest-batch", "--explain", "--sensitivity")): (0.2, lambda: ""),
        }
    model = random.choice(
        (random.choice(MODELS), random.choice(HUB), random.choice(HUB), random.choice(("70B", "llama-3-8b")))
    )
    drawn = _some(random, options)
    if "--layout" in drawn and random.random() < 0.9:
        drawn.pop("--count", None)
    given = [text for pair in drawn.items() for text in pair if text]
    arguments = [name, model, *given, *["--json"] * (random.random() < 0.7)]
    out, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(refused):
        try:
            answer: dict[str, Any] = {"code": command(arguments)}
        except SystemExit as error:  # argparse's own refusals
            answer = {"code": error.code}
        except Exception as error:
            answer = {"crashed": f"{type(error).__name__}: {error}"}
    text = out.getvalue()
    printed = json.loads(text) if text.startswith("{") else text.splitlines()
    return {"asked": arguments, **answer, "printed": printed, "refused": refused.getvalue()}


def _answer(ask: Callable[[], Any]) -> dict[str, Any]:
    """An answer as plain values and as the lines of its text, or why there is none: a refusal, or a mistake of the kit's own."""
    try:
        answer = ask()
        return {"values": answer.as_dict(), "text": str(answer).splitlines()}
    except ValueError as error:
        return {"refused": str(error)}
    except Exception as error:
        return {"crashed": f"{type(error).__name__}: {error}"}


def _rounded(value: Any) -> Any:
    """Values without the last digits of their floats, which depend on the order in which seconds are added up."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.11g}") if isinstance(value, float) else value


#: Kind of question → how many are asked, and the function that draws one and answers it.
KINDS: dict[str, tuple[int, Callable[[Random], dict[str, Any]]]] = {
    "training": (220, training),
    "serving": (80, serving),
    "command": (100, commanded),
}


def main(seed: int) -> int:
    """Print each question with its answer as a line of JSON; the hash of all lines and the time they took go to stderr."""
    start, whole = time.process_time(), hashlib.sha256()
    without = Counter[str]()
    for kind, (count, answer) in KINDS.items():
        for number in range(count):
            answered = answer(Random(f"{kind} {seed} {number}"))
            without += Counter(name for name in ("refused", "crashed") if answered.get(name))
            line = json.dumps(_rounded({"question": f"{kind} {number}", **answered}), ensure_ascii=False)
            whole.update(line.encode())
            print(line)
    asked = sum(count for count, _ in KINDS.values())
    seconds = time.process_time() - start
    found = f"{asked} questions, {without['refused']} refused, {without['crashed']} crashed"
    print(f"{found}, {seconds:.0f} s of CPU: {whole.hexdigest()}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    arguments = Parser(description=__doc__)
    arguments.add_argument("--seed", type=int, default=0, help="other questions of the same kinds (0)")
    sys.exit(main(arguments.parse_args().seed))
