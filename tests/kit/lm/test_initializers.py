import inspect
import math

import pytest
import torch

from cs336kit import lm, predict
from cs336kit.lm import initializers

pytestmark = pytest.mark.torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
SHAPES = [(6, 4), (128, 32), (8, 3, 5, 5)]
DTYPES = (torch.float32, torch.bfloat16)
PAIRS = [
    ("normal_", {"mean": 0.5, "std": 0.02}),
    ("uniform_", {"a": -0.3, "b": 0.7}),
    ("xavier_normal_", {}),
    ("xavier_normal_", {"gain": 2.0}),
    ("xavier_uniform_", {}),
    ("kaiming_normal_", {}),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "relu"}),
    ("kaiming_uniform_", {"a": math.sqrt(5)}),
    ("kaiming_uniform_", {"nonlinearity": "tanh", "mode": "fan_out"}),
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "options"), PAIRS)
def test_equal_to_torch(name, options, shape, dtype):
    ours = getattr(lm, name)(torch.empty(shape, dtype=dtype), **options, generator=generator())
    theirs = getattr(torch.nn.init, name)(torch.empty(shape, dtype=dtype), **options, generator=generator())
    assert torch.equal(ours, theirs)


@pytest.mark.skipif(TORCH < (2, 12), reason="torch before 2.12 samples the truncated normal in another way")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"std": 0.02}, {"std": 3.0}, {"mean": 1.0, "std": 0.5, "a": 0.0, "b": 1.2}])
def test_trunc_normal_is_torchs(options, dtype):
    ours = lm.trunc_normal_(torch.empty(64, 64, dtype=dtype), **options, generator=generator())
    theirs = torch.nn.init.trunc_normal_(torch.empty(64, 64, dtype=dtype), **options, generator=generator())
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("sigmas", [1.0, 2.0, 3.0])
def test_trunc_normal_has_the_predicted_standard_deviation_and_no_value_on_the_edge(sigmas):
    bounds = {"std": 0.05, "a": -0.05 * sigmas, "b": 0.05 * sigmas}
    values = lm.trunc_normal_(torch.empty(1000, 1000), **bounds, generator=generator())
    assert values.abs().max().item() < bounds["b"]
    assert values.std().item() == pytest.approx(predict.truncated_std(**bounds), rel=5e-3)


def test_the_generator_of_the_process_is_the_default():
    torch.manual_seed(3)
    ours = lm.xavier_uniform_(torch.empty(4, 4))
    torch.manual_seed(3)
    assert torch.equal(ours, torch.nn.init.xavier_uniform_(torch.empty(4, 4)))


def test_a_parameter_and_a_transposed_view_are_filled_in_place():
    weight = torch.nn.Parameter(torch.zeros(400, 100))
    assert lm.lecun_normal_(weight, generator=generator()) is weight and weight.is_leaf
    assert weight.std().item() == pytest.approx(1 / math.sqrt(100), rel=0.02)
    by_columns = torch.zeros(100, 400)  # used as x @ w: fan_in is 100, the first dimension
    lm.lecun_normal_(by_columns.T, generator=generator())
    assert by_columns.std().item() == pytest.approx(1 / math.sqrt(100), rel=0.02)


def test_residual_normal_divides_by_the_root_of_two_layers():
    scaled = lm.residual_normal_(torch.empty(50, 50), layers=8, std=0.02, generator=generator())
    assert torch.equal(scaled, torch.nn.init.normal_(torch.empty(50, 50), std=0.02 / 4, generator=generator()))


def test_gains_are_torchs():
    for name in ("linear", "sigmoid", "tanh", "relu", "selu"):
        assert lm.gain(name) == torch.nn.init.calculate_gain(name)
    assert lm.gain("leaky_relu", slope=0.2) == torch.nn.init.calculate_gain("leaky_relu", 0.2)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda w: lm.normal_(w, std=-1), "std must be a finite number above 0, got -1"),
        (lambda w: lm.normal_(w, std=float("nan")), "std must be"),
        (lambda w: lm.uniform_(w, a=1, b=0), "a=1 is above b=0"),
        (lambda w: lm.kaiming_normal_(w, mode="fan_sum"), "unknown mode 'fan_sum'.*fan_in, fan_out"),
        (lambda w: lm.kaiming_normal_(w, nonlinearity="gelu"), "unknown nonlinearity 'gelu'"),
        (lambda w: lm.lecun_normal_(w[0]), r"a weight of shape \(3,\) has no fans"),
        (lambda w: lm.trunc_normal_(w, a=5.0, b=6.0), "cut 100.0% of a normal"),
        (lambda w: lm.trunc_normal_(w, a=1.0, b=-1.0), "a=1.0 must be below b=-1.0"),
        (lambda w: lm.residual_normal_(w, layers=0), "layers must be a positive whole number"),
    ],
)
def test_refusals(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call(torch.empty(2, 3))


def test_what_is_left_out_is_what_torch_and_gpt2_take():
    """A default is a number that nobody writes, and so nobody reads."""

    def default(function, name):
        return inspect.signature(function).parameters[name].default

    ours = initializers
    for name, parameters in {"normal_": ("mean", "std"), "uniform_": ("a", "b"), "xavier_normal_": ("gain",)}.items():
        for parameter in parameters:
            theirs = default(getattr(torch.nn.init, name), parameter)
            assert default(getattr(ours, name), parameter) == theirs, (name, parameter)
    assert ours.gain("leaky_relu") == torch.nn.init.calculate_gain("leaky_relu")
    assert default(ours.residual_normal_, "std") == 0.02  # GPT-2's, also in the config.json of transformers
