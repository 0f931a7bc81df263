"""Ratios of the training kit: `python -m benchmarks.training` prints them for this machine."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cs336kit import measure
from cs336kit.command.arguments import Parser
from cs336kit.lm import AdamW, Batches, DecoderOnly, TokenFile, cross_entropy, get_batch, precision, train
from cs336kit.predict import TransformerConfig

#: The small decoders that lessons train: where → its sizes, and the batch and sequence of a step.
SMALL: dict[str, tuple[dict[str, int | float], int, int]] = {
    "13, with dropout": (dict(layers=1, d_model=32, heads=2, vocab=256, context=32, dropout=0.1), 16, 32),
    "14, section 1": (dict(layers=4, d_model=64, heads=4, vocab=256, context=128), 4, 128),
    "15, section 1": (dict(layers=2, d_model=64, heads=4, vocab=4096, context=64), 6, 64),
    "15, section 2": (dict(layers=4, d_model=64, heads=4, vocab=4096, context=128), 4, 128),
    "18, section 2": (dict(layers=2, d_model=32, heads=4, vocab=64, context=32), 8, 32),
    "the table above": (dict(layers=2, d_model=128, heads=4, vocab=256, context=128), 8, 128),
}  # fmt: skip


def row_by_row(tokens: TokenFile, *, batch: int, sequence: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The loader that `get_batch` is compared with: index the memory map once per row, then stack."""
    starts = torch.randint(len(tokens) - sequence, (batch,), generator=generator).tolist()
    x = torch.stack([torch.from_numpy(tokens[i : i + sequence].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + sequence].astype(np.int64)) for i in starts])
    return x, y


def median_seconds(functions: dict[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Median seconds of each function, called in turn so that a busy machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def loader_seconds(tokens: TokenFile, *, batch: int, sequence: int, repeats: int = 100) -> dict[str, float]:
    """Median seconds of one batch, drawn by `get_batch` and row by row."""
    generator = torch.Generator().manual_seed(0)
    arguments = {"batch": batch, "sequence": sequence, "generator": generator}
    functions = {
        "get_batch": lambda: get_batch(tokens, **arguments),
        "row by row": lambda: row_by_row(tokens, **arguments),
    }
    return median_seconds(functions, repeats=repeats)


def step_seconds(*, device: torch.device | str, repeats: int = 10) -> dict[str, float]:
    """Median seconds of one step of a small decoder: the bare loop in fp32, and `train` in the precisions of the device.

    A call of `train` ends with reading the loss, which waits for the device, so the times are those of finished work. What has
    no units for fp8 multiplies number by number: such a step takes a minute, and says nothing.
    """
    config = TransformerConfig(layers=2, d_model=128, heads=4, vocab=256, context=128)
    batches = Batches(np.arange(10_000) % 256, batch=8, sequence=128, seed=0, device=device)

    def bare() -> Callable[[], object]:
        model = DecoderOnly(config).to(device)
        optimizer = AdamW(model.parameters(), lr=1e-3)

        def step() -> float:
            x, y = next(batches)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    def with_train(name: str) -> Callable[[], object]:
        policy = precision(name, device=device)
        model = policy.prepare(DecoderOnly(config).to(device))
        optimizer = AdamW(model.parameters(), lr=1e-3)
        return lambda: train(model, optimizer, batches, steps=1, policy=policy)

    functions = {"bare loop": bare()}
    names = ["fp32", "autocast"]
    if "fp8" in measure.precisions(device):
        names.append("fp8")
    functions.update({f"train, {name}": with_train(name) for name in names})
    return median_seconds(functions, repeats=repeats)


def attention_seconds(where: str, *, device: torch.device | str, repeats: int = 30) -> dict[str, float]:
    """Median seconds of one step of a small decoder of the lessons, with attention written out and with torch's function."""
    sizes, batch, sequence = SMALL[where]
    config = TransformerConfig(**sizes)  # type: ignore[arg-type]
    batches = Batches(np.arange(10_000) % config.vocab, batch=batch, sequence=sequence, seed=0, device=device)

    def step(attention: str) -> Callable[[], object]:
        model = DecoderOnly(config, attention=attention).to(device)
        optimizer = AdamW(model.parameters(), lr=1e-3)
        return lambda: train(model, optimizer, batches, steps=1)

    return median_seconds({attention: step(attention) for attention in ("eager", "sdpa")}, repeats=repeats)


def main() -> None:
    """Print all tables."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        tokens = TokenFile.write(Path(folder) / "t", rng.integers(50_257, size=5_000_000), vocab=50_257)
        print("loader, one batch of uint16 tokens: row by row ÷ get_batch")
        for batch, sequence in ((4, 128), (16, 128), (8, 1024), (64, 1024)):
            seconds = loader_seconds(tokens, batch=batch, sequence=sequence)
            ratio = seconds["row by row"] / seconds["get_batch"]
            print(f"  B={batch:<3} S={sequence:<5} {seconds['get_batch'] * 1e6:8.0f} µs   {ratio:5.1f}×")
    print(f"step of a small decoder on {device}: relative to the bare loop")
    seconds = step_seconds(device=device)
    for name, value in seconds.items():
        print(f"  {name:<22} {value * 1e3:8.1f} ms   {value / seconds['bare loop']:5.2f}")
    print(f"steps of the lessons' small decoders on {device}: attention written out, torch's function, and their ratio")
    for where in SMALL:
        seconds = attention_seconds(where, device=device)
        print(f"  {where:<22} {seconds['eager'] * 1e3:8.2f} ms {seconds['sdpa'] * 1e3:8.2f} ms", end="   ")
        print(f"{seconds['eager'] / seconds['sdpa']:5.2f}")


if __name__ == "__main__":
    Parser(description=__doc__).parse_args()
    main()
