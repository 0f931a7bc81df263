import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from cs336kit.measure import saved_activation_bytes

pytestmark = pytest.mark.torch


def needs_grad(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_a_residual_addition_keeps_nothing_and_a_product_its_factors():
    a, b = needs_grad(3, 5), needs_grad(3, 5)
    assert saved_activation_bytes(lambda: a + b).total == 0
    assert saved_activation_bytes(lambda: a * b).total == 2 * 4 * 15


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda x: x.exp(), 1),
        (lambda x: x.softmax(-1), 1),
        (lambda x: F.gelu(x), 1),
        (lambda x: x.relu().relu(), 2),
        (lambda x: x * x, 1),
        (lambda x: x * x.T.T, 1),
        (lambda x: x.sum(), 0),
        (lambda x: (x * 2).transpose(0, 1).reshape(-1), 0),
        (lambda x: F.dropout(x, 0.5), 1),
    ],
)
def test_each_storage_counts_once(function, tensors):
    x = needs_grad(4, 4)
    assert saved_activation_bytes(lambda: function(x)).total == tensors * 4 * 16


def test_a_view_keeps_its_whole_storage():
    x = needs_grad(10, 4)
    assert saved_activation_bytes(lambda: x[:2].exp() + x[:2].pow(2)).total == 4 * 8 + 4 * 40


def test_what_is_dropped_before_the_end_is_not_kept():
    x = needs_grad(6)

    def half_used():
        x.sin().exp()
        return x.cos()

    assert saved_activation_bytes(half_used).total == 4 * 6


def test_parameters_buffers_and_token_ids_are_listed_but_not_counted():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(7, 4)
            self.scale = nn.Buffer(torch.ones(4)) if hasattr(nn, "Buffer") else None
            self.linear = nn.Linear(4, 4)

        def forward(self, ids):
            return self.linear(self.table(ids) * self.scale)

    model, ids = Model(), torch.tensor([[1, 2, 3]])
    kept = saved_activation_bytes(lambda: model(ids))
    assert kept.total == 4 * 3 * 4
    assert {t.role for t in kept.tensors} == {"indices", "buffer", "activation", "parameter"}
    linear = next(t for t in kept.tensors if t.role == "activation")
    assert (linear.operation, linear.module, linear.shape, linear.dtype) == ("linear", "linear", (3, 4), torch.float32)
    assert "buffer" not in repr(kept.table()) and "buffer" in repr(kept.table(counted_only=False))
    assert kept.table()._repr_html_().count("<tr>") == 2


@pytest.mark.parametrize("way", ["by keyword", "in a list"])
def test_a_parameter_is_one_however_it_is_given(way):
    x, w = needs_grad(8, 16), torch.nn.Parameter(torch.randn(16, 4))
    call = {"by keyword": lambda: torch.matmul(x, other=w), "in a list": lambda: torch.linalg.multi_dot([x, w])}[way]
    kept = saved_activation_bytes(call)
    assert kept.total == 4 * 8 * 16 and {tensor.role for tensor in kept.tensors} == {"activation", "parameter"}


def test_a_sparse_factor_is_kept_in_its_parts():
    sparse, x = torch.eye(4).to_sparse(), needs_grad(4, 2)
    kept = saved_activation_bytes(lambda: torch.sparse.mm(sparse, x))
    assert [(t.role, t.bytes) for t in kept.tensors] == [("indices", 2 * 4 * 8), ("activation", 4 * 4)]


def test_the_table_tells_shapes_and_who_saves_again():
    x, factor = torch.ones(2, 3, requires_grad=True), torch.ones((), requires_grad=True)

    def loss():
        y = x.exp()
        return (y * y).sum() * factor

    head, first, second = repr(saved_activation_bytes(loss).table()).splitlines()[:3]
    assert head.endswith("dtype    bytes  role")
    assert first.split() == ["exp", "(3", "saves)", "2", "×", "3", "float32", "24", "activation"]
    assert second.split() == ["mul", "scalar", "float32", "4", "activation"]


def test_loose_parameters_are_recognized_and_frozen_tensors_can_be_left_out():
    weight, frozen, x = nn.Parameter(torch.randn(4, 4)), torch.randn(4, 4), needs_grad(3, 4)
    assert saved_activation_bytes(lambda: x @ weight).total == 4 * 12
    assert saved_activation_bytes(lambda: x @ frozen).total == 4 * 16
    assert saved_activation_bytes(lambda: x @ frozen, without=frozen).total == 0
    model = nn.Linear(4, 4)
    for without in (model, [model], model.parameters(), nn.Sequential(model)):
        assert saved_activation_bytes(lambda: F.linear(x, model.weight.data), without=without).total == 0
    norm = nn.BatchNorm1d(4)
    assert saved_activation_bytes(lambda: x * norm.running_var).total == 4 * 4
    assert saved_activation_bytes(lambda: x * norm.running_var, without=norm).total == 0


def test_parameters_that_are_replaced_meanwhile_lend_their_address_to_nobody():
    x = needs_grad(2, 8, 16)

    def converted():
        model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(8)])
        model(x)
        return model.bfloat16()(x.bfloat16())

    for _ in range(5):
        assert saved_activation_bytes(converted).total == 8 * 2 * 2 * 8 * 16


def test_checkpointing_keeps_inputs_and_names_them():
    layer, x = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)), needs_grad(5, 8)
    kept = saved_activation_bytes(lambda: checkpoint(layer, x, use_reentrant=False).exp())
    assert dict(kept.items()) == {"checkpoint": 4 * 40, "exp": 4 * 40}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


def test_an_autograd_function_is_named():
    x = needs_grad(3)
    assert dict(saved_activation_bytes(lambda: Square.apply(x)).items()) == {"autograd.Function": 12}


def test_fake_tensors_give_the_real_number():
    def kept():
        model, x = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), torch.randn(2, 6, 16)
        return saved_activation_bytes(lambda: model(x)).total

    real = kept()
    with FakeTensorMode():
        assert kept() == real > 0


def test_autocast_keeps_copies_of_the_weights():
    model, x = nn.Linear(4, 4, bias=False), needs_grad(3, 4)

    def cast():
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    assert saved_activation_bytes(cast).total == 2 * 12 + 2 * 16


def test_the_backward_pass_still_works_and_the_hooks_are_gone():
    x = needs_grad(4)
    outputs = []

    def loss():
        outputs.append((x.exp() * x).sum())
        return outputs[0]

    kept = saved_activation_bytes(loss)
    outputs[0].backward()
    torch.testing.assert_close(x.grad, (x.exp() * (1 + x)).detach())
    calls = []
    nn.Linear(2, 2)(torch.zeros(2)).register_hook(calls.append)
    assert pickle.loads(pickle.dumps(kept)) == kept


@pytest.mark.parametrize("result", [lambda: {"loss": needs_grad(2).exp()}, lambda: (1, [needs_grad(2).exp()])])
def test_results_in_containers_are_seen(result):
    assert saved_activation_bytes(result).total == 8


def test_what_cannot_be_watched_is_refused():
    x = needs_grad(2)
    with pytest.raises(
        TypeError, match=r"measure.saved_activation_bytes runs a function, .* but got a Tensor: put 'lambda:'"
    ):
        saved_activation_bytes(x.exp())
    with pytest.raises(TypeError, match=r"calls the function without arguments, but <lambda>\(x\) needs some"):
        saved_activation_bytes(lambda x: x)
    with pytest.raises(ValueError, match="without must be tensors and modules in a row, such as a tuple, got None"):
        saved_activation_bytes(lambda: x.exp(), without=None)
    with pytest.raises(ValueError, match="return the loss"):
        saved_activation_bytes(lambda: x.exp().sum().backward())
    with pytest.raises(ValueError, match="requires a gradient"):
        saved_activation_bytes(lambda: x.detach().exp())
