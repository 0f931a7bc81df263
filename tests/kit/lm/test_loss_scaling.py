import pytest
import torch

from cs336kit.lm import SGD, LossScaler

pytestmark = pytest.mark.torch


def parameter_with(gradient):
    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad = torch.tensor(gradient)
    return parameter


def test_the_scale_and_the_steps_are_those_of_gradscaler():
    ours = LossScaler(scale=1024.0, growth_interval=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    mine, reference = SGD([a], lr=0.1), torch.optim.SGD([b], lr=0.1)
    for factor in (1.0, 1.0, 1.0, float("inf"), 1.0, float("nan"), float("inf"), 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        for parameter, optimizer in ((a, mine), (b, reference)):
            optimizer.zero_grad()
            loss = (parameter * torch.tensor([factor, 1.0])).sum()
            (ours if parameter is a else theirs).scale(loss).backward()
        ours.step(mine)
        theirs.step(reference)
        theirs.update()
        assert ours.factor == theirs.get_scale()
        assert torch.equal(a, b)


def test_an_overflow_skips_the_step():
    parameter = parameter_with([1.0, float("inf"), 1.0])
    scaler = LossScaler()
    assert scaler.step(SGD([parameter], lr=1.0)) is False
    assert parameter.tolist() == [0, 0, 0] and scaler.factor == 32768


def test_unscale_gives_the_true_gradients_once():
    parameter = parameter_with([65536.0, 0.0, -131072.0])
    scaler, optimizer = LossScaler(), SGD([parameter], lr=1.0)
    scaler.unscale(optimizer)
    assert parameter.grad.tolist() == [1, 0, -2]
    with pytest.raises(RuntimeError, match="unscaled already"):
        scaler.unscale(optimizer)
    assert scaler.step(optimizer) and parameter.tolist() == [-1, 0, 2]
    scaler.unscale(optimizer)  # the next step may


def test_every_group_is_unscaled_and_looked_at():
    first, second = parameter_with([65536.0, 0.0, 0.0]), parameter_with([0.0, -131072.0, 0.0])
    scaler, optimizer = LossScaler(), SGD([{"params": [first]}, {"params": [second]}], lr=1.0)
    scaler.unscale(optimizer)
    assert (first.grad.tolist(), second.grad.tolist()) == ([1, 0, 0], [0, -2, 0])
    scaler.step(optimizer)
    second.grad[0] = float("inf")
    assert scaler.step(optimizer) is False and scaler.factor == 32768


def test_fp16_parameters_are_refused_as_by_torch():
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
    parameter.grad = torch.ones(1, dtype=torch.float16)
    with pytest.raises(ValueError, match="keep the parameters in fp32"):
        LossScaler().step(SGD([parameter], lr=1.0))


def test_state_and_arguments():
    scaler = LossScaler()
    scaler.step(SGD([parameter_with([1.0, 1.0, 1.0])], lr=1.0))
    fresh = LossScaler(scale=1.0)
    fresh.load_state_dict(scaler.state_dict())
    assert fresh.state_dict() == {"scale": 65536.0, "clean_steps": 1}
    for bad in (dict(scale=0), dict(growth=1.0), dict(backoff=1.0), dict(backoff=1.5), dict(growth_interval=0)):
        with pytest.raises(ValueError, match=next(iter(bad))):
            LossScaler(**bad)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"scale": float("nan"), "clean_steps": 1}, "scale must be a finite number above 0"),
        ({"scale": True, "clean_steps": 1}, "scale must be"),
        ({"scale": 2.0, "clean_steps": -1}, "clean_steps must be"),
        ({"scale": 2.0, "clean_steps": 1.5}, "clean_steps must be"),
    ],
)
def test_a_state_that_no_scaler_has_is_refused(state, sentence):
    scaler = LossScaler(scale=4.0)
    with pytest.raises(ValueError, match=sentence):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == {"scale": 4.0, "clean_steps": 0}


def test_a_second_optimizer_in_a_step_is_refused():
    first, second = (SGD([parameter_with([1.0, 1.0, value])], lr=1.0) for value in (float("inf"), 1.0))
    scaler = LossScaler()
    scaler.step(first)
    for ask in (scaler.unscale, scaler.step):
        with pytest.raises(RuntimeError, match=r"its factor may have changed since: give each a LossScaler of its own"):
            ask(second)
    scaler.scale(torch.ones(()))
    assert scaler.step(second)


def test_a_step_that_was_interrupted_leaves_nothing_behind():
    parameter = parameter_with([float("inf")] * 3)
    scaler, optimizer = LossScaler(), SGD([parameter], lr=1.0)
    scaler.unscale(optimizer)  # and then an exception
    optimizer.zero_grad()
    scaler.scale(parameter.sum()).backward()
    scaler.unscale(optimizer)
    assert scaler.step(optimizer) and parameter.tolist() == [-1, -1, -1]


def test_the_largest_scale_and_losses_of_fp16_are_those_of_gradscaler():
    ours = LossScaler(scale=2.0**126, growth_interval=1)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=1)
    for _ in range(3):
        for scaler in (ours, theirs):
            parameter = torch.nn.Parameter(torch.zeros(1))
            scaler.scale((parameter * 2.0**-126).sum()).backward()
            scaler.step(torch.optim.SGD([parameter], lr=1.0))
        theirs.update()
        assert ours.factor == theirs.get_scale()
    loss = torch.tensor(2.0, dtype=torch.float16)
    scaled = torch.amp.GradScaler("cpu", init_scale=65536.0).scale(loss)
    assert LossScaler().scale(loss) == scaled == 131072
