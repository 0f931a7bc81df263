"""Claims about the activations that a Transformer block keeps, and the memory that GPT-3 takes."""

import math
from functools import cache
from unittest import mock

import torch
import torch.nn.functional as F
from claims.settled import figures, native_dropout, near, settles

from cs336kit import lm, measure, predict

B, S, D, A, E = 2, 16, 64, 4, 4
BSD, PAIRS = B * S * D, B * A * S**2
GPT3 = predict.MODELS["gpt3-175b"]
GIB, TIB = 2**30, 2**40


@cache
def kept(p, *, native=True, layers=1):
    """Bytes that blocks with dropout keep by part, for p bytes per element; with a GPU's dropout or that of a CPU."""
    config = predict.TransformerConfig(layers=layers, d_model=D, heads=A, vocab=32, context=64, dropout=0.1)
    dtype = {2: torch.bfloat16, 4: torch.float32}[p]
    blocks, x = lm.DecoderOnly(config, attention="eager").blocks.to(dtype), torch.randn(B, S, D, dtype=dtype)
    with mock.patch.object(F, "dropout", native_dropout if native else F.dropout):
        tensors = measure.saved_activation_bytes(lambda: torch.nn.Sequential(*blocks)(x)).tensors
    held = {"attention": 0, "mlp": 0, "norm": 0}
    for tensor in tensors:
        if tensor.role == "activation":
            held[next(part for part in held if part in tensor.module)] += tensor.bytes
    return held


def statistics(p):
    """Mean and 1/deviation of both norms, which the formulas leave out."""
    return 4 * p * B * S


@settles("act-2.5-attention")
def test_25_attention():
    p = 4
    said = (5 * p + 1) * BSD + (2 * p + 1) * PAIRS
    return said, kept(p)["attention"], kept(p, native=False)["attention"]


@settles("act-2.6-mlp")
def test_26_mlp():
    p = 4
    return (2 * E * p + p + 1) * BSD, kept(p)["mlp"], kept(p, native=False)["mlp"]


@settles("act-layernorm-2p")
def test_layernorm_2p():
    # Up to the statistics of each token, which are 2/D of it.
    said = 2 * 4 * BSD
    return said, near(kept(4)["norm"], said, relative=2 / D)


@settles("act-residual-free")
def test_residual_free():
    x, y = (torch.randn(B, S, D, requires_grad=True) for _ in range(2))
    return 0, measure.saved_activation_bytes(lambda: x + y).total


@settles("act-2.7-total")
def test_27_total():
    # The formula with its factor L, at two layers, against the bytes of each layer.
    p, L = 2, 2
    said = L * (2 * BSD * (p * (E + 4) + 1) + PAIRS * (2 * p + 1))
    return said, sum(kept(p, layers=L).values()) // L - statistics(p)


@settles("act-2.8-fp32")
def test_28_fp32():
    return 66 * BSD + 15 * PAIRS, sum(kept(4).values()) - statistics(4)


@settles("act-2.8-bf16")
def test_28_bf16():
    return 34 * BSD + 5 * PAIRS, sum(kept(2).values()) - statistics(2)


@settles("act-2.9-bmin")
def test_29_bmin():
    # Mixed precision costs 14 bytes a weight instead of 12 and saves the difference of the activations counted here;
    # at B sequences both are linear in B.
    saved = sum(kept(4).values()) - statistics(4) - sum(kept(2).values()) + statistics(2)
    return 6 * D**2 / (8 * D * S + A * S**2), (14 - 12) * 12 * D**2 / (saved / B)


@settles("act-dropout-mask-cpu")
def test_dropout_mask_cpu():
    x = torch.randn(B, S, D, requires_grad=True)
    masks = (measure.saved_activation_bytes(lambda f=f: f(x, 0.1)).total for f in (native_dropout, F.dropout))
    return BSD, *masks


@settles("act-flash-avoids-s2")
def test_flash_avoids_s2():
    # Twice the sequence keeps twice the bytes.
    def fused(sequence):
        q = torch.randn(1, A, sequence, 16, requires_grad=True)
        run = lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731
        return measure.saved_activation_bytes(run).total

    return 2.0, fused(512) / fused(256)


@cache
def parameters():
    """GPT-3's parameters by name, on the meta device."""
    with torch.device("meta"):
        return {name: weight.numel() for name, weight in lm.DecoderOnly(GPT3).named_parameters()}


def total():
    return sum(parameters().values())


@settles("act-gpt3-params-162tib")
def test_gpt3_params():
    return 162.0, figures(2 * total() / TIB, 3)


@settles("act-gpt3-grads-325tib")
def test_gpt3_grads():
    return 325.0, figures(4 * total() / TIB, 3)


@settles("act-gpt3-optim-975tib")
def test_gpt3_optim():
    return 975.0, figures(12 * total() / TIB, 3)


@settles("act-gpt3-total-1463tib")
def test_gpt3_total():
    return 1463.0, figures((2 + 4 + 12) * total() / TIB, 4)


@settles("act-gpt3-embedding-share")
def test_gpt3_embedding_share():
    return 0.3, figures(100 * parameters()["embedding.weight"] / total(), 1)


def gpt3_activations(sequence):
    """Bytes that one sequence keeps in all of GPT-3's blocks, in 16 bits."""
    return GPT3.layers * predict.paper_block_bytes(GPT3, batch=1, sequence=sequence).total


def per_token():
    """Bytes for each token, and for each pair of tokens: the straight and the curved part of what a sequence keeps."""
    square = (gpt3_activations(2000) - 2 * gpt3_activations(1000)) / (2000**2 - 2 * 1000**2)
    return gpt3_activations(1000) / 1000 - square * 1000, square


@settles("act-gpt3-2.18")
def test_gpt3_218():
    sequence = 1000
    return 3e-2 * sequence * (1 + sequence / 1e3), figures(gpt3_activations(sequence) / TIB, 1)


@settles("act-gpt3-s2-dominates")
def test_gpt3_s2_dominates():
    # "About 1e3": in powers of ten.
    linear, square = per_token()
    return 3, round(math.log10(linear / square))


@settles("act-gpt3-ratio-0.2b")
def test_gpt3_ratio():
    return 0.2, figures(gpt3_activations(2048) / (18 * total()), 1)


@settles("act-gpt3-2.20")
def test_gpt3_220():
    # The part that does not depend on the batch, on each of eight ranks.
    return 187.0, figures(18 * total() / 8 / TIB, 3)
