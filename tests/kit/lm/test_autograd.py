"""The scalar engine against torch.autograd: same values, same gradients, on expressions nobody wrote by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit.lm import Scalar

pytestmark = pytest.mark.torch

UNARY = {
    "exp": (lambda s: (s * 0.1).exp(), lambda t: (t * 0.1).exp()),
    "log": (lambda s: (s * s + 1).log(), lambda t: (t * t + 1).log()),
    "sin": (lambda s: s.sin(), lambda t: t.sin()),
    "relu": (lambda s: s.relu(), lambda t: t.relu()),
    "sigmoid": (lambda s: s.sigmoid(), lambda t: t.sigmoid()),
    "neg": (lambda s: -s, lambda t: -t),
    "square": (lambda s: s**2, lambda t: t**2),
    "root": (lambda s: (s * s + 1) ** 0.5, lambda t: (t * t + 1) ** 0.5),
    "one": (lambda s: s**0, lambda t: t**0),
    "right constants": (lambda s: 2 - 3 * s + 1, lambda t: 2 - 3 * t + 1),
    "reciprocal": (lambda s: 1 / (s * s + 1), lambda t: 1 / (t * t + 1)),
}
BINARY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "×": lambda a, b: a * b,
    "÷": lambda a, b: a / (b * b + 1),
}
# A program is a list of steps; each picks earlier results, so that fan-out and dead branches occur all the time.
STEP = st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 30), st.integers(0, 30))
NUMBER = st.floats(-3, 3, allow_nan=False)


def run(leaves, program, table):
    values = list(leaves)
    for name, i, j in program:
        a, b = values[i % len(values)], values[j % len(values)]
        values.append(BINARY[name](a, b) if name in BINARY else UNARY[name][table](a))
    return sum(values[1:], values[0])


@settings(max_examples=300, deadline=None)
@given(st.lists(NUMBER, min_size=1, max_size=4), st.lists(STEP, max_size=7))
def test_random_expressions_have_torchs_value_and_gradients(numbers, program):
    ours = [Scalar(x) for x in numbers]
    theirs = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in numbers]
    y, reference = run(ours, program, 0), run(theirs, program, 1)
    if not math.isfinite(reference.item()) or abs(reference.item()) > 1e12:
        return
    y.backward()
    reference.backward()
    assert y.value == pytest.approx(reference.item(), rel=1e-9, abs=1e-9)
    for scalar, tensor in zip(ours, theirs, strict=True):
        assert scalar.grad == pytest.approx(tensor.grad.item(), rel=1e-7, abs=1e-7)


def test_fan_out_sums_the_branches():
    y = Scalar(0.7)
    (y.sin() + y.exp()).backward()
    assert y.grad == math.cos(0.7) + math.exp(0.7)


def test_a_number_used_twice_in_one_product_counts_twice():
    x = Scalar(3.0)
    (x * x).backward()
    assert x.grad == 6.0


def test_a_second_backward_adds_to_the_leaves_as_in_torch():
    x, t = Scalar(3.0), torch.tensor(3.0, requires_grad=True)
    loss, reference = 2 * x**2, 2 * t**2
    loss.backward()
    loss.backward()
    reference.backward(retain_graph=True)
    reference.backward()
    assert x.grad == t.grad.item() == 24.0


def test_a_leaf_is_its_own_derivative():
    x = Scalar(5)
    x.backward()
    assert x.grad == 1.0


def test_a_diamond_is_visited_once_per_edge():
    x = Scalar(1.0)
    node = x
    for _ in range(60):  # 2⁶⁰ paths, 121 nodes
        node = node + node
    node.backward()
    assert x.grad == 2.0**60


def test_long_chains_need_no_recursion():
    x = Scalar(1.0)
    total = x
    for _ in range(20_000):
        total = total + 1.0
    total.backward()
    assert x.grad == 1.0


def test_sigmoid_survives_large_inputs():
    for value in (-1e6, -1e3, 1e3, 1e6):
        x = Scalar(value)
        y = x.sigmoid()
        y.backward()
        assert y.value == torch.sigmoid(torch.tensor(value, dtype=torch.float64)).item()
        assert x.grad == 0.0


def test_a_scalar_power_is_refused_in_a_sentence():
    with pytest.raises(TypeError, match=r"plain number only.*exp\(\)"):
        Scalar(2.0) ** Scalar(3.0)


def test_repr_names_the_node():
    assert repr(Scalar(2, name="x")) == "Scalar(x: value=2, grad=0)"
    assert repr(Scalar(2) + 1) == "Scalar(+: value=3, grad=0)"


def test_corners_of_relu_powers_and_sigmoid():
    for x, function in ((0.0, Scalar.relu), (-1.0, Scalar.relu), (0.0, lambda x: x**0)):
        leaf = Scalar(x)
        function(leaf).backward()
        assert leaf.grad == 0
    assert Scalar(-699.0).sigmoid().value == pytest.approx(math.exp(-699), rel=1e-9)
    assert Scalar(-800.0).sigmoid().value == 0
    leaf = Scalar(3.0)
    (-leaf).backward()
    assert leaf.grad == -1 and (1 - leaf).value == -2 and (6 / leaf).value == 2
