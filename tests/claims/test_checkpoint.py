"""Claims about what a checkpoint must hold, and how it is read."""

import io

import torch
from claims.settled import outcome_of, settles


class Run:
    """A small model, its optimizer, and the generator of its batches: each loss depends on all three."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.data = torch.Generator().manual_seed(0)

    def advance(self, steps):
        losses = []
        for _ in range(steps):
            loss = (self.model(torch.randn(8, 4, generator=self.data)) - 1).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def restore(self, saved, *parts):
        for part in parts:
            getattr(self, part).load_state_dict(saved[part])
        if "data" in saved:
            self.data.set_state(saved["data"])


def through_file(value, **options):
    """What torch.load reads of what torch.save wrote."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


def saved_after(run, steps, *, data):
    """The losses of these steps, and the state dicts of model and optimizer; with or without the position in the data."""
    losses = run.advance(steps)
    saved = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    return losses, through_file(saved | ({"data": run.data.get_state()} if data else {}))


def resumed(*parts, data=True):
    """Losses of five steps, a checkpoint, and five more in another run that restores these parts of it."""
    first, saved = saved_after(Run(), 5, data=data)
    other = Run(seed=1)
    other.restore(saved, *parts)
    return first + other.advance(5)


@settles("ckpt-model-and-optimizer")
def test_model_and_optimizer():
    straight = Run().advance(10)
    return (straight, True), (resumed("model", "optimizer"), resumed("model") != straight)


@settles("ckpt-load-only")
def test_load_only():
    run, other = Run(), Run(seed=1)
    _, saved = saved_after(run, 5, data=True)
    assert torch.equal(saved["model"]["weight"], run.model.weight)
    return True, torch.equal(other.model.weight, run.model.weight)


@settles("ckpt-missing-step-rng")
def test_missing_step_rng():
    return Run().advance(10), resumed("model", "optimizer", data=False)


class Stranger:
    """What a file could hold that runs code when it is read."""

    def __reduce__(self):
        return print, ("code ran",)


@settles("ckpt-weights-only")
def test_weights_only():
    plain, stranger = {"step": 3, "weight": torch.ones(2)}, {"model": Stranger()}
    return "runs", outcome_of(lambda: through_file(plain)), outcome_of(lambda: through_file(stranger))
