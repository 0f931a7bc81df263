import pytest
import torch

from cs336kit import measure
from cs336kit.predict.breakdown import Breakdown

pytestmark = pytest.mark.torch


def test_nothing_before_the_first_step_and_all_of_it_after():
    parameter = torch.nn.Parameter(torch.ones(3, 5))
    optimizer = torch.optim.Adam([parameter])
    assert measure.state_bytes(optimizer) == Breakdown({}, unit="bytes")
    parameter.grad = torch.ones(3, 5)
    optimizer.step()
    assert measure.state_bytes(optimizer) == Breakdown({"exp_avg": 60, "exp_avg_sq": 60, "step": 4}, unit="bytes")


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.bfloat16, 2), (torch.float16, 2)])
def test_each_state_counts_in_its_own_type(dtype, size):
    parameter = torch.nn.Parameter(torch.ones(3, 5, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter])
    optimizer.step()
    found = dict(measure.state_bytes(optimizer))
    assert found == {"exp_avg": 15 * size, "exp_avg_sq": 15 * size, "step": 4}


def test_a_parameter_without_gradient_costs_nothing():
    used, unused = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(100))
    optimizer = torch.optim.Adam([used, unused])
    used.grad = torch.ones(4)
    optimizer.step()
    assert measure.state_bytes(optimizer).total == 2 * 16 + 4


def test_the_states_of_all_parameters_add_up():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(size)) for size in (3, 5, 7)], momentum=0.9)
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert dict(measure.state_bytes(optimizer)) == {"momentum_buffer": 4 * (3 + 5 + 7)}


def test_tensors_in_lists_count():
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.LBFGS([parameter], max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = (parameter**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[parameter]
    assert measure.state_bytes(optimizer)["old_dirs"] == 8 * len(state["old_dirs"]) > 0


def test_tensors_in_tuples_and_dicts_count():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    state |= {"pair": (torch.ones(2), torch.ones(3)), "named": {"left": torch.ones(4)}, "count": 3}
    assert dict(measure.state_bytes(optimizer)) == {"pair": 20, "named": 16}


def test_anything_else_is_refused():
    with pytest.raises(ValueError, match=r"must be a torch.optim.Optimizer, got Linear"):
        measure.state_bytes(torch.nn.Linear(2, 2))
