import copy
import inspect
import math

import numpy as np
import pytest
import torch

from cs336kit import lm

pytestmark = pytest.mark.torch

PAIRS = (
    (lm.SGD, torch.optim.SGD, {}),
    (lm.Momentum, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (lm.AdaGrad, torch.optim.Adagrad, {"lr_decay": 0.1}),
    (lm.RMSProp, torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    (lm.Adam, torch.optim.Adam, {"weight_decay": 0.1}),
    (lm.AdamW, torch.optim.AdamW, {"weight_decay": 0.1}),
)
NAMES = [ours.__name__ for ours, _, _ in PAIRS]


@pytest.mark.parametrize("direction", ["into torch", "out of torch", "ours"])
@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=NAMES)
def test_state_dict_round_trip(twins, ours, theirs, options, direction):
    """Ten steps with one, a state_dict, ten more with the other: as if nothing had happened."""
    first, second = {"into torch": (ours, theirs), "out of torch": (theirs, ours), "ours": (ours, ours)}[direction]
    parameters, copies = twins.tensors(torch.float32), twins.tensors(torch.float32)
    steady = theirs(copies, **options)
    twins.walk(steady, copies, 10, skip=4)
    twins.walk(steady, copies, 10, seed=2, skip=4)
    before = first(parameters, **options)
    twins.walk(before, parameters, 10, skip=4)
    after = second(parameters, lr=123.0)  # a wrong rate, to be overwritten by the loaded groups
    after.load_state_dict(before.state_dict())
    twins.walk(after, parameters, 10, seed=2, skip=4)
    assert twins.same_bits(parameters, copies)
    twins.assert_same_state(after, steady)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=NAMES)
def test_a_frozen_parameter_keeps_its_value(ours, theirs, options):
    used, unused = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = ours([used, unused], **options)
    used.grad = torch.ones(2)
    optimizer.step()
    assert unused.tolist() == [1.0, 1.0] and used.tolist() != [1.0, 1.0]


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=NAMES)
@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_sparse_and_complex_gradients_are_refused_before_anything_moves(ours, theirs, options, kind):
    dense = torch.nn.Parameter(torch.ones(2))
    odd = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64 if kind == "complex" else torch.float32))
    dense.grad = torch.ones(2)
    odd.grad = torch.ones_like(odd).to_sparse() if kind == "sparse" else torch.ones_like(odd)
    optimizer = ours([dense, odd], **options)
    with pytest.raises(RuntimeError, match=f"{ours.__name__} was given a {kind} gradient of shape .2,.; only dense"):
        optimizer.step()
    assert dense.tolist() == [1.0, 1.0]


def test_a_pickle_from_before_there_was_maximize_means_downwards():
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = lm.SGD([parameter], lr=0.5)
    state = optimizer.__getstate__()
    del state["param_groups"][0]["maximize"]
    optimizer.__setstate__(state)
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert parameter.item() == 0.5


@pytest.mark.parametrize("decay", [0.5, 1.0])
@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=NAMES)
def test_weight_decay_is_torchs(ours, theirs, options, decay):
    left, right = (torch.nn.Parameter(torch.linspace(-2, 2, 9)) for _ in range(2))
    theirs_options = options | {"lr": 0.1, "weight_decay": decay, "foreach": False}
    for parameter, optimizer in (
        (left, ours([left], **options | {"lr": 0.1, "weight_decay": decay})), (right, theirs([right], **theirs_options)),
    ):  # fmt: skip
        for step in range(2):
            parameter.grad = torch.full((9,), 0.5 + step)
            optimizer.step()
    assert torch.equal(left, right)


def test_groups_are_checked_too_and_a_refused_group_is_not_added():
    optimizer = lm.Adam([torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match=r"lr must be a finite number of at least 0, got -3"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": -3})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "name"),
    [
        (lm.SGD, torch.optim.SGD, {"momentum": 0.9}, "momentum is 0.9"),
        (lm.Momentum, torch.optim.SGD, {}, "momentum is 0"),
        (lm.Adam, torch.optim.Adam, {"amsgrad": True}, "amsgrad is True; Adam supports only amsgrad=False"),
        (lm.Adam, torch.optim.AdamW, {}, "decoupled_weight_decay is True"),
    ],
)
def test_a_state_that_means_something_else_is_refused(ours, theirs, options, name):
    parameter = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=name):
        ours([parameter]).load_state_dict(theirs([parameter], **options).state_dict())


def test_closure_scheduler_zero_grad_and_deepcopy_work():
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = lm.SGD([parameter], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    assert optimizer.step(closure).item() == 1.0 and parameter.item() == 0.0
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert copy.deepcopy(optimizer).param_groups[0]["lr"] == 0.25
    optimizer.zero_grad()
    assert parameter.grad is None
    assert lm.SGD([parameter]).step() is None


def test_an_optimizer_without_a_rule_says_so():
    class Nothing(lm.Optimizer):
        pass

    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    with pytest.raises(TypeError, match="Nothing has no update rule"):
        Nothing([parameter], lr=0.1, weight_decay=0, maximize=False).step()


@pytest.mark.parametrize("ours", [ours for ours, _, _ in PAIRS], ids=NAMES)
def test_every_update_fits_on_a_screen(ours):
    assert len(inspect.getsource(ours.update).splitlines()) < 25


def unit_steps(optimizer, parameter, count, scheduler):
    for _ in range(count):
        parameter.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
    return parameter.item()


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=NAMES)
def test_a_one_cycle_schedule_is_followed_as_torch_follows_it(ours, theirs, options):
    """Momentum or beta1 is cycled too, where there is one."""
    ends, cycles = [], ours not in (lm.SGD, lm.AdaGrad)
    for make, loop in ((ours, {}), (theirs, {"foreach": False})):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer = make([parameter], lr=0.1, **options, **loop)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20, cycle_momentum=cycles)
        ends.append(unit_steps(optimizer, parameter, 19, scheduler))
    assert ends[0] == ends[1]


def test_sgd_refuses_the_momentum_that_a_schedule_would_cycle():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = lm.SGD([parameter], lr=0.1)
    with pytest.raises(ValueError, match="must support momentum"):
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20)
    optimizer.param_groups[0]["momentum"] = 0.95
    parameter.grad = torch.ones(1)
    with pytest.raises(ValueError, match=r"momentum is 0.95; SGD supports only momentum=0"):
        optimizer.step()
    assert parameter.item() == 0


@pytest.mark.parametrize(("name", "value"), [("lr", math.nan), ("lr", -0.1), ("weight_decay", math.inf), ("eps", -1)])
def test_what_is_changed_after_the_start_is_checked_at_the_step(name, value):
    first, second = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))
    optimizer = lm.AdamW([{"params": [first]}, {"params": [second]}])
    first.grad, second.grad = torch.ones(1), torch.ones(1)
    optimizer.param_groups[1][name] = value
    with pytest.raises(ValueError, match=f"{name} must be a finite number of at least 0, got {value}"):
        optimizer.step()
    assert first.item() == second.item() == 0


@pytest.mark.parametrize("number", [np.float32(0.25), np.float64(0.25), np.int64(1)], ids=lambda n: type(n).__name__)
def test_numbers_of_numpy_are_numbers(number):
    results = []
    for rate in (number, number.item()):
        parameter = torch.nn.Parameter(torch.zeros(3))
        parameter.grad = torch.ones(3)
        optimizer = lm.AdamW([parameter], lr=rate, weight_decay=rate, betas=(np.float32(0.5), np.float64(0.25)))
        optimizer.step()
        results.append(parameter.tolist())
        assert {type(value) for value in optimizer.param_groups[0]["betas"]} == {float}
        assert type(optimizer.param_groups[0]["lr"]) is type(number.item())
    assert results[0] == results[1]


def test_a_refusal_is_one_short_sentence():
    model = torch.nn.Linear(200, 200)
    with pytest.raises(ValueError, match=r"lr must be a finite number of at least 0, got \[Parameter") as caught:
        lm.SGD(model.parameters(), list(model.parameters()))
    assert len(str(caught.value)) < 200
    for options in ({"maximize": "no"}, {"nesterov": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be True or False"):
            lm.Momentum(model.parameters(), **options)


@pytest.mark.parametrize("name", ["AdaGrad", "RMSProp", "Adam", "AdamW"])
@pytest.mark.parametrize("default", [torch.float32, torch.float64, torch.bfloat16])
def test_a_step_counter_is_torchs_under_any_default_dtype(name, default):
    theirs = getattr(torch.optim, {"AdaGrad": "Adagrad", "RMSProp": "RMSprop"}.get(name, name))
    usual, counters = torch.get_default_dtype(), []
    torch.set_default_dtype(default)
    try:
        for make in (getattr(lm, name), theirs):
            parameter = torch.nn.Parameter(torch.zeros(2))
            parameter.grad = torch.ones(2)
            optimizer = make([parameter])
            optimizer.step()
            counters.append(optimizer.state[parameter]["step"])
    finally:
        torch.set_default_dtype(usual)
    ours, expected = counters
    assert ours.dtype == expected.dtype and ours.shape == expected.shape and ours == expected == 1
