"""Where the kept bytes of a block come from, by name: products of sizes, worked out from what each operation's gradient needs.

N tokens (B sequences of S), D width, A heads and K key/value heads of h, F of an MLP, E experts of which a token visits k.
"""

import dataclasses

import pytest

from cs336kit.predict import TransformerConfig, saved_activation_bytes, saved_block_bytes

B, S, D, A, K, h, F, V = 2, 7, 24, 4, 2, 8, 40, 50
N, PAIRS = B * S, B * A * S * S
LLAMA = TransformerConfig(
    layers=2, d_model=D, heads=A, kv_heads=K, head_dim=h, d_ff=F, vocab=V, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
GPT = dataclasses.replace(
    LLAMA, kv_heads=None, mlp="gelu", norm="layernorm", norm_bias=True, positions="learned", bias="all", dropout=0.1
)
SIZE = {"batch": B, "sequence": S}


def rms(row, rows=N):
    """An RMSNorm in fp32 keeps, beside its input, what it has divided, and one number for each row."""
    return 4 * row + 4 * rows


def test_a_block_of_gpt_under_autocast():
    parts = dict(saved_block_bytes(GPT, **SIZE, precision="autocast"))
    assert parts == {
        # Input in fp32, with mean and 1/deviation of each row; three products cast their input to bf16 one by one.
        "attention norm": 4 * N * D + 2 * 4 * N, "query, key, value inputs": 3 * 2 * N * D,
        "query": 2 * N * A * h, "key": 2 * N * A * h, "value": 2 * N * A * h,
        "softmax output": 2 * PAIRS, "weights' dropout mask": 2 * PAIRS, "dropped weights": 2 * PAIRS,
        "attention output's input": 2 * N * A * h, "attention dropout mask": 2 * N * D,
        "mlp norm": 4 * N * D + 2 * 4 * N, "mlp inputs": 2 * N * D, "gelu input": 2 * N * F,
        "mlp down's input": 2 * N * F, "mlp dropout mask": 2 * N * D,
        "bf16 copies of weights": 2 * (4 * D * A * h + 2 * D * F),
    }  # fmt: skip


def test_a_block_of_llama_with_a_fused_kernel():
    assert dict(saved_block_bytes(LLAMA, **SIZE, attention="sdpa")) == {
        "attention norm": 4 * N * D + rms(N * D), "query, key, value inputs": 4 * N * D,
        "query": 4 * N * A * h, "key": 4 * N * K * h, "value": 4 * N * K * h, "logsumexp": 4 * B * A * S,
        "attention output's input": 4 * N * A * h,
        "mlp norm": 4 * N * D + rms(N * D), "mlp inputs": 4 * N * D, "gate": 4 * N * F, "silu": 4 * N * F, "up": 4 * N * F,
        "mlp down's input": 4 * N * F,
    }  # fmt: skip


def test_outside_of_the_blocks():
    parts = saved_activation_bytes(dataclasses.replace(LLAMA, logit_softcap=30.0), **SIZE)
    outside = {name: parts[name] for name in ("final norm", "head's input", "capped logits", "cross-entropy")}
    # The logarithms of all words for each token, and the sum of the targets' weights.
    assert outside == {
        "final norm": 4 * N * D + rms(N * D), "head's input": 4 * N * D, "capped logits": 4 * N * V,
        "cross-entropy": 4 * N * V + 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("mlp", "kept"),
    [
        ("gelu", {"gelu input": 1, "mlp down's input": 1}),
        ("gelu_tanh", {"gelu input": 1, "mlp down's input": 1}),
        ("silu", {"up": 1, "mlp down's input": 1}),
        ("xielu", {"up": 1, "mlp down's input": 1}),
        # ReLU keeps its output; its square keeps that too, and the next product the square.
        ("relu", {"mlp down's input": 1}),
        ("relu2", {"mlp down's input": 2}),
        ("swiglu", {"gate": 1, "silu": 1, "up": 1, "mlp down's input": 1}),
        ("geglu", {"gate": 1, "gelu": 1, "up": 1, "mlp down's input": 1}),
        ("reglu", {"relu": 1, "up": 1, "mlp down's input": 1}),
        ("relu2glu", {"relu": 1, "squared relu": 1, "up": 1, "mlp down's input": 1}),
        # Both factors are clipped, which keeps them as they were; one becomes itself times its sigmoid, the other one more.
        ("swiglu_clipped", {"gate": 1, "clipped gate": 1, "sigmoid": 1, "gated": 1, "up": 2, "mlp down's input": 1}),
    ],
)
def test_what_each_mlp_keeps(mlp, kept):
    parts = saved_block_bytes(dataclasses.replace(LLAMA, mlp=mlp), **SIZE)
    names = {*parts} - {*saved_block_bytes(dataclasses.replace(LLAMA, mlp="relu"), **SIZE)} | {"mlp down's input"}
    assert {name: parts[name] for name in names} == {name: 4 * N * F * count for name, count in kept.items()}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        # Queries are kept before the norm and behind the rotation.
        (
            {"qk_norm": "head"},
            {"query": 2 * 4 * N * A * h, "query norm": rms(N * A * h, N * A), "key norm": rms(N * K * h, N * K)},
        ),
        ({"qk_norm": "heads"}, {"query norm": rms(N * A * h, N * A), "key norm": rms(N * K * h, N * K)}),
        ({"qk_norm": "width"}, {"query norm": rms(N * A * h), "key norm": rms(N * K * h)}),
        # Without a scale, nobody needs what has been divided.
        ({"qk_norm": "plain"}, {"query": 2 * 4 * N * A * h, "query norm": 4 * N * A, "key norm": 4 * N * K}),
        ({"inner_norms": True}, {"attention inner norm": rms(N * A * h), "mlp inner norm": rms(N * F)}),
        ({"attention_softcap": 20.0}, {"capped scores": 4 * PAIRS}),
        ({"sinks": True}, {"softmax output": 4 * B * A * S * (S + 1)}),
        ({"value_dim": 6}, {"value": 4 * N * K * 6, "attention output's input": 4 * N * A * 6}),
        ({"norm_placement": "sandwich"}, {"attention post norm": rms(N * D), "mlp post norm": rms(N * D)}),
    ],
)
def test_what_an_option_adds(change, kept):
    parts = saved_block_bytes(dataclasses.replace(LLAMA, **change), **SIZE)
    assert {name: parts[name] for name in kept} == kept


def test_what_a_mixture_keeps():
    E, k = 4, 2
    config = dataclasses.replace(LLAMA, experts=E, experts_per_token=k)
    parts = saved_block_bytes(config, **SIZE)
    # The softmax of the chosen scores, and each expert's rows of it; each expert's output, and the weighted one.
    assert parts["routing weights"] == 2 * 4 * N * k and parts["expert outputs"] == 2 * 4 * N * k * D
    assert parts["mlp inputs"] == 4 * N * D + 4 * N * k * D and parts["gate"] == 4 * N * k * F
    shared = dataclasses.replace(config, shared_d_ff=20, shared_gate=True)
    more = saved_block_bytes(shared, **SIZE)
    assert more["shared weight"] == 4 * N and more["gate"] == parts["gate"] + 4 * N * 20
    assert more.total - parts.total == 4 * N * (1 + D + 4 * 20)


def test_what_latent_attention_keeps():
    latent, rotary, queries, value = 12, 4, 10, 6
    config = dataclasses.replace(
        LLAMA, kv_heads=None, kv_latent=latent, rotary_dim=rotary, query_latent=queries, value_dim=value
    )
    parts = saved_block_bytes(config, **SIZE)
    assert parts["latent norm"] == rms(N * latent) and parts["query latent norm"] == rms(N * queries)
    # The first product's output with the rotary part of the key, and both normed latents.
    assert parts["latent"] == 4 * N * (latent + rotary) + 4 * N * (latent + queries)
    assert parts["query latent"] == 4 * N * queries and parts["value"] == 4 * N * A * value
    assert parts["attention output's input"] == 4 * N * A * value and parts["softmax output"] == 4 * PAIRS
