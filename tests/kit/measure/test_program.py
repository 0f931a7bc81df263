import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from cs336kit import lm, measure
from cs336kit.predict import TransformerConfig
from tests.kit.measure.test_activations import Square

pytestmark = pytest.mark.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x))).relu_() + x


def fields(op):
    return op.place, op.name, op.flops, op.saved_bytes, op.output_bytes, op.backward_flops, op.backward_bytes


def test_every_number_of_a_small_net_by_hand():
    net, x = Net(), torch.randn(5, 8)
    traced = measure.program(net, lambda: net(x).sum(), backward=True)
    narrow, wide, weight, product = 4 * 5 * 8, 4 * 5 * 16, 4 * 8 * 16, 2 * 5 * 8 * 16
    assert [fields(op) for op in traced.operations if op.name != "autograd"] == [
        # the input needs no gradient: one product backward
        ("up", "linear", product, narrow, wide, product, weight),
        ("", "gelu", 0, wide, wide, 0, wide),
        ("down", "linear", product, wide, narrow, 2 * product, wide + weight),
        # in place: no storage of its own, and its result is kept
        ("", "relu", 0, narrow, 0, 0, narrow),
        ("", "add", 0, 0, narrow, 0, 0),
        ("", "sum", 0, 0, 4, 0, 0),
    ]
    (kept,) = next(op for op in traced.operations if op.name == "gelu").saved
    assert (kept.shape, kept.dtype, kept.bytes) == ((5, 16), torch.float32, wide)
    assert traced.flops == 2 * product and traced.backward_flops == 3 * product


def test_what_only_writes_in_place_is_listed_and_a_view_is_not():
    layer, x = nn.Linear(8, 16, bias=False), torch.randn(5, 8)
    traced = measure.program(layer, lambda: layer(x).add_(1).view(80).sum())
    # An addition keeps nothing for backward, and here it makes nothing either.
    assert [(op.name, op.saved_bytes, op.output_bytes) for op in traced.operations] == [
        ("linear", 4 * 5 * 8, 4 * 5 * 16), ("add", 0, 0), ("sum", 0, 4)
    ]  # fmt: skip


CONFIG = {"layers": 2, "d_model": 32, "heads": 4, "vocab": 50, "context": 16}
LLAMA = {**CONFIG, "kv_heads": 2, "mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "bias": "none", "d_ff": 48}
MODELS = {
    "gpt2, eager": (CONFIG, {"attention": "eager"}),
    "gpt2, sdpa": (CONFIG, {"attention": "sdpa"}),
    "gpt2, checkpointing": (CONFIG, {"attention": "eager", "checkpointing": True}),
    "llama": (LLAMA, {"attention": "sdpa"}),
    "mixtral": ({**LLAMA, "experts": 4, "experts_per_token": 2}, {"attention": "eager"}),
}


@pytest.mark.parametrize("precision", ["fp32", "autocast", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_equal_the_other_instruments(name, precision):
    sizes, how = MODELS[name]
    torch.manual_seed(0)
    model, x = lm.DecoderOnly(TransformerConfig(**sizes), **how), torch.randint(50, (2, 16))
    model = model.bfloat16() if precision == "bf16" else model

    def loss():
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            logits = model(x)
        return F.cross_entropy(logits.float().flatten(0, 1), x.flatten())

    def step():
        loss().backward()

    traced = measure.program(model, loss, backward=True)
    model.zero_grad()
    assert traced.saved_bytes == measure.saved_activation_bytes(loss).total
    assert traced.peak_bytes == measure.peak_bytes(step, device="cpu") and traced.peak_at
    model.zero_grad()
    by_pass = measure.flops(step, by="pass")
    assert (traced.flops, traced.backward_flops) == (by_pass["forward"], by_pass["backward"])


def test_what_checkpointing_repeats_is_added_to_the_operation_it_repeats():
    layers, x = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(3)]), torch.randn(5, 8, requires_grad=True)
    plain = measure.program(layers, lambda: layers(x).exp().sum(), backward=True)
    layers.zero_grad()
    again = measure.program(layers, lambda: checkpoint(layers, x, use_reentrant=False).exp().sum(), backward=True)
    one, linear = 2 * 5 * 8 * 8, lambda traced: [op.backward_flops for op in traced.operations if op.name == "linear"]
    assert linear(plain) == [2 * one] * 3
    # The last product's result is not needed, so it is not made again.
    assert linear(again) == [3 * one, 3 * one, 2 * one]
    assert [op.saved_bytes for op in again.operations if op.name == "checkpoint"] == [4 * 5 * 8]


def test_two_products_of_one_module_are_repeated_in_their_order():
    narrow, wide = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(32, 8))

    class Both(nn.Module):
        def forward(self, x):
            return F.linear(F.linear(x, narrow).exp(), wide).exp()

    both, x = Both(), torch.randn(5, 8, requires_grad=True)
    traced = measure.program(both, lambda: checkpoint(both, x, use_reentrant=False).sum(), backward=True)
    one = 2 * 5 * 8 * 8
    assert [op.backward_flops for op in traced.operations if op.name == "linear"] == [3 * one, 3 * 4 * one]


def test_what_is_repeated_twice_is_counted_twice():
    layer, x = nn.Linear(8, 8, bias=False), torch.randn(5, 8, requires_grad=True)

    def inner(x):
        return checkpoint(lambda x: layer(x).exp(), x, use_reentrant=False)

    def outer(x):
        return inner(x).exp()

    traced = measure.program(layer, lambda: checkpoint(outer, x, use_reentrant=False).sum(), backward=True)
    assert (traced.flops, traced.backward_flops) == (2 * 5 * 8 * 8, (2 + 2) * 2 * 5 * 8 * 8)


def test_a_function_of_ones_own_and_the_peak_of_forward():
    x = torch.randn(6, requires_grad=True)
    traced = measure.program(nn.Identity(), lambda: Square.apply(x * 3), backward=False)
    assert [(op.name, op.saved_bytes, op.output_bytes) for op in traced.operations] == [
        ("mul", 0, 24),
        ("mul", 0, 24),
        ("autograd.Function", 24, 0),
    ]
    assert (traced.peak_bytes, traced.peak_at) == (48, "mul")


def test_the_backward_pass_of_ones_own_function_is_in_its_row():
    layer, x = nn.Linear(6, 6, bias=False), torch.randn(6)
    traced = measure.program(layer, lambda: Square.apply(Square.apply(layer(x))).sum(), backward=True)
    assert [(op.name, op.saved_bytes, op.backward_bytes) for op in traced.operations] == [
        ("linear", 24, 144),
        ("mul", 0, 0),
        ("autograd.Function", 24, 24),
        ("mul", 0, 0),
        ("autograd.Function", 24, 24),
        ("sum", 0, 0),
        ("autograd", 0, 4),
    ]


def test_a_result_that_nobody_keeps_was_alive_when_its_operation_returned():
    x = torch.randn(6)

    def drops():
        x.exp()
        return x + 1

    traced = measure.program(nn.Identity(), drops)
    assert [(op.name, op.output_bytes) for op in traced.operations] == [("exp", 24), ("add", 24)]


def test_what_an_operation_makes_and_frees_is_not_its_result():
    x, targets = torch.randn(5, 8), torch.zeros(5, dtype=torch.int64)
    traced = measure.program(nn.Identity(), lambda: F.cross_entropy(x, targets))
    assert [(op.name, op.output_bytes) for op in traced.operations] == [("cross_entropy", 4)]
    three = torch.zeros(3, dtype=torch.uint8)
    assert [op.output_bytes for op in measure.program(nn.Identity(), lambda: three + 1).operations] == [3]
    nothing = measure.program(nn.Identity(), lambda: three.view(3, 1))
    assert (nothing.operations, nothing.peak_bytes, nothing.peak_at) == ((), 0, "")


def test_a_model_that_no_machine_holds():
    with FakeTensorMode():
        layer, x = nn.Linear(10**6, 10**6, bias=False), torch.randn(1, 10**6)
        traced = measure.program(layer, lambda: layer(x).sum(), backward=True)
    assert traced.flops == traced.backward_flops == 2 * 10**12 and traced.saved_bytes == 4 * 10**6
    assert traced.peak_bytes > 4 * 10**12


def test_the_first_gradient_comes_last_and_belongs_to_backward():
    matrix, x = nn.Parameter(torch.randn(8, 8)), torch.randn(5, 8)
    tied = nn.ParameterList([matrix])
    traced = measure.program(tied, lambda: F.linear(F.linear(x, matrix), matrix).sum(), backward=True)
    last = traced.operations[-1]
    assert (last.name, last.place, last.output_bytes, last.backward_bytes) == ("autograd", "", 0, 4)


def test_the_table_has_a_row_for_each_operation_and_a_total():
    net, x = Net(), torch.randn(5, 8)
    traced = measure.program(net, lambda: net(x).sum())
    lines = repr(traced).splitlines()
    assert len(lines) == len(traced.operations) + 2 and lines[1].split()[:3] == ["up", "linear", "1,280"]
    assert lines[0].endswith("  flops  backward_flops  saved_bytes  output_bytes  backward_bytes")
    assert lines[-1].split()[:2] == ["total", "2,560"] and traced._repr_html_().count("<tr>") == len(lines)
    assert traced._repr_html_().partition("bold")[2].partition(">")[2].startswith("total")


def test_nothing_holds_the_model_afterwards():
    models, x = [nn.Linear(2, 3)], torch.ones(1, 2)
    gone = weakref.ref(models[0])
    gc.disable()
    try:
        measure.program(models[0], lambda: models[0](x).sum(), backward=True)
        models.clear()
        assert gone() is None
    finally:
        gc.enable()


def test_bad_input_is_a_sentence():
    net, x = Net(), torch.randn(5, 8)
    with pytest.raises(TypeError, match="but got a Tensor: put 'lambda:'"):
        measure.program(net, net(x).sum())
    with pytest.raises(ValueError, match="must return one number that requires a gradient"):
        measure.program(net, lambda: net(x), backward=True)
    for loss in (lambda: 3.0, lambda: net(x).sum().detach()):
        with pytest.raises(ValueError, match="must return one number that requires a gradient"):
            measure.program(net, loss, backward=True)
    net(x).sum().backward()
    with pytest.raises(ValueError, match="zero_grad"):
        measure.program(net, lambda: net(x).sum(), backward=True)
    # The forward pass alone frees none, and may be listed.
    assert measure.program(net, lambda: net(x).sum()).flops == 2 * 2 * 5 * 8 * 16
