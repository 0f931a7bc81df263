import math
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cs336kit import predict

pytestmark = pytest.mark.torch

RUN = {"tokens": 15e12, "accelerators": 1024, "peak_flops_per_second": 989.5e12, "mfu": 0.5}
NONSENSE = [math.nan, math.inf, -1, 0, True, "70B", None]


def test_predict_imports_without_torch_or_numpy():
    code = "import sys, cs336kit.predict; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_70b_on_15t_tokens_takes_144_days():
    assert round(predict.training_days(70e9, **RUN), 1) == 143.9
    assert predict.training_days(70e9, **RUN) == pytest.approx(6.3e24 / (1979e12 / 2 * 0.5 * 1024 * 86400), rel=1e-12)


def test_days_grow_and_shrink_as_they_should():
    days = predict.training_days(70e9, **RUN)
    assert predict.training_days(140e9, **RUN) == pytest.approx(2 * days)
    assert predict.training_days(70e9, **{**RUN, "accelerators": 512}) == pytest.approx(2 * days)
    assert predict.training_days(70e9, **{**RUN, "mfu": 0.25}) == pytest.approx(2 * days)


@pytest.mark.parametrize("argument", ["parameters", *RUN])
@pytest.mark.parametrize("value", NONSENSE)
def test_training_days_refuses_nonsense(argument, value):
    arguments = {"parameters": 70e9, **RUN, argument: value}
    with pytest.raises(ValueError, match=f"{argument} must be"):
        predict.training_days(**arguments)


def test_six_nd_is_exact():
    assert predict.six_nd(70e9, tokens=15e12) == 63 * 10**23
    assert predict.six_nd(10**30 + 1, tokens=1) == 6 * (10**30 + 1)


def test_six_nd_counts_the_products_of_a_chain_of_linear_layers():
    tokens, d_model = 32, 16
    layer = torch.nn.Linear(d_model, d_model, bias=False)
    products = 3 * predict.matmul_flops(tokens, d_model, d_model)
    assert predict.six_nd(layer.weight.numel(), tokens=tokens) == products


def test_matmul_flops_counts_every_multiply_and_add_of_the_loop():
    rows, inner, columns, flops = 3, 4, 5, 0
    for _ in range(rows):
        for _ in range(columns):
            for _ in range(inner):
                flops += 2
    assert predict.matmul_flops(rows, inner, columns) == flops
    assert predict.matmul_flops(rows, inner, columns, batch=7) == 7 * flops


def test_matmul_flops_equals_torch_counter():
    counter = FlopCounterMode(display=False)
    with counter:
        torch.ones(6, 3, 4) @ torch.ones(6, 4, 5)
    assert predict.matmul_flops(3, 4, 5, batch=6) == counter.get_total_flops()


@pytest.mark.parametrize("value", [*NONSENSE, 2.0])
def test_matmul_flops_refuses_nonsense(value):
    with pytest.raises(ValueError, match="K must be"):
        predict.matmul_flops(2, value, 2)


def test_delivered_flops_in_a_week():
    week = predict.delivered_flops(8, peak_flops_per_second=989.5e12, days=7)
    assert week == 8 * 989.5e12 * 604_800
    assert predict.delivered_flops(8, peak_flops_per_second=989.5e12, days=7, mfu=0.5) == week / 2


@pytest.mark.parametrize("value", NONSENSE)
def test_delivered_flops_refuses_nonsense(value):
    with pytest.raises(ValueError, match="days must be"):
        predict.delivered_flops(8, peak_flops_per_second=1e15, days=value)


def test_largest_model():
    assert predict.largest_model(8, memory_bytes=80e9, bytes_per_parameter=16) == 40 * 10**9
    assert predict.largest_model(8, memory_bytes=80e9, bytes_per_parameter=16, sharded=False) == 5 * 10**9
    assert predict.largest_model(1, memory_bytes=31, bytes_per_parameter=16) == 1


@pytest.mark.parametrize("value", NONSENSE)
def test_largest_model_refuses_nonsense(value):
    with pytest.raises(ValueError, match="memory_bytes must be"):
        predict.largest_model(8, memory_bytes=value, bytes_per_parameter=16)
    with pytest.raises(ValueError, match="bytes_per_parameter must be"):
        predict.largest_model(8, memory_bytes=80e9, bytes_per_parameter=value)
    if value is not True:
        with pytest.raises(ValueError, match="sharded must be True or False"):
            predict.largest_model(8, memory_bytes=80e9, bytes_per_parameter=16, sharded=value)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("sgd", lambda p: torch.optim.SGD(p)),
        ("momentum", lambda p: torch.optim.SGD(p, momentum=0.9)),
        ("adagrad", lambda p: torch.optim.Adagrad(p)),
        ("rmsprop", lambda p: torch.optim.RMSprop(p)),
        ("adam", lambda p: torch.optim.Adam(p)),
        ("adamw", lambda p: torch.optim.AdamW(p)),
    ],
)
def test_bytes_per_parameter_equals_what_torch_keeps(name, make, precision):
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    weight = torch.nn.Parameter(torch.ones(10, 10, dtype=dtype))
    optimizer = make([weight])
    weight.sum().backward()
    optimizer.step()
    states = [v for v in optimizer.state[weight].values() if torch.is_tensor(v) and v.shape == weight.shape]
    kept = [weight, weight.grad, *states]
    parts = predict.bytes_per_parameter(name, precision=precision)
    assert sum(tensor.nbytes for tensor in kept) == parts.total * weight.numel()
    assert sum(tensor.nbytes for tensor in states) == parts["optimizer state"] * weight.numel()


def test_bytes_per_parameter_of_mixed_precision():
    assert predict.bytes_per_parameter("adamw").total == 16
    assert predict.bytes_per_parameter("adamw", precision="autocast").total == 16
    assert predict.bytes_per_parameter("adamw", precision="mixed").total == 16
    assert predict.bytes_per_parameter("adamw", precision="mixed-fp32-gradients").total == 18
    assert predict.bytes_per_parameter("sgd", precision="bf16").total == 4


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="unknown optimizer 'adamx'"):
        predict.bytes_per_parameter("adamX")
    with pytest.raises(ValueError, match=r"unknown precision 'fp8'.*Known: fp32, autocast"):
        predict.bytes_per_parameter("adamw", precision="fp8")
    assert list(predict.bytes_per_parameter("adamw", precision="mixed")) == [
        "parameters", "gradients", "master weights", "optimizer state",
    ]  # fmt: skip
