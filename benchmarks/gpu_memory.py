"""What training steps of known and of random decoders request, and what CUDA's allocator makes of it, beside predictions.

Which free block a tensor finds depends on where segments of memory lie, and that on what was there before: on CUDA each step has
a process of its own, as it would have in anybody's work.
"""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.attention import sdpa_kernel

from benchmarks.gpu_rows import Run, row
from benchmarks.gpu_training import GPT2, KERNELS, TINY, step_of
from cs336kit import lm, measure, predict
from cs336kit.predict import TransformerConfig

#: Models whose steps are measured at several batches, and that of a rehearsal.
KNOWN, REHEARSED = {"gpt2": GPT2, "llama": predict.MODELS["smollm2-135m"]}, {"tiny": TINY}
#: How many random decoders there are, and how many processes at once.
DECODERS, AT_ONCE = 60, 6
#: What CUDA's context and its kernels take of the device in each process, and some more.
CONTEXT_BYTES = 2**30
#: A row's label → the statistic of torch's allocator that it is.
STATISTICS = {
    "peak of a step": "allocated_bytes.all.peak",
    "requested at the peak": "requested_bytes.all.peak",
    "reserved at the peak": "reserved_bytes.all.peak",
}


class Step(NamedTuple):
    """A training step: its model, and `setting` as a row of the record has it."""

    config: TransformerConfig
    setting: dict[str, Any]

    @property
    def how(self) -> dict[str, Any]:
        """The options of a prediction, besides the device."""
        names = ("batch", "sequence", "precision", "checkpointing", "attention")
        return {"attention": "sdpa", **{name: self.setting[name] for name in names if name in self.setting}}

    @property
    def fused(self) -> bool:
        """Whether its AdamW is one kernel; else it works on all tensors at once (foreach)."""
        return self.setting.get("fused", False)


def known_steps(tiny: bool) -> Iterator[Step]:
    """Steps of a GPT-2 and a Llama in every precision."""
    models, sequence, batches = (REHEARSED, 32, (16,)) if tiny else (KNOWN, 1024, (1, 4, 8))
    for name, config in models.items():
        for precision in ("fp32", "bf16", "autocast"):
            for checkpointing in (False, True):
                how = {"precision": precision, "checkpointing": checkpointing, "sequence": sequence}
                yield from (Step(config, {"model": name, **how, "batch": batch}) for batch in batches)


def random_step(seed: int, *, tiny: bool = False) -> Step:
    """A step of a decoder that nobody designed: its configuration and its training are drawn."""
    r, scale = random.Random(seed), 16 if tiny else 1
    head_dim, heads = r.choice([64, 64, 128]) // scale, r.choice([4, 6, 8, 12])
    width, context = head_dim * heads, 1024 // scale
    config = {
        "layers": r.choice([2, 3, 5, 8]), "d_model": width, "heads": heads,
        "kv_heads": r.choice([count for count in (1, 2, 4, heads) if heads % count == 0]),
        "d_ff": r.choice([2 * width, 4 * width, 3 * width + 8]), "mlp": r.choice(["gelu", "swiglu"]),
        "norm": r.choice(["layernorm", "rmsnorm"]), "qk_norm": r.choice(["none", "none", "head"]),
        "positions": r.choice(["learned", "rope", "none"]), "bias": r.choice(["all", "none", "qkv"]),
        "vocab": r.choice([5000, 32000, 50257, 128256]) // scale, "tied_head": r.random() < 0.5,
        "dropout": r.choice([0.0, 0.0, 0.1]), "norms_per_block": r.choice([1, 2, 2]), "context": context,
    }  # fmt: skip
    if r.random() < 0.25:
        config["window"] = context // 8
    how = {
        "batch": r.choice([1, 2, 3, 8]), "sequence": r.choice([context // 4, context // 2, context - 2, context]),
        "precision": r.choice(["fp32", "bf16", "autocast"]), "checkpointing": r.random() < 0.4,
        "attention": r.choice(["sdpa", "sdpa", "eager"]), "fused": r.random() < 0.3,
    }  # fmt: skip
    return step_with({"model": f"decoder {seed}", **config, **how})


def step_with(setting: dict[str, Any]) -> Step:
    """The step whose rows in a record have this setting."""
    known = KNOWN | REHEARSED
    if setting["model"] in known:
        return Step(known[setting["model"]], setting)
    fields = {name: value for name, value in setting.items() if name in TransformerConfig.__dataclass_fields__}
    return Step(TransformerConfig(**fields), setting)


def memory(run: Run) -> Iterator[dict]:
    """Saved activations and the peak of a training step, for a GPT-2 and a Llama, beside their predictions."""
    yield from _rows(run, list(known_steps(run.tiny)))


def decoders(run: Run) -> Iterator[dict]:
    """The same for decoders that are drawn at random."""
    yield from _rows(
        run, [random_step(run.seed + place, tiny=run.tiny) for place in range(2 if run.tiny else DECODERS)]
    )


def _rows(run: Run, steps: list[Step]) -> Iterator[dict]:
    """The rows of these steps, in their order; one that fails is skipped."""
    if run.device.type != "cuda":
        for step in steps:
            for label, (counted, predicted) in watched(run, step).items():
                yield row(label, counted, "bytes", predicted=predicted, **step.setting)
        return
    room = Room(torch.cuda.get_device_properties(run.device).total_memory)
    predicted = [predictions(step) for step in steps]

    def apart(step: Step, expected: dict[str, int]) -> dict[str, int] | str:
        with room.of(expected["reserved at the peak"] + CONTEXT_BYTES):
            return _apart(step)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for step, expected, found in zip(steps, predicted, pool.map(apart, steps, predicted), strict=True):
            if isinstance(found, str):
                run.skip(" ".join(map(str, step.setting.values())), found)
                continue
            for label, counted in found.items():
                yield row(label, counted, "bytes", predicted=expected[label], **step.setting)


class Room:
    """A device's bytes, of which processes that run at the same time take parts: one that finds too few gives cached ones back,
    and would not reserve what it reserves alone.
    """

    def __init__(self, total: int):
        self.total = self.left = total
        self._changed = threading.Condition()

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        """Wait until there is room for this many bytes, or nobody else has any."""
        with self._changed:
            self._changed.wait_for(lambda: size <= self.left or self.left == self.total)
            self.left -= size
        try:
            yield
        finally:
            with self._changed:
                self.left += size
                self._changed.notify_all()


def predictions(step: Step, capability: int | None = None) -> dict[str, int]:
    """What is predicted of a step on a CUDA device, by label of its rows; without `capability`, on the one of this machine."""
    capability = torch.cuda.get_device_capability()[0] if capability is None else capability
    found = predict.step_allocation(step.config, capability=capability, fused=step.fused, **step.how)
    return {
        "saved activations": predict.saved_activation_bytes(step.config, device="cuda", **step.how).total,
        "peak of a step": found.allocated,
        "requested at the peak": found.requested,
        "reserved at the peak": found.reserved,
    }


def watched(run: Run, step: Step) -> dict[str, tuple[int, int]]:
    """A rehearsal: bytes of a step on this machine's processor, measured and predicted."""
    model = _model(step, run.device)
    run.free()
    one, loss, lasting = step_of(model, step.config, **_shape(step), device=run.device)
    one()
    how = {**step.how, "device": run.device.type}
    found = {
        "saved activations": (
            measure.saved_activation_bytes(loss).total, predict.saved_activation_bytes(step.config, **how).total
        ),
        "peak of a step": (
            lasting() + measure.peak_bytes(one, device=run.device), predict.step_peak(step.config, foreach=True, **how).total
        ),
    }  # fmt: skip
    model = one = loss = lasting = None
    run.free()
    return found


def allocated(step: Step) -> dict[str, int]:
    """Two training steps on this process's CUDA device, which nothing has used before: bytes by label of their rows."""
    run = Run(torch.device("cuda"))
    with sdpa_kernel(KERNELS["flash"]):
        # At once where and in what it stays: drawing on the host takes seconds, and copies that were converted there would
        # leave pieces of memory that the step is not predicted to find.
        model = _model(step, run.device)
        run.free()
        one, loss, _ = step_of(model, step.config, **_shape(step), device=run.device, fused=step.fused)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):  # the second has its optimizer state
            one()
        torch.cuda.synchronize()
        # Before anything else is done: pieces of memory that another pass left would be taken by none of these.
        stats = torch.cuda.memory_stats()
        saved = measure.saved_activation_bytes(loss).total
    return {"saved activations": saved, **{label: stats[name] for label, name in STATISTICS.items()}}


def _model(step: Step, device: torch.device) -> lm.DecoderOnly:
    weights = torch.bfloat16 if predict.POLICIES[step.how["precision"]].weights == "bf16" else torch.float32
    how = {name: step.how[name] for name in ("attention", "checkpointing")}
    return lm.DecoderOnly(step.config, device=device, dtype=weights, **how)


def _shape(step: Step) -> dict[str, Any]:
    return {name: step.how[name] for name in ("batch", "sequence", "precision")}


def _apart(step: Step) -> dict[str, int] | str:
    """What `allocated` found in a process of its own, or why it found nothing."""
    command = [sys.executable, "-m", "benchmarks.gpu_memory", json.dumps(step.setting)]
    ended = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    if ended.returncode:
        return (ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"])[-1]
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(allocated(step_with(json.loads(sys.argv[1])))))
