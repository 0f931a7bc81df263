import contextlib
import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from cs336kit import lm, measure
from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    paper_block_bytes,
    saved_activation_bytes,
    saved_block_bytes,
)

PRECISIONS = ("fp32", "bf16", "autocast")
POLICIES = list(itertools.product(PRECISIONS, ("eager", "sdpa"), (False, True)))
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "bias": "none", "tied_head": False}


def held(config, batch, sequence, *, precision="fp32", attention="eager", checkpointing=False):
    """The truth: a real forward pass with its loss. The model is made in its dtype, as fake models cannot change it."""
    torch.set_default_dtype(torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        model = lm.DecoderOnly(config, attention=attention, checkpointing=checkpointing)
        tokens = torch.randint(config.vocab, (batch, sequence))
    finally:
        torch.set_default_dtype(torch.float32)

    def loss():
        policy = torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()
        with policy:
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    return measure.saved_activation_bytes(loss)


def check(config, batch, sequence, precision, attention, checkpointing):
    policy = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
    expected = held(config, batch, sequence, **policy).total
    assert saved_activation_bytes(config, batch, sequence, **policy).total == expected, (config, policy)


def tiny(**changes):
    sizes = {"layers": 2, "d_model": 16, "heads": 4, "d_ff": 20, "vocab": 13, "context": 8}
    return TransformerConfig(**{**sizes, **changes})


def test_every_combination_of_block_and_policy_to_the_byte():
    # 2 · 2 · 2 · 3 · 2 · 12 = 576 cases
    for mlp, norm, positions, kv_heads, dropout in itertools.product(
        ("gelu", "swiglu"), ("layernorm", "rmsnorm"), ("learned", "rope"), (4, 2, 1), (0.0, 0.1)
    ):
        config = tiny(mlp=mlp, norm=norm, positions=positions, kv_heads=kv_heads, dropout=dropout)
        for policy in POLICIES:
            check(config, 2, 6, *policy)


def test_windows_parallel_blocks_biases_wide_heads_and_experts_to_the_byte():
    # 3 · 2 · 3 · 2 · 12 = 432 cases
    for window, norms, bias, dropout in itertools.product((None, 4, 6), (1, 2), ("all", "none", "qkv"), (0.0, 0.1)):
        config = tiny(window=window, norms_per_block=norms, bias=bias, dropout=dropout, head_dim=6, kv_heads=2)
        for policy in POLICIES:
            check(config, 2, 6, *policy)
    # 2 · 2 · 2 · 12 = 96 cases
    for mlp, norms, dropout in itertools.product(("gelu", "swiglu"), (1, 2), (0.0, 0.1)):
        config = tiny(mlp=mlp, norms_per_block=norms, dropout=dropout, experts=3, experts_per_token=2)
        for policy in POLICIES:
            check(config, 2, 6, *policy)


def test_sizes_at_the_edge_to_the_byte():
    # 2 · 2 · 3 · 3 · 12 = 432 cases, among them one sequence, one token, one head, one layer
    for layers, heads, batch, sequence in itertools.product((1, 3), (1, 4), (1, 2, 5), (1, 2, 7)):
        config = tiny(layers=layers, heads=heads, **LLAMA) if batch != 2 else tiny(layers=layers, heads=heads)
        for policy in POLICIES:
            check(config, batch, sequence, *policy)


@pytest.mark.parametrize(
    ("name", "sequence", "precision", "attention", "checkpointing"),
    [
        ("llama-3-8b", 8192, "autocast", "sdpa", False),
        ("llama-3-8b", 8192, "bf16", "eager", False),
        ("llama-3-70b", 8192, "bf16", "sdpa", True),
        ("llama-3-70b", 8192, "autocast", "sdpa", False),
        ("gpt3-175b", 2048, "autocast", "eager", False),
        ("gpt3-175b", 2048, "fp32", "sdpa", True),
        ("mistral-7b", 8192, "bf16", "sdpa", False),
    ],
)
def test_published_models_against_fake_tensors(name, sequence, precision, attention, checkpointing):
    config = MODELS[name]
    with FakeTensorMode():
        policy = {"precision": precision, "attention": attention, "checkpointing": checkpointing}
        assert held(config, 1, sequence, **policy).total == saved_activation_bytes(config, batch=1, sequence=sequence, **policy).total


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [(2, 6, 16, 4, 64), (3, 8, 24, 2, 40), (1, 8, 8, 1, 8)])
def test_the_paper_block_in_closed_form(sizes, dropout):
    B, S, D, A, F_ = sizes
    d = int(dropout > 0)
    config = tiny(d_model=D, heads=A, d_ff=F_, dropout=dropout)
    wide, stats = B * S * (D * (8 + 2 * d) + 2 * F_), 16 * B * S
    pairs = A * B * S**2 * (1 + 2 * d)
    assert saved_block_bytes(config, batch=B, sequence=S).total == 4 * wide + 4 * pairs + stats
    assert saved_block_bytes(config, batch=B, sequence=S, precision="bf16").total == 2 * wide + 2 * pairs + stats // 2
    casts = B * S * (D * (8 + 2 * (3 + 5) + 4 * d) + 4 * F_) + 2 * pairs + stats + 2 * (4 * D * D + 2 * D * F_)
    assert saved_block_bytes(config, batch=B, sequence=S, precision="autocast").total == casts


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_the_llama_block_in_closed_form(kv_heads):
    B, S, D, A, F_ = 2, 6, 16, 4, 20
    config = tiny(kv_heads=kv_heads, **LLAMA)
    h = D // A
    kv = 2 * kv_heads * h
    rest = 8 * B * S + 4 * B * A * S
    weights = 2 * (2 * D * A * h + 2 * D * kv_heads * h + 3 * D * F_)

    def block(precision):
        return saved_block_bytes(config, batch=B, sequence=S, precision=precision, attention="sdpa").total

    assert block("fp32") == 4 * B * S * (8 * D + kv) + 16 * B * S * F_ + rest
    assert block("autocast") == B * S * (30 * D + 2 * kv) + 8 * B * S * F_ + rest + weights
    assert block("bf16") == B * S * (24 * D + 2 * kv) + 8 * B * S * F_ + rest


def test_checkpointing_keeps_the_input_of_each_block():
    config = tiny(layers=3)
    parts = saved_activation_bytes(config, batch=2, sequence=6, checkpointing=True)
    assert parts["block inputs"] == 3 * 4 * 2 * 6 * 16
    plain = saved_activation_bytes(config, batch=2, sequence=6)
    outside = ("final norm", "head's input", "cross-entropy")
    assert all(parts[name] == plain[name] for name in outside)
    assert plain.total - sum(plain[name] for name in outside) == 3 * saved_block_bytes(config, batch=2, sequence=6).total


def test_the_paper_of_2022_and_what_torch_keeps_with_its_one_byte_mask():
    config = MODELS["gpt3-175b"]
    B, S, D, A = 1, 2048, 12288, 96
    assert paper_block_bytes(config, batch=B, sequence=S).total == 34 * B * S * D + 5 * A * B * S**2
    assert paper_block_bytes(config, batch=B, sequence=S, bytes_per_element=4).total == 66 * B * S * D + 9 * A * B * S**2
    small = tiny(dropout=0.1)
    for precision, p in (("fp32", 4), ("bf16", 2)):
        ours = saved_block_bytes(small, batch=2, sequence=6, precision=precision)
        masks = sum(ours[name] for name in ours if name.endswith("mask"))
        one_byte = ours.total - masks + masks // p
        assert one_byte == paper_block_bytes(small, batch=2, sequence=6, bytes_per_element=p).total + 4 * p * 2 * 6


def test_a_fresh_layer_adds_a_block():
    config = tiny(dropout=0.1)
    for precision, attention in itertools.product(PRECISIONS, ("eager", "sdpa")):
        policy = {"precision": precision, "attention": attention}
        deeper = dataclasses.replace(config, layers=3)
        difference = (
            saved_activation_bytes(deeper, batch=2, sequence=6, **policy).total - saved_activation_bytes(config, batch=2, sequence=6, **policy).total
        )
        assert difference == saved_block_bytes(config, batch=2, sequence=6, **policy).total


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"precision": "fp16"}, "unknown precision 'fp16'.*fp32, bf16, autocast"),
        ({"attention": "flash"}, "unknown attention 'flash'"),
        ({"sequence": 9}, "sequence=9 is longer than context=8"),
        ({"batch": 0}, "batch must be"),
    ],
)
def test_what_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        saved_activation_bytes(tiny(), **{"batch": 1, "sequence": 4, **arguments})
