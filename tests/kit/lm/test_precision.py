import contextlib
import sys
import types

import pytest
import torch
from torch import nn

from cs336kit import predict
from cs336kit.lm import POLICIES, SGD, Float8Linear, LossScaler, precision

pytestmark = pytest.mark.torch


def one_step(name, **options):
    torch.manual_seed(0)
    policy = precision(name, **options)
    model = policy.prepare(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = SGD(model.parameters(), lr=0.01)
    x = torch.randn(16, 16).to(model[0].weight.dtype)  # not every torch draws the same numbers in bf16
    with policy.forward():
        out = model(x)
        loss = (out.float() ** 2).mean()
    policy.backward(loss)
    policy.unscale(optimizer)
    norm = torch.linalg.vector_norm(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    return model, out, norm, policy.step(optimizer)


TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
EXPECTED = {  # dtype of the output, of the parameters and of the gradients
    "fp32": (torch.float32, torch.float32),
    "tf32": (torch.float32, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
    "autocast": (torch.bfloat16, torch.float32),
    "autocast-fp16": (torch.float16, torch.float32),
    "fp8": (torch.bfloat16, torch.float32),
}


def test_every_policy_is_listed():
    assert set(POLICIES) == set(EXPECTED)


@pytest.mark.parametrize("name", set(POLICIES) & set(predict.POLICIES))
def test_a_name_means_the_same_where_bytes_are_predicted(name):
    kind = predict.POLICIES[name]
    policy, (activation, weights) = precision(name), EXPECTED[name]
    assert policy.types is kind and TORCH[kind.products] is activation
    assert TORCH[kind.weights] is TORCH[kind.gradients] is weights and kind.master_weights is None


@pytest.mark.parametrize("name", EXPECTED)
def test_a_step_in_every_precision(name):
    model, out, norm, stepped = one_step(name)
    activation, weights = EXPECTED[name]
    assert stepped is True and out.dtype == activation
    assert {p.dtype for p in model.parameters()} == {p.grad.dtype for p in model.parameters()} == {weights}
    reference = one_step("fp32")[2]
    assert abs(float(norm / reference) - 1) < (0.05 if name == "fp8" else 0.01)


def test_fp8_replaces_layers_and_the_others_do_not():
    assert type(one_step("fp8")[0][0]) is Float8Linear
    assert type(one_step("autocast")[0][0]) is nn.Linear


def test_fp16_survives_an_overflow():
    policy = precision("autocast-fp16", scaler=LossScaler(scale=2.0**20))
    parameter = nn.Parameter(torch.ones(1))
    policy.backward((parameter * 1e38).sum())
    optimizer = SGD([parameter], lr=1.0)
    policy.unscale(optimizer)
    assert policy.step(optimizer) is False and parameter.item() == 1
    state = policy.state_dict()
    other = precision("autocast-fp16")
    other.load_state_dict(state)
    assert other.scaler.factor == 2.0**19


@pytest.fixture(params=["none", "ieee", "tf32"])
def set_before(request):
    was = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = request.param
    yield torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = was


@pytest.mark.parametrize(("name", "during"), [("fp32", "ieee"), ("tf32", "tf32")])
def test_tf32_is_set_for_forward_and_backward_and_put_back(set_before, name, during):
    matmul, seen = torch.backends.cuda.matmul, []
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: seen.append(matmul.fp32_precision))
    policy = precision(name)
    with policy.forward():
        seen.append(matmul.fp32_precision)
        loss = (x * 2).sum()
    policy.backward(loss)
    assert seen == [during, during] and matmul.fp32_precision == set_before


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="autocast"):
        precision("half")
    with pytest.raises(ValueError, match="transformer_engine"):
        precision("fp8", engine="te")


def test_transformer_engine_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", None)
    with pytest.raises(ImportError, match="pip install"):
        precision("fp8", engine="transformer_engine")


@pytest.mark.parametrize("context", ["autocast", "fp8_autocast"])
def test_transformer_engine_behind_the_same_policy(monkeypatch, context):
    """The real library needs a GPU; what is tested is how the policy speaks to it, by its old and its new name."""
    entered = []

    @contextlib.contextmanager
    def autocast(*, enabled):
        entered.append(enabled)
        yield

    class TELinear(nn.Linear):
        def __init__(self, inputs, outputs, *, bias, params_dtype):
            super().__init__(inputs, outputs, bias=bias, dtype=params_dtype)

    module = types.ModuleType("transformer_engine.pytorch")
    module.Linear = TELinear
    setattr(module, context, autocast)
    monkeypatch.setitem(sys.modules, "transformer_engine", types.ModuleType("transformer_engine"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", module)
    model, *_, stepped = one_step("fp8", engine="transformer_engine")
    assert stepped and entered == [True] and type(model[0]) is TELinear
    torch.manual_seed(0)
    assert torch.allclose(model[0].weight, nn.Linear(16, 32).weight, atol=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_step_on_a_gpu(name):
    policy = precision(name, device="cuda")
    model = policy.prepare(nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)).cuda())
    optimizer = SGD(model.parameters(), lr=0.01)
    with policy.forward():
        loss = (model(torch.randn(32, 64, device="cuda", dtype=model[0].weight.dtype)).float() ** 2).mean()
    policy.backward(loss)
    policy.unscale(optimizer)
    assert policy.step(optimizer) and torch.isfinite(loss)


@pytest.mark.parametrize(("capability", "fits"), [((8, 6), False), ((8, 8), False), ((8, 9), True), ((9, 0), True)])
def test_fp8_takes_a_gpu_that_has_it(monkeypatch, capability, fits):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    policy, model = precision("fp8", device="cuda"), torch.nn.Sequential(torch.nn.Linear(16, 16))
    if fits:
        assert isinstance(policy.prepare(model)[0], Float8Linear)
    else:
        with pytest.raises(RuntimeError, match="a card has no fp8 units, which came with compute capability 8.9"):
            policy.prepare(model)


def test_a_rounding_that_was_inherited_is_inherited_again():
    matmul, overall = torch.backends.cuda.matmul, torch.backends.fp32_precision
    own = matmul.fp32_precision
    try:
        matmul.fp32_precision, torch.backends.fp32_precision = "none", "ieee"
        with precision("tf32").forward():
            assert matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "tf32"
        assert matmul.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert matmul.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision, matmul.fp32_precision = overall, "none" if own == overall else own
