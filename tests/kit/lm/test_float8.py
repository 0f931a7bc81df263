import math

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cs336kit.lm import Float8Linear, Linear, course_text, encode, pretrain, quantize, scaled_matmul
from cs336kit.lm.float8 import E4M3, E5M2, Float8Matmul, transformer_engine, use_float8
from cs336kit.predict import TransformerConfig

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("dtype", "relative"), [(E4M3, 2**-4), (E5M2, 2**-3)])
def test_quantize_puts_the_largest_on_the_largest(dtype, relative):
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)) * 1e-6
    q, scale = quantize(x, dtype)
    assert q.dtype == dtype and scale.dtype == torch.float32
    assert q.float().abs().max() == torch.finfo(dtype).max
    back = q.float() * scale
    # Half a spacing of a normal number, plus half a spacing of the subnormals near zero.
    assert ((back - x).abs() <= x.abs() * relative + scale * torch.finfo(dtype).smallest_normal * relative).all()


def test_quantize_zeros_and_infinities():
    q, scale = quantize(torch.zeros(3), E4M3)
    assert scale == 1 and not q.float().any()
    q, scale = quantize(torch.tensor([1.0, float("inf")]), E4M3)
    assert not torch.isfinite(q.float() * scale).all()


def test_scaled_matmul_is_the_product_of_the_rounded_values():
    generator = torch.Generator().manual_seed(0)
    (a, sa), (b, sb) = (quantize(torch.randn(*s, generator=generator), E4M3) for s in ((16, 32), (32, 48)))
    product = scaled_matmul(a, b, scale_a=sa, scale_b=sb, dtype=torch.float32)
    assert torch.allclose(product, (a.float() * sa) @ (b.float() * sb), rtol=1e-5, atol=1e-5)


def test_both_gradients_are_products_of_rounded_values():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 48, generator=generator, requires_grad=True)
    w = torch.randn(16, 48, generator=generator, requires_grad=True)
    g = torch.randn(32, 16, generator=generator).bfloat16()
    Float8Matmul.apply(x, w).backward(g)
    x8, w8, g8 = ((lambda q, s: q.float() * s)(*quantize(t, d)) for t, d in ((x, E4M3), (w, E4M3), (g, E5M2)))
    assert torch.allclose(x.grad, g8 @ w8, rtol=1e-2, atol=1e-2)  # dx is rounded to bf16
    assert torch.allclose(w.grad, g8.t() @ x8, rtol=1e-5, atol=1e-4)
    assert x.grad.dtype == w.grad.dtype == torch.float32


def test_gradients_that_nobody_needs_are_not_computed():
    for x_needs, w_needs in ((False, True), (True, False)):
        x = torch.ones(16, 32, requires_grad=x_needs)
        w = torch.ones(48, 32, requires_grad=w_needs)
        counter = FlopCounterMode(display=False)
        with counter:
            Float8Matmul.apply(x, w).float().sum().backward()
        assert counter.get_total_flops() == 2 * (2 * 16 * 32 * 48)
        assert (x.grad is not None, w.grad is not None) == (x_needs, w_needs)


@pytest.mark.parametrize("kind", [nn.Linear, Linear])
def test_layers_are_replaced_in_place_and_keep_their_parameters(kind):
    model = nn.ModuleDict({"up": kind(16, 32), "odd": kind(16, 10), "odder": kind(24, 16), "head": kind(32, 16)})
    before = dict(model.named_parameters())
    assert use_float8(model) is model
    assert [type(module) is Float8Linear for module in model.values()] == [True, False, False, False]
    assert all(after is before[name] for name, after in model.named_parameters()) and len(before) == 8
    x = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))
    out = model["up"](x)
    exact = torch.nn.functional.linear(x, model["up"].weight, model["up"].bias)
    assert out.shape == (2, 3, 32) and out.dtype == torch.bfloat16
    assert (out - exact).norm() / exact.norm() < 0.05


def test_a_model_without_a_fitting_layer_is_refused():
    with pytest.raises(ValueError, match="multiples of 16"):
        use_float8(nn.Sequential(nn.Linear(3, 5)))


def test_transformer_engine_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformer_engine.pytorch", None)
    with pytest.raises(ImportError, match=r"pip install 'cs336kit\[fp8\]'"):
        transformer_engine()


def test_what_is_no_number_makes_the_scale_no_number_and_what_is_tiny_stays_finite():
    q, scale = quantize(torch.tensor([float("nan"), 1000.0, 1.0]), E4M3)
    assert scale.isnan() and q.float().isnan().all()
    for dtype in (E4M3, E5M2):
        q, scale = quantize(torch.tensor([1e-42, 0.0]), dtype)
        back = q.float() * scale
        assert scale > 0 and back.isfinite().all() and back[1] == 0


@pytest.mark.parametrize("rows", [1, 15, 17])
def test_rows_are_filled_up_with_zeros_that_change_nothing(rows, monkeypatch):
    seen, product = [], torch._scaled_mm

    def on_a_gpu(a, b, **options):
        seen.extend((*a.shape, b.shape[1]))
        return product(a, b, **options)

    monkeypatch.setattr(torch, "_scaled_mm", on_a_gpu)
    x = torch.randn(1, rows, 16, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layer = Float8Linear(Linear(16, 32))
    out = layer(x)
    out.float().square().sum().backward()
    assert len(seen) == 9 and not any(side % 16 for side in seen)
    assert out.shape == (1, rows, 32) and x.grad.shape == x.shape

    same, w = x.detach().clone()[0].requires_grad_(), layer.weight.detach().clone().requires_grad_()
    bare = Float8Matmul.apply(same, w) + layer.bias.detach().bfloat16()
    bare.float().square().sum().backward()
    assert torch.equal(out[0], bare) and torch.equal(x.grad[0], same.grad)
    torch.testing.assert_close(layer.weight.grad, w.grad)  # sums of other lengths, in another order


def test_experts_that_see_any_number_of_rows_learn_in_fp8(monkeypatch):
    product = torch._scaled_mm

    def on_a_gpu(a, b, **options):
        assert not any(side % 16 for side in (*a.shape, b.shape[1]))
        return product(a, b, **options)

    monkeypatch.setattr(torch, "_scaled_mm", on_a_gpu)
    config = TransformerConfig(
        layers=1, d_model=16, heads=2, d_ff=32, context=20, vocab=256, experts=4, experts_per_token=2, mlp="swiglu",
    )  # fmt: skip
    # 3 sequences of 20 tokens, and in the held-out part as many as come.
    how = {"batch": 3, "sequence": 20, "steps": 2, "max_lr": 1e-2, "data": encode(course_text())[:3000]}
    done = pretrain(config, **how, precision="fp8")
    assert all(map(math.isfinite, (*done.losses, done.validation_loss)))


def test_no_rows_give_no_rows_and_gradients_of_zeros():
    layer = Float8Linear(nn.Linear(16, 32))
    x = torch.zeros(0, 16, requires_grad=True)
    out = layer(x)
    assert out.shape == (0, 32) and out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert x.grad.shape == (0, 16) and not layer.weight.grad.any() and not layer.bias.grad.any()
