"""A sweep: tiny decoders of many sizes, each trained with several FLOP budgets, and its record."""

import json
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from cs336kit.files import write_whole
from cs336kit.lm.pretrain import Pretraining, pretrain, small_llama
from cs336kit.predict.accounting import training_flops, without_embeddings
from cs336kit.predict.checks import positive_int, positive_number
from cs336kit.predict.transformer import TransformerConfig

#: The course's sweep, as `cs336kit sweep` wrote it.
RECORD = Path(__file__).with_name("sweep.json")
#: Layers and width of each model, from the smallest to the largest.
LADDER = ((1, 8), (1, 16), (1, 24), (1, 32), (2, 32), (2, 48), (2, 64), (3, 80), (4, 96))
#: Budget in FLOPs → the first and the last model of the ladder that are trained with it (for at least 100 steps and at
#: most ten epochs), and the number of seeds.
GRID = {1e10: (0, 3, 2), 3e10: (0, 5, 2), 1e11: (1, 7, 1), 3e11: (2, 8, 1)}
BATCH, SEQUENCE = 8, 64
#: Points of a curve, from a sixteenth of the run to its end.
CURVE_POINTS = 12


@dataclass(frozen=True)
class Run:
    """One run of a sweep: its model, its budget, and its results."""

    layers: int
    d_model: int
    seed: int
    #: requested; `flops` are those of the nearest whole number of steps
    budget: float
    steps: int
    max_lr: float
    #: all of them, including the embedding table and the head
    parameters: int
    #: without the embedding table and without the head, as Kaplan et al. count
    inner_parameters: int
    tokens: int
    flops: int
    #: on the held-out tenth of the text, in nats per byte
    loss: float
    #: [steps done, mean training loss of the last tenth of them]
    curve: tuple[tuple[int, float], ...]
    #: of processor time
    seconds: float

    @property
    def config(self) -> TransformerConfig:
        return tiny(self.layers, self.d_model)


@dataclass(frozen=True)
class Sweep:
    """Runs, with the torch, machine, batch and text that they share."""

    torch: str
    machine: str
    batch: int
    sequence: int
    text_tokens: int
    runs: tuple[Run, ...]

    @property
    def seconds(self) -> float:
        """Processor time of all runs together."""
        return sum(run.seconds for run in self.runs)

    def slices(self) -> dict[float, list[Run]]:
        """The runs by budget."""
        budgets = sorted({run.budget for run in self.runs})
        return {budget: [run for run in self.runs if run.budget == budget] for budget in budgets}


def tiny(layers: int, d_model: int) -> TransformerConfig:
    """A model of the sweep from its layers and width: heads are 8 or 16 wide, and the MLP 8/3 of the width."""
    positive_int("d_model", d_model)
    head_dim = 8 if d_model < 32 else 16
    return small_llama(layers=layers, d_model=d_model, heads=max(1, d_model // head_dim), context=SEQUENCE)


def learning_rate(d_model: int) -> float:
    """The highest learning rate of a run: 0.03, or 0.4 / width for wide models."""
    return min(0.03, 0.4 / d_model)


def steps_of(config: TransformerConfig, budget: float) -> int:
    """The number of steps nearest to a budget of training FLOPs; a budget below half a step raises ValueError."""
    step = training_flops(config, batch=BATCH, sequence=SEQUENCE).total
    steps = round(positive_number("budget", budget) / step)
    if steps < 1:
        raise ValueError(f"a budget of {budget:.3g} FLOPs is less than one step of this model, {step:.3g}: give more.")
    return steps


def train_one(layers: int, d_model: int, *, budget: float, seed: int = 0) -> Run:
    """One run of the sweep. The same seed, machine, torch and number of threads give the same losses."""
    config = tiny(layers, d_model)
    done = pretrain(
        config, batch=BATCH, sequence=SEQUENCE, steps=steps_of(config, budget), max_lr=learning_rate(d_model), seed=seed
    )
    return Run(
        layers=layers, d_model=d_model, seed=seed, budget=budget, steps=done.steps, max_lr=done.max_lr,
        parameters=done.parameters, inner_parameters=without_embeddings(config), tokens=done.tokens, flops=done.flops,
        loss=done.validation_loss, curve=curve(done), seconds=round(done.seconds, 2),
    )  # fmt: skip


def curve(run: Pretraining) -> tuple[tuple[int, float], ...]:
    """The training loss at logarithmically spaced steps: [steps done, mean of the last tenth of them]."""
    first = max(1, run.steps // 16)
    ratio = (run.steps / first) ** (1 / (CURVE_POINTS - 1))
    at = sorted({round(first * ratio**i) for i in range(CURVE_POINTS - 1)} | {run.steps})
    windows = [run.losses[step - max(1, step // 10) : step] for step in at]
    return tuple((step, round(sum(part) / len(part), 4)) for step, part in zip(at, windows, strict=True))


def grid() -> list[dict[str, Any]]:
    """The arguments of `train_one` for the course's sweep, the cheapest budget first."""
    return [
        {"layers": layers, "d_model": d_model, "budget": budget, "seed": seed}
        for budget, (first, last, seeds) in GRID.items()
        for seed in range(seeds)
        for layers, d_model in LADDER[first : last + 1]
    ]


def run_sweep(
    cells: Iterable[dict[str, Any]], *, known: Sequence[Run] = (), after: Callable[["Sweep"], None] | None = None
) -> Sweep:
    """Train every cell that is not among the `known` runs; after each, call `after` with the sweep so far."""
    runs = list(known)
    have = {(run.layers, run.d_model, run.budget, run.seed) for run in runs}
    for cell in cells:
        if (cell["layers"], cell["d_model"], cell["budget"], cell["seed"]) not in have:
            runs.append(train_one(**cell))
            if after is not None:
                after(_sweep(runs))
    if not runs:
        raise ValueError("the sweep is empty: give at least one model and one budget.")
    return _sweep(runs)


def _sweep(runs: Sequence[Run]) -> Sweep:
    from cs336kit.lm.data import course_text, encode

    text = encode(course_text())
    made_by = f"{platform.machine()}, {torch.get_num_threads()} thread"
    return Sweep(torch.__version__, made_by, BATCH, SEQUENCE, len(text) - len(text) // 10, tuple(runs))


def write_sweep(sweep: Sweep, path: Path | str) -> None:
    """Write the record, one run per line, whole or not at all."""
    head = asdict(sweep)
    runs = ",\n  ".join(json.dumps(run) for run in head.pop("runs"))
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    write_whole(Path(path), "{\n" + "\n".join(lines) + '\n "runs": [\n  ' + runs + "\n ]\n}\n", flush=True)


def recorded_sweep(path: Path = RECORD) -> Sweep:
    """The recorded sweep of the course, or one of your own; an invalid file raises ValueError with what is wrong."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        runs = tuple(Run(**{**run, "curve": tuple(map(tuple, run["curve"]))}) for run in data.pop("runs"))
        sweep = Sweep(**data, runs=runs)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a sweep record ({error}): cs336kit sweep --out FILE writes one.") from None
    check_sweep(sweep)
    return sweep


def check_sweep(sweep: Sweep) -> None:
    """Raise ValueError if a sweep is empty, or if the numbers of a run are invalid or inconsistent."""
    if not sweep.runs:
        raise ValueError("the sweep is empty: it holds no run.")
    for run in sweep.runs:
        for field in fields(run):
            if field.name not in ("seed", "curve"):
                positive_number(field.name, getattr(run, field.name))
        step = training_flops(run.config, batch=sweep.batch, sequence=sweep.sequence).total
        if run.flops != run.steps * step or run.tokens != run.steps * sweep.batch * sweep.sequence:
            raise ValueError(f"a run of {run.steps} steps cannot have {run.flops} FLOPs and {run.tokens} tokens: {run}")
        if any(after <= before for (before, _), (after, _) in pairwise(run.curve)) or run.curve[-1][0] != run.steps:
            raise ValueError(f"the steps of a curve must increase and end at the run's {run.steps}: {run}")
