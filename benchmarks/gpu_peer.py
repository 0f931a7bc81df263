"""nanoGPT's training step of the same size, where a clone of it lies: `make gpu-records NANOGPT=folder`."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.gpu_rows import Run, row
from cs336kit import measure
from cs336kit.predict import TransformerConfig

#: The variable of the environment that names the folder of the clone.
FOLDER = "NANOGPT"


def nanogpt(run: Run, config: TransformerConfig, *, batch: int, sequence: int, flops: int) -> Iterator[dict]:
    """Seconds of its step, compiled and in bf16 autocast, with the attention that torch chooses for it."""
    folder = os.environ.get(FOLDER)
    if not folder:
        run.skip("nanoGPT's step", f"{FOLDER} names no folder with a clone of it")
        return
    step = None
    try:
        step = step_of(Path(folder), config, batch=batch, sequence=sequence, device=run.device)
        timing = measure.seconds(step, device=run.device, **run.timing)
    except (OSError, RuntimeError) as error:
        run.skip("nanoGPT's step", error)
        return
    finally:
        step = None
        torch.compiler.reset()
        run.free()
    peak = run.peak("bf16")
    yield row("nanoGPT's step", timing, "s", predicted=peak and flops / peak, batch=batch, sequence=sequence,
              vocab=config.vocab, compiled=True)  # fmt: skip


def step_of(
    folder: Path, config: TransformerConfig, *, batch: int, sequence: int, device: torch.device
) -> Callable[[], None]:
    """What its bench.py times, with its own model and optimizer, and biases as GPT-2 has them; the loss is not read."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    theirs = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # its dataclass looks itself up there
    spec.loader.exec_module(theirs)
    sizes = {"n_layer": config.layers, "n_head": config.heads, "n_embd": config.d_model, "vocab_size": config.vocab}
    model = theirs.GPT(theirs.GPTConfig(block_size=sequence, dropout=0.0, bias=True, **sizes)).to(device)
    options = {"weight_decay": 1e-2, "learning_rate": 1e-4, "betas": (0.9, 0.95)}
    optimizer = model.configure_optimizers(**options, device_type=device.type)
    compiled = torch.compile(model, backend="inductor" if device.type == "cuda" else "eager")
    x, y = (torch.randint(config.vocab, (batch, sequence), device=device) for _ in range(2))

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16):
            _, loss = compiled(x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step
