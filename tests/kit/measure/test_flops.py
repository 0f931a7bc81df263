import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from cs336kit import measure

pytestmark = pytest.mark.torch


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def by_registry(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 7), (16, 1, 4)])
def test_matmul_forward_and_backward(m, k, n):
    x, w = leaf(m, k), leaf(k, n)
    assert measure.flops(lambda: x @ w).total == 2 * m * k * n == by_registry(lambda: x @ w)
    step = lambda: (x @ w).sum().backward()  # noqa: E731
    assert measure.flops(step).total == 3 * 2 * m * k * n == by_registry(step)


def test_bmm_forward_and_backward():
    x, w = leaf(4, 3, 5), leaf(4, 5, 7)
    step = lambda: torch.bmm(x, w).sum().backward()  # noqa: E731
    assert dict(measure.flops(step)) == {"bmm": 3 * 2 * 4 * 3 * 5 * 7}
    assert measure.flops(step).total == by_registry(step)


def test_convolution_forward_and_backward():
    x, conv = leaf(2, 3, 8, 8), nn.Conv2d(3, 4, 3, padding=1, bias=False)
    hand = 2 * (2 * 8 * 8) * (3 * 3 * 3) * 4
    step = lambda: conv(x).sum().backward()  # noqa: E731
    counted = measure.flops(step)
    assert dict(counted) == {"convolution": hand, "convolution backward": 2 * hand}
    assert counted.total == by_registry(step)


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d])
def test_a_grouped_convolution_costs_twice_as_much_backward_as_forward(kind, groups):
    x = leaf(2, 16, *[9] * (2 if kind is nn.Conv2d else 1))
    conv = kind(16, 32, 3, stride=2, groups=groups)
    forward = 2 * conv.weight.numel() * 2 * (9 if kind is nn.ConvTranspose1d else 16 if kind is nn.Conv2d else 4)
    counted = measure.flops(lambda: conv(x).sum().backward(), by="pass")
    assert dict(counted) == {"forward": forward, "backward": 2 * forward}
    # Without the gradient of x one product is left.
    assert measure.flops(lambda: conv(x.detach()).sum().backward(), by="pass")["backward"] == forward


def explicit(q, k, v, causal):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys", "width", "values"), [(8, 8, 4, 4), (6, 6, 16, 16)])
def test_attention_explicit_and_fused(causal, rows, keys, width, values):
    q, k, v = leaf(2, 3, rows, width), leaf(2, 3, keys, width), leaf(2, 3, keys, values)
    product = 2 * 2 * 3 * rows * keys * width
    assert measure.flops(lambda: explicit(q, k, v, causal)).total == 2 * product
    assert measure.flops(lambda: explicit(q, k, v, causal).sum().backward()).total == 6 * product
    fused = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    assert dict(measure.flops(fused)) == {"attention": 2 * product}
    step = measure.flops(lambda: fused().sum().backward())
    assert dict(step) == {"attention": 2 * product, "attention backward": 5 * product}


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_torchs_registry(causal):
    shapes = (2, 3, 8, 4), (2, 3, 6, 4), (2, 3, 6, 4)
    if causal:
        shapes = ((2, 3, 8, 4),) * 3
    q, k, v = (leaf(*shape) for shape in shapes)
    for function in (
        lambda: explicit(q, k, v, causal),
        lambda: explicit(q, k, v, causal).sum().backward(),
    ):
        assert measure.flops(function).total - by_registry(function) == 0
    # torch has formulas for fused attention, but does not know the kernel that a CPU runs.
    fused = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    forward = sdpa_flop_count(*shapes)
    assert measure.flops(fused).total - forward == 0
    both = measure.flops(lambda: fused().sum().backward()).total
    assert both - forward - sdpa_backward_flop_count(fused().shape, *shapes) == 0


def test_the_explicit_path_of_the_fused_call_agrees_with_the_registry():
    q = leaf(2, 3, 8, 4)
    with sdpa_kernel(SDPBackend.MATH):
        step = lambda: F.scaled_dot_product_attention(q, q, q).sum().backward()  # noqa: E731
        assert measure.flops(step).total == by_registry(step) == 6 * 2 * 2 * 3 * 8 * 8 * 4


def test_grouped_heads_cost_as_much_as_all_heads():
    q, k = leaf(2, 6, 8, 4), leaf(2, 2, 8, 4)
    step = lambda: F.scaled_dot_product_attention(q, k, k, enable_gqa=True).sum().backward()  # noqa: E731
    assert measure.flops(step).total == 7 * 2 * 2 * 6 * 8 * 8 * 4


def test_matrix_vector_and_dot_are_counted():
    a, v, w = leaf(8, 16), leaf(16), leaf(16)
    assert dict(measure.flops(lambda: a @ v)) == {"mv": 2 * 8 * 16}
    assert dict(measure.flops(lambda: v @ w)) == {"dot": 2 * 16}
    assert measure.flops(lambda: torch.addmv(torch.zeros(8), a, v)).total == 2 * 8 * 16
    # Backward: the vector's gradient is a product; the matrix's is an outer product, element-wise for torch.
    assert measure.flops(lambda: (a @ v).sum().backward()).total == 2 * 2 * 8 * 16


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="grouped_mm is public since torch 2.10")
def test_grouped_matmul_forward_and_backward():
    x, w = leaf(16, 32, dtype=torch.bfloat16), leaf(4, 32, 8, dtype=torch.bfloat16)
    ends = torch.tensor([4, 8, 12, 16], dtype=torch.int32)
    step = lambda: F.grouped_mm(x, w, offs=ends).float().sum().backward()  # noqa: E731
    assert dict(measure.flops(step)) == {"grouped_mm": 3 * 2 * 16 * 32 * 8}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.GELU())
        self.shared = nn.Linear(16, 16, bias=False)

    def forward(self, x):
        return self.shared(self.shared(self.b(self.a(x).relu()))) @ torch.ones(16, 2)


def test_by_module_gives_each_its_own_backward_too():
    block, x = Block(), torch.randn(5, 8)
    counted = measure.flops(lambda: block(x).sum().backward(), by="module")
    one = 2 * 5 * 16 * 16
    assert dict(counted) == {
        "Block.a": 2 * 2 * 5 * 8 * 16,  # x needs no gradient: forward and weight only
        "Block.b.0": 3 * one,
        "Block.shared": 2 * 3 * one,
        "Block": 2 * 2 * 5 * 16 * 2,  # the constant needs no gradient
    }
    assert dict(measure.flops(lambda: block(x).sum().backward(), by="module", depth=1)) == {"Block": counted.total}
    assert counted.total == measure.flops(lambda: block(x).sum().backward()).total


def test_a_module_made_on_the_way_is_named_below_the_one_that_makes_it():
    class Makes(nn.Module):
        def forward(self, x):
            return nn.Linear(8, 4)(x)

    model, x = nn.Sequential(nn.Sequential(Makes())), torch.randn(5, 8)
    assert dict(measure.flops(lambda: model(x), by="module")) == {"Sequential.0.0.Linear": 2 * 5 * 8 * 4}


def test_modules_of_another_thread_are_not_this_one_s():
    entered, done = threading.Event(), threading.Event()

    class Theirs(nn.Module):
        def forward(self, x):
            entered.set()
            done.wait(10)

    ours, theirs, x = nn.Sequential(nn.Linear(8, 4)), Theirs(), torch.randn(5, 8)
    other = threading.Thread(target=lambda: theirs(x))

    def function():
        other.start()  # it stays inside of its module
        entered.wait(10)
        return ours(x)

    try:
        assert dict(measure.flops(function, by="module")) == {"Sequential.0": 2 * 5 * 8 * 4}
    finally:
        done.set()
        other.join()


def test_two_modules_on_one_input_stay_apart():
    a, b, x = nn.Linear(8, 4), nn.Linear(8, 4), torch.randn(5, 8)
    counted = measure.flops(lambda: (a(x) * b(x)).sum().backward(), by="module")
    assert dict(counted) == {"Linear": 2 * 2 * 2 * 5 * 8 * 4}


def test_recomputation_is_counted_where_it_happens():
    layer, x = (
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()),
        torch.randn(5, 8, requires_grad=True),
    )
    one = 2 * 5 * 8 * 8
    plain = measure.flops(lambda: layer(x).sum().backward(), by="pass")
    again = measure.flops(lambda: checkpoint(layer, x, use_reentrant=False).sum().backward(), by="pass")
    assert dict(plain) == {"forward": 2 * one, "backward": 4 * one}
    assert dict(again) == {"forward": 2 * one, "backward": 6 * one}


def test_inference_runs_no_fast_path_past_the_counter():
    layer, x = nn.TransformerEncoderLayer(16, 4, 64, dropout=0.0, batch_first=True).eval(), torch.randn(2, 8, 16)
    with torch.no_grad():
        counted = measure.flops(lambda: layer(x)).total
    assert counted == 2 * 16 * 16 * (4 * 16 + 2 * 64) + 2 * 2 * 2 * 8 * 8 * 16
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers(layer, gates):
    recurrent, x = layer(16, 32, batch_first=True), torch.randn(2, 8, 16)
    hand = 2 * 2 * 8 * gates * 32 * (16 + 32)
    with torch.no_grad():
        assert measure.flops(lambda: recurrent(x)).total == hand
    if layer is nn.LSTM:
        assert measure.flops(lambda: recurrent(x.requires_grad_())[0].sum().backward()).total == 3 * hand


def test_meta_tensors_and_nothing():
    x = torch.empty(10**6, 10**6, device="meta")
    assert measure.flops(lambda: x @ x).total == 2 * 10**18
    nothing = measure.flops(lambda: None)
    assert nothing.total == 0 and dict(nothing) == {}
    assert measure.flops(lambda: torch.ones(3).exp()).total == 0


def test_a_failing_function_leaves_no_hooks():
    from torch.nn.modules import module

    before = len(module._global_forward_hooks), len(module._global_forward_pre_hooks)
    with pytest.raises(ZeroDivisionError):
        measure.flops(lambda: 1 / 0, by="module")
    assert (len(module._global_forward_hooks), len(module._global_forward_pre_hooks)) == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_counts_the_same(dtype):
    q = torch.randn(2, 3, 64, 32, device="cuda", dtype=dtype, requires_grad=True)
    product = 2 * 2 * 3 * 64 * 64 * 32
    step = lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()  # noqa: E731
    assert dict(measure.flops(step)) == {"attention": 2 * product, "attention backward": 5 * product}
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).cuda()
    x = torch.randn(5, 8, device="cuda")
    counted = measure.flops(lambda: model(x).sum().backward(), by="module")
    assert dict(counted) == {"Sequential.0": 2 * 2 * 5 * 8 * 16, "Sequential.2": 3 * 2 * 5 * 16 * 4}


def test_a_tensor_that_is_changed_in_place_is_an_error_here_too():
    def changes_what_was_kept():
        y = leaf(3).exp()
        y.add_(1)
        y.sum().backward()

    with pytest.raises(RuntimeError, match="inplace"):
        measure.flops(changes_what_was_kept)


def test_bad_input_is_a_sentence():
    x = torch.ones(2, 2)
    with pytest.raises(TypeError, match="but got a Tensor: put 'lambda:' before it"):
        measure.flops(x @ x)
    with pytest.raises(ValueError, match="by must be one of 'operator', 'module', 'pass', got 'layer'"):
        measure.flops(lambda: x @ x, by="layer")
    for bad in (0, -1, True, 1.0):
        with pytest.raises(ValueError, match="depth cuts the names"):
            measure.flops(lambda: x @ x, by="module", depth=bad)
