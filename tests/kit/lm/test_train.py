import math

import pytest
import torch
from torch import nn

from cs336kit.lm import (
    SGD,
    AdamW,
    Batches,
    Cruncher,
    Momentum,
    clip_gradients,
    cosine_schedule,
    mean_loss,
    precision,
    train,
)

pytestmark = pytest.mark.torch


def regression(n, *, batch=8, width=4):
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(width, dtype=torch.float32)
    for _ in range(n):
        x = torch.randn(batch, width, generator=generator)
        yield x, x @ truth


def squared_error(prediction, target):
    assert prediction.shape == target.shape
    return ((prediction - target) ** 2).mean()


def cruncher(seed=0, width=4, layers=1):
    torch.manual_seed(seed)
    return Cruncher(width, layers)


def test_the_loop_is_the_loop_written_out():
    ours, theirs = cruncher(), cruncher()
    history = train(ours, Momentum(ours.parameters(), lr=0.01), regression(5), steps=5, loss=squared_error)
    optimizer, losses = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9), []
    for x, y in regression(5):
        optimizer.zero_grad()
        loss = squared_error(theirs(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert history.losses == losses
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_it_learns_and_keeps_a_history():
    model = cruncher()
    schedule = lambda step: cosine_schedule(step, max_lr=0.05, warmup_steps=5, total_steps=60)  # noqa: E731
    clip = lambda parameters: clip_gradients(parameters, max_norm=1.0)  # noqa: E731
    seen = []
    history = train(
        model,
        AdamW(model.parameters(), lr=1.0),
        regression(60),
        steps=60,
        loss=squared_error,
        schedule=schedule,
        clip=clip,
        evaluate=lambda: (seen.append((model.training, torch.is_grad_enabled())), 0.5)[1],
        evaluate_every=25,
    )
    assert history.losses[-1] < 0.3 * history.losses[0]
    assert history.learning_rates == [schedule(step) for step in range(60)]
    assert len(history.gradient_norms) == 60 and max(history.gradient_norms) > 1
    assert history.evaluations == [(25, 0.5), (50, 0.5), (60, 0.5)]
    assert set(seen) == {(False, False)} and model.training


def test_groups_have_the_schedule_and_the_clipping_in_common_and_each_its_own_decay():
    ours, theirs = cruncher(layers=2), cruncher(layers=2)

    def groups(model):
        final, others = [model.final.weight], [*model.layers.parameters()]
        return [{"params": final, "weight_decay": 0.5}, {"params": others, "weight_decay": 0.0}]

    rates = [0.02, 0.05, 0.01]
    history = train(
        ours, AdamW(groups(ours)), regression(3), steps=3, loss=squared_error, schedule=rates.__getitem__,
        clip=lambda parameters: clip_gradients(parameters, max_norm=0.1),
    )  # fmt: skip
    optimizer, norms = torch.optim.AdamW(groups(theirs), foreach=False), []
    for rate, (x, y) in zip(rates, regression(3), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        squared_error(theirs(x), y).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)))
        optimizer.step()
    assert history.learning_rates == rates and history.gradient_norms == pytest.approx(norms)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other)


def test_accumulation_equals_the_large_batch():
    large, small = cruncher(), cruncher()
    batches = list(regression(12, batch=4))
    joined = [tuple(torch.cat(parts) for parts in zip(*batches[i : i + 3], strict=True)) for i in range(0, 12, 3)]
    a = train(large, SGD(large.parameters(), lr=0.01), joined, steps=4, loss=squared_error)
    b = train(small, SGD(small.parameters(), lr=0.01), batches, steps=4, accumulate=3, loss=squared_error)
    assert a.losses == pytest.approx(b.losses, rel=1e-5)
    for p, q in zip(large.parameters(), small.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-6)


def test_gradients_of_ones_own_take_the_place_of_model_and_loss():
    usual, own = cruncher(), cruncher()

    def gradients(x, y):
        value = squared_error(own(x), y)
        value.backward()
        return value

    a = train(usual, SGD(usual.parameters(), lr=0.01), regression(3), steps=3, loss=squared_error)
    b = train(own, SGD(own.parameters(), lr=0.01), regression(3), steps=3, gradients=gradients)
    assert a.losses == b.losses
    assert all(torch.equal(p, q) for p, q in zip(usual.parameters(), own.parameters(), strict=True))
    with pytest.raises(ValueError, match="gradients must be a function or None, got 3"):
        train(own, SGD(own.parameters(), lr=0.01), regression(1), steps=1, gradients=3)


def test_old_gradients_do_not_leak_into_the_first_step():
    clean, dirty = cruncher(), cruncher()
    for p in dirty.parameters():
        p.grad = torch.ones_like(p)
    for model in (clean, dirty):
        train(model, SGD(model.parameters(), lr=0.01), regression(1), steps=1, loss=squared_error)
    assert all(torch.equal(a, b) for a, b in zip(clean.parameters(), dirty.parameters(), strict=True))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_nan_stops_with_a_sentence(bad):
    model = cruncher()
    batches = [*regression(2), (torch.full((8, 4), bad), torch.zeros(8))]
    optimizer = SGD(model.parameters(), lr=0.01)
    train(model, optimizer, batches[:2], steps=2, loss=squared_error)
    kept = [p.clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match=r"the loss is (nan|inf) in step 7 .*Lower the learning rate"):
        train(model, optimizer, batches[2:], steps=1, first_step=7, loss=squared_error)
    assert all(torch.equal(a, b) for a, b in zip(kept, model.parameters(), strict=True))


def test_a_gradient_that_is_nan_under_a_finite_loss_stops_before_the_step():
    """A root has an infinite slope at zero: the loss is 0, and its gradient NaN."""
    model, saved = cruncher(), []
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    run = {"steps": 1, "loss": lambda z, y: (z - 0 * y).square().sum().sqrt()}
    optimizer = SGD(model.parameters(), lr=0.01)
    with pytest.raises(FloatingPointError, match="norm is nan while the loss is 0, in step 3 .*The step was not made"):
        train(
            model, optimizer, regression(1), first_step=3, after_step=saved.append,
            clip=lambda parameters: clip_gradients(parameters, max_norm=1.0), **run,
        )  # fmt: skip
    assert not saved and all(not p.any() for p in model.parameters())


def test_batches_that_end_early():
    model = cruncher()
    with pytest.raises(ValueError, match="ended in step 2"):
        train(model, SGD(model.parameters(), lr=0.01), regression(2), steps=3, loss=squared_error)


def test_a_skipped_step_is_recorded_and_clipping_sees_true_gradients():
    model, policy = cruncher(width=16), precision("autocast-fp16")
    policy.scaler.factor = 2.0**20
    history = train(
        model,
        SGD(model.parameters(), lr=1e-4),
        regression(30, width=16),
        steps=30,
        loss=squared_error,
        policy=policy,
        clip=lambda parameters: clip_gradients(parameters, max_norm=1e9),
    )
    assert history.skipped[:3] == [0, 1, 2] and len(history.skipped) < 30
    assert policy.scaler.factor == 2.0 ** (20 - len(history.skipped))
    for step, norm in enumerate(history.gradient_norms):  # an overflow is an infinite or NaN norm, never a scaled one
        assert (not math.isfinite(norm)) if step in history.skipped else norm < 1e4


def test_callbacks_counts_and_progress(capsys):
    model, done = cruncher(), []
    optimizer = SGD(model.parameters(), lr=0.01)
    history = train(
        model,
        optimizer,
        regression(4),
        steps=4,
        first_step=10,
        loss=squared_error,
        after_step=done.append,
        progress=True,
    )
    assert done == [11, 12, 13, 14] and history.first_step == 10
    assert capsys.readouterr().err.splitlines()[-1].startswith("train 4/4 steps (100 %) · loss ")
    for bad in (dict(steps=0), dict(accumulate=0), dict(first_step=-1), dict(evaluate_every=0)):
        with pytest.raises(ValueError, match=next(iter(bad))):
            train(model, optimizer, regression(1), **{"steps": 1, "loss": squared_error, **bad})


def test_mean_loss_is_the_mean_and_keeps_the_mode():
    model = cruncher().train()
    with torch.no_grad():
        values = [float(squared_error(model(x), y)) for x, y in regression(3)]
    assert mean_loss(model, regression(3), count=3, loss=squared_error) == pytest.approx(math.fsum(values) / 3)
    assert model.training and not mean_loss(model.eval(), regression(1), count=1, loss=squared_error) < 0
    assert not model.training


def test_each_part_is_in_its_own_mode_after_an_evaluation():
    model = nn.Sequential(nn.Dropout(0.1), cruncher())
    modes = []

    def freeze(done):
        modes.append(model[0].training)
        model[0].eval()

    train(
        model, SGD(model.parameters(), lr=0.01), regression(3), steps=3, loss=squared_error, after_step=freeze,
        evaluate=lambda: 0.0, evaluate_every=1,
    )  # fmt: skip
    assert modes == [True, False, False] and model[1].training
    mean_loss(model, regression(1), count=1, loss=squared_error)
    assert not model[0].training and model[1].training
    with pytest.raises(ValueError, match="the batches ended after 2 of 3: give more of them or a smaller count"):
        mean_loss(model, regression(2), count=3, loss=squared_error)
    assert not model[0].training and model[1].training


def test_tokens_and_the_default_loss():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11))
    batches = Batches(torch.arange(200) % 11, batch=8, sequence=10, seed=0)
    history = train(model, AdamW(model.parameters(), lr=0.05), batches, steps=40)
    assert history.losses[0] > 2 and history.losses[-1] < 0.2  # ln 11 = 2.4 at first; the sequence is predictable
