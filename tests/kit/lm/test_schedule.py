import math

import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch

SCHEDULE = {"max_lr": 3e-4, "min_lr": 3e-5, "warmup_steps": 10, "total_steps": 110}


def test_corners():
    assert lm.cosine_schedule(0, **SCHEDULE) == 0
    assert lm.cosine_schedule(5, **SCHEDULE) == pytest.approx(1.5e-4)
    assert lm.cosine_schedule(10, **SCHEDULE) == 3e-4
    assert lm.cosine_schedule(60, **SCHEDULE) == pytest.approx((3e-4 + 3e-5) / 2)
    assert lm.cosine_schedule(110, **SCHEDULE) == lm.cosine_schedule(10**6, **SCHEDULE) == 3e-5


def test_without_warm_up_the_first_step_has_the_full_rate():
    assert lm.cosine_schedule(0, max_lr=1.0, warmup_steps=0, total_steps=4) == 1.0
    assert lm.cosine_schedule(4, max_lr=1.0, warmup_steps=0, total_steps=4) == 0.0


def test_equal_to_torch_after_the_warm_up():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=3e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100, eta_min=3e-5)
    for step in range(10, 111):
        assert lm.cosine_schedule(step, **SCHEDULE) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        scheduler.step()


def test_it_falls_after_the_peak_and_rises_before():
    rates = [lm.cosine_schedule(step, **SCHEDULE) for step in range(112)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)


@pytest.mark.parametrize(
    ("step", "changed", "sentence"),
    [
        (-1, {}, "step must be"),
        (1.0, {}, "step must be"),
        (0, {"warmup_steps": 110}, "leaves no step"),
        (0, {"total_steps": 0}, "total_steps must be"),
        (0, {"max_lr": math.nan}, "max_lr must be"),
        (0, {"min_lr": 1.0}, "min_lr must be from 0 to max_lr"),
        (0, {"min_lr": math.nan}, "min_lr must be from 0 to max_lr"),
    ],
)
def test_refuses(step, changed, sentence):
    with pytest.raises(ValueError, match=sentence):
        lm.cosine_schedule(step, **SCHEDULE | changed)
