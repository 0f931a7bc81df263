"""Claims about autocast, loss scaling, and fp8 and int4 products."""

import warnings

import torch
import torch.nn.functional as F
from claims.settled import Cited, figures, settles

from cs336kit import lm, measure, predict

CONFIG = predict.TransformerConfig(layers=2, d_model=64, heads=4, vocab=256, context=64)
TE = "https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api"


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def under_autocast():
    """A linear layer's weight and its output in bf16 autocast, after backward."""
    layer = torch.nn.Linear(16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = layer(torch.ones(4, 16))
        hidden.retain_grad()
        loss = hidden.relu().float().square().mean()
    loss.backward()
    return layer.weight, hidden


@settles("amp-cuda-namespace")
def test_cuda_namespace():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.amp.autocast()
    return 0, sum(warning.category is FutureWarning for warning in caught)


@settles("amp-gradscaler-fp16")
def test_gradscaler_fp16():
    # Whether a gradient of 1e-8 needs the scale of 65,536 to survive.
    def needs_a_scale(dtype):
        gradient = torch.tensor(1e-8)
        return gradient.to(dtype).item() == 0 != (gradient * 65536).to(dtype).item()

    return True, needs_a_scale(torch.float16), needs_a_scale(torch.bfloat16)


@settles("amp-scaler-skips-inf")
def test_scaler_skips_inf():
    # A step with an infinite gradient, and one with a gradient of 3 and a learning rate of 0.5.
    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler, seen = torch.amp.GradScaler("cpu", init_scale=2.0**16), []
    for slope in (float("inf"), 3.0):
        optimizer.zero_grad()
        scaler.scale(weight * slope).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append((weight.item(), scaler.get_scale()))
    return [(1.0, 2.0**15), (1.0 - 0.5 * 3.0, 2.0**15)], seen


@settles("amp-backward-dtype")
def test_backward_dtype():
    _, hidden = under_autocast()
    return str(hidden.dtype), str(hidden.grad.dtype)


@settles("amp-params-stay-fp32")
def test_params_stay_fp32():
    weight, hidden = under_autocast()
    said = {"activation": "torch.bfloat16", "weight": "torch.float32", "gradient": "torch.float32"}
    return said, dict(zip(said, map(str, (hidden.dtype, weight.dtype, weight.grad.dtype)), strict=True))


@settles("mp-attention-fp32")
def test_attention_fp32():
    q = k = random(1, 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = q @ k.transpose(1, 2)
    return "torch.float32", str(scores.dtype)


@settles("mp-lower-precision-less-compute")
def test_lower_precision_less_compute():
    def flops(dtype):
        return measure.flops(lambda: torch.empty(64, 32, dtype=dtype) @ torch.empty(32, 16, dtype=dtype)).total

    return "fewer FLOPs", "fewer FLOPs" if flops(torch.bfloat16) < flops(torch.float32) else "as many"


@settles("mp-loss-scaling-often")
def test_loss_scaling_often():
    # Gradients of 4096 tokens' logits of a confident model: spread like a normal with deviation 4.
    logits = (4 * random(4096, 256)).requires_grad_()
    F.cross_entropy(logits, logits.detach().argmax(-1)).backward()

    def lost(dtype):
        return (logits.grad.to(dtype) == 0).float().mean().item() > 0.5

    return True, lost(torch.float16), lost(torch.bfloat16)


@settles("mp-saves-activations")
def test_saves_activations():
    def kept(batch, autocast):
        model, ids = lm.DecoderOnly(CONFIG), torch.zeros(batch, 32, dtype=torch.int64)

        def loss():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

        return measure.saved_activation_bytes(loss).total

    return True, *(kept(batch, autocast=True) < kept(batch, autocast=False) for batch in (8, 1))


@settles("mp-int4-inference")
def test_int4_inference():
    # Error of one layer's output below a fifth: with a scale for each 32 weights, and with one for a matrix in which a
    # single weight is a hundred times as large as the others.
    weight, x = random(256, 256), random(64, 256)
    weight[0, 0] = 100.0

    def good(group):
        groups = weight.view(-1, group)
        scale = groups.abs().amax(-1, keepdim=True) / 7
        restored = ((groups / scale).round().clamp(-8, 7) * scale).view(256, 256)
        return ((x @ (restored - weight).T).norm() / (x @ weight.T).norm()).item() < 0.2

    return True, good(32), good(weight.numel())


@settles("te-recipe-e4m3-forward-only")
def test_te_recipe():
    return Cited(
        f"{TE}/common.html, Format", "E4M3: all FP8 tensors; HYBRID: E4M3 forward, E5M2 for gradients backward."
    )


@settles("te-backward-full-precision")
def test_te_backward():
    # In the course's own layer, which has the same three products: the part of them that runs in fp8.
    layer = lm.precision("fp8").prepare(torch.nn.Sequential(torch.nn.Linear(32, 32, bias=False)))
    x = random(16, 32).requires_grad_()
    counted = measure.flops(lambda: layer(x).sum().backward())
    return figures(1 / 3, 4), figures(counted["scaled_mm"] / counted.total, 4)


@settles("te-autocast-api")
def test_te_autocast_api():
    return Cited(
        f"{TE}/pytorch.html", "te.autocast(enabled, recipe) in recent releases; te.fp8_autocast(fp8_recipe=) before."
    )


@settles("te-linear-only")
def test_te_linear_only():
    # Sides of fp8 products are multiples of 16: those of GPT-2's blocks are, that of its vocabulary is not.
    with torch.device("meta"):
        model = lm.DecoderOnly(predict.MODELS["gpt2"])

    def fits(*linears):
        return all(side % 16 == 0 for linear in linears for side in linear.weight.shape)

    inside = [module for module in model.blocks.modules() if isinstance(module, (torch.nn.Linear, lm.Linear))]
    return True, len(inside) > 0 and fits(*inside), fits(model.head)


@settles("te-no-gradscaler")
def test_te_no_gradscaler():
    # Gradients near 1e-6: nearly all survive in fp8 under the tensor's scale. A neighbor in fp16 gets those that the
    # loss of a batch makes as small as 1e-8, unscaled.
    gradients = random(100, 100) * 1e-6
    in_fp8, _ = lm.quantize(gradients, lm.E4M3)

    def survive(values):
        return (values.float() != 0).float().mean().item() > 0.99

    return True, survive(in_fp8), survive((gradients / 100).half())
