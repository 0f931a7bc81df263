"""Claims about initialization: how large outputs get, and what truncation does."""

import math

import numpy
import torch
from claims.settled import near, settles

from cs336kit import lm


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def output_std(width, *, weight_std=1.0):
    """Standard deviation of 128 · 256 outputs of a layer of that width; inputs from N(0, 1)."""
    x, w = torch.randn(128, width, generator=random()), torch.randn(width, 256, generator=random(1)) * weight_std
    return (x @ w).std().item()


#: 32,768 outputs share 128 inputs and 256 columns of weights: a standard error of about 1/sqrt(128 · width) from the
#: rows and 1/sqrt(2 · 32,768) from the outputs, under 1.3 % together at width 64. Five of them are 6 %.
WIDTHS, SPREAD = (64, 256, 1024), 0.06


@settles("init-randn-sqrt-growth")
def test_randn_sqrt_growth():
    said = [math.sqrt(width) for width in WIDTHS]
    return said, near([output_std(width) for width in WIDTHS], said, relative=SPREAD)


@settles("init-18.9")
def test_189():
    # The root mean square of 4096 outputs at a width of 16,384 spreads by 1/sqrt(2 · 4096) = 1.1 %: 6 % is five of it.
    w, x = torch.randn(16384, 4096 // 16, generator=random()), torch.randn(16, 16384, generator=random(1))
    rms = (x @ w).square().mean().sqrt().item()
    return 18.9, near(rms, math.sqrt(16384), relative=SPREAD)


@settles("init-rescale")
def test_rescale():
    measured = [output_std(width, weight_std=1 / math.sqrt(width)) for width in WIDTHS]
    return [1.0] * len(WIDTHS), near(measured, [1.0] * len(WIDTHS), relative=SPREAD)


@settles("init-sum-of-normals")
def test_sum_of_normals():
    # Of a million draws the variance spreads by sqrt(2/10⁶) = 0.14 %, and 1 % is seven of it.
    x = 1 + 2 * torch.randn(10**6, generator=random())
    y = -3 + 1.5 * torch.randn(10**6, generator=random(1))

    def variances_add(x, y):
        added = (x.var() + y.var()).item()
        return near((x + y).var().item(), added, relative=0.01) == added

    return True, variances_add(x, y), variances_add(x, x)


@settles("init-xavier-name")
def test_xavier_name():
    # A matrix from 1024 to 4096; half a million weights spread by 0.1 %, and 2 % is twenty of it.
    fan_in, fan_out = 1024, 4096
    std = torch.nn.init.xavier_normal_(torch.empty(fan_out, fan_in), generator=random()).std().item()
    return 1 / math.sqrt(fan_in), near(std, math.sqrt(2 / (fan_in + fan_out)), relative=0.02)


@settles("init-trunc-abs-bounds")
def test_trunc_abs_bounds():
    # What is asked: that nothing of a tenth of a million weights lies beyond three standard deviations; 270 of a normal do.
    std = 1 / math.sqrt(1024)
    weights = torch.nn.init.trunc_normal_(torch.empty(10**5), std=std, a=-3, b=3, generator=random())
    beyond = int((weights.abs() > 3 * std).sum())
    return {"beyond three deviations, of 100,000": 0}, {"beyond three deviations, of 100,000": beyond}


@settles("init-clip-vs-truncate")
def test_clip_vs_truncate():
    # How many of a tenth of a million weights stand exactly on the edge, where clipping moves what lies outside.
    def on_the_edge(weights):
        return "none" if not (weights.abs() == 3).any() else "many"

    clipped = torch.randn(10**5, generator=random()).clamp(-3, 3)
    truncated = lm.trunc_normal_(torch.empty(10**5), std=1.0, a=-3.0, b=3.0, generator=random())
    return on_the_edge(clipped), on_the_edge(truncated)


@settles("init-numpy-scalar")
def test_numpy_scalar():
    weight = torch.nn.Parameter(torch.randn(256, 64) / numpy.sqrt(256))
    return ("torch.float32", True), (str(weight.dtype), weight.is_leaf and weight.requires_grad)


@settles("init-output-shape")
def test_output_shape():
    return (32,), tuple((torch.randn(16384) @ torch.randn(16384, 32)).shape)
