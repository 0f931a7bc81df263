import math
import pickle

import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm
from cs336kit.lm.mlp import ACTIVATIONS, MLP

pytestmark = pytest.mark.torch

close = torch.testing.assert_close


@pytest.mark.parametrize(("ours", "theirs"), [(lm.gelu, F.gelu), (lm.silu, F.silu)])
def test_activations_equal_torch_in_value_and_gradient(ours, theirs):
    x = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    close(ours(x), theirs(x))
    close(torch.autograd.grad(ours(x).sum(), x), torch.autograd.grad(theirs(x).sum(), x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_mlp(bias, approximate):
    module = lm.GELUMLP(4, 10, bias=bias, approximate=approximate)
    reference = torch.nn.Sequential(
        torch.nn.Linear(4, 10, bias=bias), torch.nn.GELU(approximate), torch.nn.Linear(10, 4, bias=bias)
    )
    names = {"up": "0", "down": "2"}
    reference.load_state_dict(
        {names[k.split(".")[0]] + "." + k.split(".")[1]: v for k, v in module.state_dict().items()}
    )
    x = torch.randn(2, 3, 4)
    assert torch.equal(module(x), reference(x))
    assert sum(p.numel() for p in module.parameters()) == 2 * 40 + 14 * bias


@pytest.mark.parametrize("bias", [True, False])
def test_swiglu(bias):
    module = lm.SwiGLU(4, 10, bias=bias)
    x = torch.randn(2, 3, 4)
    close(module(x), module.down(lm.silu(module.gate(x)) * module.up(x)))
    assert sum(p.numel() for p in module.parameters()) == 3 * 40 + 24 * bias


#: Name of an MLP → what transformers calls its activation, and whether it has a gate.
OF_TRANSFORMERS = {
    "gelu": ("gelu", False), "gelu_tanh": ("gelu_pytorch_tanh", False), "gelu_new": ("gelu_new", False), "relu": ("relu", False),
    "relu2": ("relu2", False), "silu": ("silu", False), "swiglu": ("silu", True), "geglu": ("gelu", True),
    "geglu_tanh": ("gelu_pytorch_tanh", True), "geglu_new": ("gelu_new", True), "reglu": ("relu", True),
    "relu2glu": ("relu2", True),
}  # fmt: skip


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_the_activation_of_every_mlp_is_that_of_transformers(kind):
    from transformers.activations import ACT2FN

    name, gated = OF_TRANSFORMERS[kind]
    module, act = MLP(4, 10, kind=kind, dtype=torch.float64), ACT2FN[name]
    x = torch.randn(50, 4, dtype=torch.float64) * 3
    z = act(module.gate(x)) * module.up(x) if gated else act(module.up(x))
    close(module(x), module.down(z))


@pytest.mark.parametrize("make", [lm.GELUMLP, lm.SwiGLU])
def test_a_plain_mlp_starts_as_the_one_of_its_name(make):
    torch.manual_seed(0)
    module = make(4, 10, bias=True)
    torch.manual_seed(0)
    named = MLP(4, 10, kind=make.__name__.removesuffix("MLP").lower(), biases=("gate", "up", "down"))
    ours, theirs = module.state_dict(), named.state_dict()
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("make", [lm.GELUMLP, lm.SwiGLU])
def test_dropout_only_in_training(make):
    module, x = make(4, 10, dropout=0.5), torch.randn(20, 4)
    assert (module(x) == 0).any()
    module.eval()
    assert not (module(x) == 0).any()


def experts_and_mixture(experts_per_token=2, experts=4):
    parts = [lm.SwiGLU(6, 10) for _ in range(experts)]
    return parts, lm.MixtureOfExperts(6, parts, experts_per_token=experts_per_token).double()


def test_mixture_equals_every_token_sent_by_hand():
    parts, mixture = experts_and_mixture()
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    rows = []
    for token in x.reshape(-1, 6):
        scores = mixture.router(token)
        best = sorted(range(4), key=lambda e: -scores[e])[:2]
        weights = scores[best].softmax(dim=0)
        rows.append(sum(weight * parts[e](token) for weight, e in zip(weights, best, strict=True)))
    expected = torch.stack(rows).view(2, 5, 6)
    close(mixture(x), expected)
    inputs = [x, *mixture.parameters()]
    ours = torch.autograd.grad(mixture(x).square().sum(), inputs)
    for a, b in zip(ours, torch.autograd.grad(expected.square().sum(), inputs, allow_unused=True), strict=True):
        close(a, torch.zeros_like(a) if b is None else b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_routing_weights_are_computed_in_fp32_at_least_and_applied_in_the_dtype_of_x(dtype):
    _, mixture = experts_and_mixture()
    mixture, x, kept = mixture.to(dtype), torch.randn(3, 6, dtype=dtype), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        out = mixture(x)
    sums = [tensor for tensor in kept if tensor.shape == (3, 2) and torch.allclose(tensor.sum(-1), tensor.new_ones(3))]
    assert out.dtype == dtype
    assert torch.promote_types(dtype, torch.float32) in {tensor.dtype for tensor in sums if tensor.is_floating_point()}


def test_one_expert_that_sees_everything_is_a_plain_mlp():
    parts, mixture = experts_and_mixture(experts_per_token=1, experts=1)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    close(mixture(x), parts[0](x))


def test_experts_without_tokens_are_no_problem():
    _, mixture = experts_and_mixture(experts_per_token=1, experts=16)
    mixture(torch.randn(1, 2, 6, dtype=torch.float64)).sum().backward()
    assert all(p.grad is not None for p in mixture.parameters())


def test_mixture_refuses():
    with pytest.raises(ValueError, match="experts_per_token=3 is more than the 2 experts"):
        experts_and_mixture(experts_per_token=3, experts=2)


def test_a_shared_expert_is_added_whole_or_as_its_gate_says():
    mixture, shared, gate = (torch.nn.Linear(4, width) for width in (4, 4, 1))
    # The sigmoid of ln 3 is 3/4.
    torch.nn.init.zeros_(gate.weight)
    torch.nn.init.constant_(gate.bias, math.log(3))
    x = torch.randn(2, 3, 4)
    close(lm.mlp.SharedExpert(mixture, shared)(x), mixture(x) + shared(x))
    close(lm.mlp.SharedExpert(mixture, shared, gate=gate)(x), mixture(x) + 0.75 * shared(x))


@pytest.mark.parametrize("kind", ["relu2", "relu2glu"])
def test_a_module_with_any_activation_can_be_pickled(kind):
    module, x = MLP(4, 8, kind=kind), torch.randn(3, 4)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
