"""Claims about the bytes of training: parameters, gradients, optimizer state, activations."""

from functools import cache

import torch
from claims.settled import figures, near, settles
from torch import nn

from cs336kit import lm, measure, predict

L, D, B, S = 4, 64, 8, 16


def stack(*, curved=False):
    """The deep linear model without head; curved: with a GELU after each layer."""
    layers = [nn.Linear(D, D, bias=False) for _ in range(L)]
    return nn.Sequential(*(part for layer in layers for part in ((layer, nn.GELU()) if curved else (layer,))))


def kept(model, *shape):
    """Elements in fp32 that the forward pass keeps."""
    return measure.saved_activation_bytes(lambda: model(torch.ones(*shape)).sum()).total // 4


@cache
def after_step(kind):
    """Elements of parameters, gradients, the optimizer's tensors of a parameter's shape, and activations of a real step."""
    model = stack()
    optimizer = kind(model.parameters())
    model(torch.ones(B, D)).sum().backward()
    optimizer.step()
    state = [t for values in optimizer.state.values() for t in values.values() if t.ndim == 2]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "gradients": sum(p.grad.numel() for p in model.parameters()),
        "state": sum(t.numel() for t in state),
        "activations": kept(model, B, D),
    }


def bytes_of_step():
    return 4 * sum(after_step(torch.optim.Adagrad).values())


@settles("mem-total-precedence")
def test_total_precedence():
    P = L * D * D
    return 4 * P + B * D * L + P + P, bytes_of_step()


@settles("mem-total-4x")
def test_total_4x():
    P = L * D * D
    return 4 * (P + B * D * L + P + P), bytes_of_step()


@settles("mem-num-activations")
def test_num_activations():
    return B * D * L, kept(stack(), B, D), kept(stack(curved=True), B, D)


@settles("mem-grads-equal-params")
def test_grads_equal_params():
    counted = after_step(torch.optim.Adagrad)
    return counted["parameters"], counted["gradients"]


@settles("mem-opt-equal-params")
def test_opt_equal_params():
    states = [after_step(kind)["state"] for kind in (torch.optim.Adagrad, torch.optim.Adam)]
    P = L * D * D
    return [P, 2 * P], states


@settles("mem-activations-bsdl")
def test_activations_bsdl():
    return B * S * D * L, kept(stack(), B, S, D), kept(stack(curved=True), B, S, D)


@settles("mem-four-buckets")
def test_four_buckets():
    # A step of AdamW, after one that has made its state and gradients: what is there when the forward pass ends, and at
    # the peak, where the gradients of activations and the optimizer's temporaries come on top.
    model, x = stack(), torch.ones(B, D)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    step = lambda: (model(x).sum().backward(), optimizer.step())  # noqa: E731
    step()
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    resting = measure.storage_bytes(model.parameters(), [p.grad for p in model.parameters()], states)
    counters = 4 * L
    said = 4 * (4 * L * D * D + B * D * L) + counters
    after_forward = resting + measure.saved_activation_bytes(lambda: model(x).sum()).total
    return said, after_forward, resting + x.nbytes + measure.peak_bytes(step, device="cpu")


def adamw_bytes(dtype):
    """Bytes per parameter of the model and of the optimizer, in fp32 or with a model of the dtype and an fp32 copy."""
    model = nn.Parameter(torch.ones(1000, dtype=dtype))
    copy = nn.Parameter(model.detach().float()) if dtype != torch.float32 else model
    optimizer = torch.optim.AdamW([copy])
    copy.grad = torch.ones_like(copy)
    optimizer.step()
    in_optimizer = [t for t in optimizer.state[copy].values() if t.ndim]
    if copy is not model:
        in_optimizer.append(copy)
    return [measure.storage_bytes(tensors) / 1000 for tensors in ([model], in_optimizer)]


@settles("mem-2.1-fp32")
def test_21_fp32():
    return [4.0, 8.0], adamw_bytes(torch.float32)


@cache
def weights_of(name):
    """Shapes of a model's parameters by their name."""
    with torch.device("meta"):
        return {name: w for name, w in lm.DecoderOnly(predict.MODELS[name]).named_parameters()}


@settles("mem-2.2-nparams")
def test_22_nparams():
    # "About", with corrections of the order of 1/D and V/(L·D), which for GPT-3 is 4 %: counted it is under 1 %.
    gpt3 = predict.MODELS["gpt3-175b"]
    said = (4 + 2 * 4) * gpt3.layers * gpt3.d_model**2
    return said, near(sum(w.numel() for w in weights_of("gpt3-175b").values()), said, relative=0.01)


@settles("mem-2.3-mixed")
def test_23_mixed():
    mixed = adamw_bytes(torch.bfloat16)
    return ([2.0, 12.0], True), (mixed, sum(mixed) > sum(adamw_bytes(torch.float32)))


@settles("mem-2.4-grads")
def test_24_grads():
    layer, half = nn.Linear(D, D), nn.Linear(D, D).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer(torch.ones(B, D)).sum()
    loss.backward()
    half(torch.ones(B, D).bfloat16()).sum().backward()
    return 4, *(module.weight.grad.element_size() for module in (layer, half))


@settles("mem-mlp-twice-attention")
def test_mlp_twice_attention():
    matrices = {name: w.numel() for name, w in weights_of("gpt2").items() if w.ndim == 2}
    mlp, attention = (sum(n for name, n in matrices.items() if f".{part}." in name) for part in ("mlp", "attention"))
    return 2.0, mlp / attention


def block_bytes(batch=1, sequence=256, heads=8):
    """Bytes that one block of width 64 with explicit attention keeps."""
    config = predict.TransformerConfig(layers=1, d_model=64, heads=heads, vocab=2, context=1024)
    with torch.device("meta"):
        block, x = lm.DecoderOnly(config).blocks[0], torch.empty(batch, sequence, 64)
    return measure.saved_activation_bytes(lambda: block(x)).total


@settles("mem-act-linear-in-s")
def test_act_linear_in_s():
    growth = {"B": block_bytes(batch=2), "S": block_bytes(sequence=512)}
    return {"B": 2.0, "S": 2.0}, {name: figures(size / block_bytes(), 2) for name, size in growth.items()}


@settles("mem-headcount-letter")
def test_headcount_letter():
    # In the notes A counts the heads. H, read as the width of a head, halves when A doubles; the S² bytes, which are
    # what a second difference in S leaves, double.
    def square_part(heads):
        return block_bytes(sequence=512, heads=heads) - 2 * block_bytes(sequence=256, heads=heads)

    return 0.5, figures(square_part(16) / square_part(8), 2)
