import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys

import pytest

from cs336kit.predict import MODELS, TransformerConfig, program

TINY = {"layers": 2, "d_model": 16, "heads": 4, "vocab": 32, "context": 8}


def test_defaults_are_those_of_gpt2():
    config = TransformerConfig(**TINY)
    assert (config.kv_heads, config.head_dim, config.d_ff) == (4, 4, 64)
    assert (config.mlp, config.norm, config.positions, config.bias) == ("gelu", "layernorm", "learned", "all")
    assert config.norm_bias and config.tied_head and config.experts == 0 and config.dropout == 0


def test_head_dim_need_not_be_d_model_over_heads():
    config = TransformerConfig(**TINY, head_dim=6, kv_heads=2)
    assert (config.query_width, config.kv_heads) == (24, 2)
    assert TransformerConfig(**{**TINY, "heads": 3}, head_dim=4).query_width == 12


def test_rmsnorm_has_no_shift_unless_asked_and_then_it_is_refused():
    assert TransformerConfig(**TINY, norm="rmsnorm").norm_bias is False
    with pytest.raises(ValueError, match="RMSNorm has a scale only"):
        TransformerConfig(**TINY, norm="rmsnorm", norm_bias=True)


@pytest.mark.parametrize("experts", [None, 0, 1])
def test_one_expert_is_a_dense_model(experts):
    assert TransformerConfig(**TINY, experts=experts) == TransformerConfig(**TINY)


def test_a_configuration_is_frozen_hashable_and_survives_json():
    config = TransformerConfig(**TINY, kv_heads=2, experts=4, experts_per_token=2, window=4, source="a paper")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.layers = 3
    again = TransformerConfig.from_dict(json.loads(json.dumps(dataclasses.asdict(config))))
    assert again == config and hash(again) == hash(config)
    assert dataclasses.replace(config, layers=3).layers == 3


MIXTURE = {"experts": 4, "experts_per_token": 2}


def test_a_pickled_configuration_is_hashed_where_it_is_read():
    config = TransformerConfig(**TINY)
    assert hash(config) == hash(pickle.loads(pickle.dumps(config))) == hash(copy.copy(config))
    read = f"import pickle; one = pickle.loads({pickle.dumps(config)!r}); print(one in {{type(one)(**{TINY!r})}})"
    for seed in "12":
        found = subprocess.run(
            [sys.executable, "-c", read], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert found.stdout == "True\n", found.stderr


def test_a_window_in_no_layer_is_no_window():
    none = TransformerConfig(**TINY, window=4, window_layers=(False,))
    assert none == TransformerConfig(**TINY) and none.window is None
    assert TransformerConfig(**TINY, bias=["query", "key", "value"]) == TransformerConfig(**TINY, bias="qkv")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layers": 0}, "layers must be a positive whole number"),
        ({"layers": 2.0}, "layers must be"),
        ({"layers": True}, "layers must be"),
        ({"d_model": -1}, "d_model must be"),
        ({"vocab": float("nan")}, "vocab must be"),
        ({"heads": 3}, "heads=3 does not divide d_model=16: change one of them, or give head_dim"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"kv_heads": 8}, "kv_heads=8 does not divide heads=4"),
        ({"kv_heads": 0}, "kv_heads must be"),
        ({"head_dim": 0}, "head_dim must be"),
        ({"head_dim": 3, "positions": "rope"}, "head_dim=3 is odd"),
        ({"mlp": "tanh"}, "unknown mlp 'tanh'"),
        ({"mlp": ["gelu"]}, "unknown mlp"),
        ({"norm": "rms"}, "unknown norm 'rms'.*rmsnorm"),
        ({"positions": "absolute"}, "unknown positions 'absolute'"),
        ({"bias": True}, "unknown bias True.*all, none, qkv"),
        ({"mlp": "swiglu"}, "d_ff is missing"),
        ({"d_ff": 0}, "d_ff must be"),
        ({"norm_bias": 1}, "norm_bias must be True or False, got 1"),
        ({"tied_head": "no"}, "tied_head must be True or False, got 'no'"),
        ({"experts": 8}, "experts_per_token is missing"),
        ({"experts": 8, "experts_per_token": 9}, "experts_per_token=9 is more than experts=8"),
        ({"experts_per_token": 2}, "a dense model has no experts to choose from"),
        ({"experts": -1}, "experts must be"),
        ({"window": 0}, "window must be"),
        ({"dropout": 1}, "dropout is 1"),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"dropout": True}, "dropout is True"),
        ({"norms_per_block": 3}, "norms_per_block is 3"),
        ({"dense_d_ff": 0}, "dense_d_ff must be a positive whole number"),
        ({"norms_per_block": 2.0}, "norms_per_block must be a positive whole number .* got 2.0"),
        ({"norms_per_block": True}, "norms_per_block must be a positive whole number .* got True"),
        ({"experts": 0.0}, "experts must be"),
        ({"layers": 10**12}, r"layers must be at most 10\*\*5, got 1000000000000"),
        ({"norm": "rmsnorm", "norm_bias": True}, "norm_bias=True with norm='rmsnorm': RMSNorm has a scale only"),
        ({"norm_scale": False, "norm_bias": True}, "a norm without a scale has no shift; drop one of them"),
        ({"parallel": True, "norm_placement": "post"}, "norm_placement='post' with parallel branches"),
        ({"norms_per_block": 1, "norm_placement": "sandwich"}, "norm_placement='sandwich' with parallel branches"),
        ({"qk_norm_bias": True}, "qk_norm_bias=True with qk_norm='none': there is no scale"),
        ({"bias": ["gate"]}, "bias names 'gate', and mlp='gelu' has no gate: leave it out"),
        ({"bias": ["queries"]}, "unknown matrix with a bias 'queries'"),
        ({"kv_latent": 4}, "rotary_dim is missing: with kv_latent, say how wide"),
        ({"rotary_dim": 8}, "rotary_dim=8 is more than head_dim=4: give at most that"),
        ({"rotary_dim": 3, "positions": "rope"}, "rotary_dim=3 is odd: positions='rope' rotates pairs"),
        ({"query_latent": 4}, "query_latent without kv_latent: give kv_latent too, or neither"),
        ({"kv_latent": 4, "rotary_dim": 2, "kv_heads": 2}, "kv_heads=2 with kv_latent: every query head makes its own"),
        ({"rope_layers": (), "positions": "rope"}, r"rope_layers is \(\): give True or False for each layer"),
        ({"window": 4, "window_layers": (1, 0)}, r"window_layers is \(1, 0\): give True or False for each layer"),
        ({"window": 4, "window_layers": (True, 1)}, r"window_layers is \(True, 1\): give True or False for each layer"),
        ({**MIXTURE, "sparse_layers": (False,)}, "sparse_layers has no True: with experts=4, at least one layer has"),
        ({"shared_d_ff": 4}, "shared_d_ff and router_bias belong to a mixture: give experts, or leave them out"),
        ({"router_bias": True}, "shared_d_ff and router_bias belong to a mixture"),
        ({**MIXTURE, "shared_gate": True}, "shared_gate=True without shared_d_ff: there is no shared expert to weigh"),
    ],
)
def test_bad_combinations_are_refused_with_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        TransformerConfig(**{**TINY, **change})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "not list"),
        ({**TINY, "n_heads": 4}, "unknown field of a TransformerConfig 'n_heads'.*heads"),
        ({"layers": 2, "heads": 4}, "lacks d_model, vocab, context"),
    ],
)
def test_from_dict_names_what_is_unknown_or_missing(values, sentence):
    with pytest.raises(ValueError, match=sentence):
        TransformerConfig.from_dict(values)


def test_rotary_positions_turn_halves_of_each_head():
    operations = program(MODELS["llama-3-8b"], batch=2, sequence=16).operations()
    halves = {tuple(tensor.shape for tensor in op.outputs) for op, _ in operations if op.kind == "chunk"}
    # 32 heads of queries and 8 of keys, each 128 wide.
    assert halves == {((2, heads, 16, 64),) * 2 for heads in (32, 8)}


def test_only_experts_between_the_first_and_the_last_are_described_together():
    def together(experts):
        config = TransformerConfig(**TINY | {"layers": 1}, experts=experts, experts_per_token=1)
        operations = program(config, batch=experts, sequence=8).operations()
        return {count for op, count in operations if "experts" in op.place.split("/")}

    assert together(2) == set() and together(5) == {3}


@pytest.mark.parametrize(
    ("name", "power"), [("layers", 5), ("d_model", 7), ("heads", 6), ("vocab", 9), ("context", 10), ("experts", 5)]
)
def test_sizes_far_beyond_any_model_are_refused(name, power):
    given = {**TINY, "head_dim": 4, "experts_per_token": 1, "experts": 2}
    assert getattr(TransformerConfig(**{**given, name: 10**power}), name) == 10**power
    sentence = rf"{name} must be at most 10\*\*{power}, got \d+"
    with pytest.raises(ValueError, match=sentence):
        TransformerConfig(**{**given, name: 10**power + 1})


T, F = True, False


@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ({"d_model": 20}, {"d_ff": 80, "head_dim": 5}),
        ({"positions": "rope", "rotary_dim": 4}, {"rotary_dim": None}),
        ({"positions": "rope", "rotary_dim": 2}, {"rotary_dim": 2}),
        ({"positions": "none", "rotary_dim": 3}, {"rotary_dim": 3}),
        ({"positions": "rope", "head_dim": 5, "rotary_dim": 4}, {"rotary_dim": 4}),
        ({"positions": "rope", "kv_latent": 3, "rotary_dim": 4}, {"rotary_dim": 4}),
        ({"value_dim": 4, "embedding_dim": 16}, {"value_dim": None, "embedding_dim": None}),
        ({"value_dim": 5, "embedding_dim": 17}, {"value_dim": 5, "embedding_dim": 17}),
        ({**MIXTURE, "dense_d_ff": 64, "sparse_layers": (T, F)}, {"dense_d_ff": None}),
        ({**MIXTURE, "dense_d_ff": 65, "sparse_layers": (T, F)}, {"dense_d_ff": 65}),
        ({**MIXTURE, "dense_d_ff": 65}, {"dense_d_ff": None}),
        ({"experts": 2, "experts_per_token": 2}, {"experts": 2, "experts_per_token": 2}),
        ({"experts_per_token": 0}, {"experts_per_token": 0}),
        ({"experts_per_token": 1}, {"experts_per_token": 0}),
        ({"norm_scale": F}, {"norm_bias": F}),
        ({"norms_per_block": 1, "parallel": T}, {"parallel": F, "side_by_side": T}),
        ({"parallel": T}, {"parallel": T, "side_by_side": T}),
        ({"bias": ["up", "query"]}, {"bias": ("query", "up")}),
        ({"bias": ["query", "key", "value", "output", "up", "down"]}, {"bias": "all"}),
        ({"bias": []}, {"bias": "none"}),
        ({"layers": 3, "window": 4, "window_layers": (T, F)}, {"window_layers": (T, F, T)}),
        ({"window": 4, "window_layers": (T, T)}, {"window": 4, "window_layers": None}),
        ({"window_layers": (T, F)}, {"window_layers": None}),
        ({"rope_layers": (T, F)}, {"rope_layers": None}),
        ({"rope_layers": (F, T), "positions": "rope"}, {"rope_layers": (F, T)}),
        ({"sparse_layers": (T, F)}, {"sparse_layers": None}),
        ({**MIXTURE, "sparse_layers": (T,)}, {"sparse_layers": None}),
        ({"dropout": 0}, {"dropout": 0}),
        ({"extra_positions": 0}, {"extra_positions": 0}),
    ],
)  # fmt: skip
def test_what_is_left_out_follows_and_what_says_nothing_is_left_out(given, settled):
    config = TransformerConfig(**{**TINY, **given})
    assert {name: getattr(config, name) for name in settled} == settled


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"embedding_scale": None}, "embedding_scale must be"),
        ({"residual_scale": 0}, "residual_scale must be"),
        ({"attention_softcap": 0.0}, "attention_softcap must be"),
        ({"attention_scale": -1.0}, "attention_scale must be"),
        ({"qk_norm": "plain", "qk_norm_bias": True}, "qk_norm_bias=True with qk_norm='plain'"),
        ({"extra_positions": -1}, "extra_positions must be"),
        ({"embedding_dim": 0}, "embedding_dim must be"),
        ({"parallel": 1}, "parallel must be True or False, got 1"),
        ({"sinks": 1}, "sinks must be True or False, got 1"),
        ({"experts_per_token": 3, "experts": 1}, "a dense model has no experts to choose from"),
    ],
)
def test_scales_and_switches_are_looked_at_one_by_one(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        TransformerConfig(**{**TINY, **change})


def test_what_holds_in_which_layer():
    def said(config):
        return [
            [ask(layer) for layer in range(config.layers)]
            for ask in (config.has_rope, config.window_of, config.is_sparse)
        ]

    plain = TransformerConfig(**TINY)
    assert said(plain) == [[F, F], [None, None], [F, F]] and plain.sparse_count == 0
    every = TransformerConfig(**TINY, **MIXTURE, positions="rope", window=3)
    assert said(every) == [[T, T], [3, 3], [T, T]] and every.sparse_count == 2
    some = {"rope_layers": (T, F), "window_layers": (F, T), "sparse_layers": (F, T, T)}
    mixed = TransformerConfig(**{**TINY, "layers": 3}, **MIXTURE, positions="rope", window=3, **some)
    assert said(mixed) == [[T, F, T], [None, 3, None], [F, T, T]] and mixed.sparse_count == 2


def test_widths_follow_from_heads_unless_they_are_given():
    plain = TransformerConfig(**TINY, kv_heads=2)
    widths = ("query_width", "rotary_width", "value_head_dim", "embedding_width", "dense_width", "gated")
    assert [getattr(plain, name) for name in widths] == [4 * 4, 4, 4, 16, 64, F]
    own = {"rotary_dim": 2, "value_dim": 6, "embedding_dim": 10, "dense_d_ff": 7, "d_ff": 9, "mlp": "swiglu"}
    other = TransformerConfig(**TINY, **own, **MIXTURE, head_dim=8, sparse_layers=(T, F))
    assert [getattr(other, name) for name in widths] == [4 * 8, 2, 6, 10, 7, T]


def test_a_configuration_shows_its_sizes_and_what_differs_from_the_usual():
    shown = repr(TransformerConfig(**TINY, final_norm=False, source="a paper"))
    assert shown.startswith(
        "TransformerConfig(layers=2, d_model=16, heads=4, kv_heads=4, d_ff=64, vocab=32, context=8, mlp='gelu'"
    )
    assert shown.endswith("dropout=0.0, norms_per_block=2, final_norm=False)")
