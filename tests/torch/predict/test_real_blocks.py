"""Blocks like those of real architectures, built small by lm: every number of a step, to the byte and the FLOP."""

import dataclasses

import pytest

from cs336kit import lm
from cs336kit.predict import TransformerConfig
from tests.torch.predict.test_walk import POLICIES, check

BASE = TransformerConfig(
    layers=4, d_model=24, heads=4, kv_heads=2, head_dim=8, d_ff=40, vocab=50, context=16, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
GPT = {"mlp": "gelu", "norm": "layernorm", "norm_bias": True}
MOE = {"experts": 4, "experts_per_token": 2, "d_ff": 12, "dense_d_ff": 30}
LATENT = {"layers": 2, "kv_heads": None, "kv_latent": 12, "rotary_dim": 4, "query_latent": 10, "value_dim": 6}
LIKE = {
    "Qwen3": {"qk_norm": "head"},
    "OLMo 1": {"norm": "layernorm", "norm_scale": False},
    "OLMo 2": {"qk_norm": "width", "norm_placement": "post"},
    "Gemma 2": {
        "norm_placement": "sandwich", "window": 5, "window_layers": (True, False), "attention_softcap": 20.0,
        "logit_softcap": 30.0, "embedding_scale": 5.0, "mlp": "geglu_tanh", "tied_head": True,
    },
    "NeoX": {**GPT, "parallel": True, "rotary_dim": 2, "bias": "all"},
    "GPT-J": {**GPT, "norms_per_block": 1, "rotary_dim": 4, "bias": ("up", "down"), "head_bias": True, "mlp": "gelu_new"},
    "OPT-350m": {
        **GPT, "norm_placement": "residual", "final_norm": False, "positions": "learned", "extra_positions": 2,
        "mlp": "relu", "bias": "all",
    },
    "BLOOM without its positions": {**GPT, "embedding_norm": True, "positions": "none", "bias": "all"},
    "BitNet": {"inner_norms": True, "mlp": "relu2glu"},
    "Nemotron with plain norms": {**GPT, "mlp": "relu2", "rotary_dim": 4},
    "Granite": {"embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 0.1},
    "SmolLM3": {"rope_layers": (True, True, True, False)},
    "Qwen1.5-MoE": {**MOE, "sparse_layers": (False, True), "shared_d_ff": 20, "shared_gate": True, "bias": "qkv"},
    "dots1": {**MOE, "sparse_layers": (False, True, True, True), "shared_d_ff": 20, "qk_norm": "head"},
    "GLM-4": {"rotary_dim": 4, "bias": "qkv", "layers": 1},
    "DeepSeek V3 with values as wide as keys": {**LATENT, "bias": "all", "value_dim": None},
    "DeepSeek V2 Lite": {**LATENT, "query_latent": 0},
    "gpt-oss without its sinks": {**MOE, "router_bias": True, "bias": "all", "window": 5, "window_layers": (True, False)},
}  # fmt: skip


@pytest.mark.parametrize("number, name", enumerate(LIKE), ids=list(LIKE))
def test_everything_about_a_step(number, name):
    precision, attention, checkpointing = POLICIES[number % len(POLICIES)]
    config = dataclasses.replace(BASE, **LIKE[name])
    check(config, 2, 7, precision=precision, attention=attention, checkpointing=checkpointing)


@pytest.mark.parametrize(
    "change",
    [
        {"kv_latent": 8, "rotary_dim": 4, "kv_heads": None, "window": 4}, {"value_dim": 6}, {"embedding_dim": 12},
        {"sinks": True},
        {"attention_scale": 0.1}, {"qk_norm": "heads"}, {"norm_unit_offset": True}, {"positions": "alibi"},
        {"mlp": "xielu"}, {"window": 4, "window_kind": "chunked"},
    ],
    ids=lambda change: ", ".join(change),
)  # fmt: skip
def test_what_lm_does_not_build_is_refused_by_name(change):
    config = dataclasses.replace(BASE, **change)
    with pytest.raises(ValueError, match=r".*cannot be built here, though predict counts it"):
        lm.DecoderOnly(config)
