"""Families before Llama: LayerNorm and biases, most of them with an MLP without a gate."""

from typing import Any

from cs336kit.predict.families.fields import Fields, activation, biases, only, sizes, with_rotary, with_windows


def _gpt2_sizes(f: Fields) -> dict[str, Any]:
    return sizes(f, layers="n_layer", d_model="n_embd", heads="n_head", d_ff="n_inner", context="n_positions")


def gpt2(f: Fields) -> dict[str, Any]:
    if f("add_cross_attention"):
        raise f.refuse("add_cross_attention", "False")
    return _gpt2_sizes(f) | {"mlp": activation(f, False)}


def gpt_bigcode(f: Fields) -> dict[str, Any]:
    config = gpt2(f)
    return config | {"kv_heads": 1 if f("multi_query") else config["heads"]}


def openai_gpt(f: Fields) -> dict[str, Any]:
    mlp = activation(f, False, "afn")
    # What it calls gelu is what others call gelu_new.
    mlp = "gelu_new" if mlp == "gelu" else mlp
    return _gpt2_sizes(f) | {"mlp": mlp, "norm_placement": "residual", "final_norm": False}


def gptj(f: Fields) -> dict[str, Any]:
    config = _gpt2_sizes(f)
    return config | {
        "mlp": activation(f, False), "positions": "rope", "rotary_dim": f("rotary_dim"), "norms_per_block": 1,
        "bias": ("up", "down"), "head_bias": True,
    }  # fmt: skip


def gpt_neo(f: Fields) -> dict[str, Any]:
    config = sizes(f, layers="num_layers", heads="num_heads")
    kinds = [
        kind for names, times in f("attention_types") or [[["global", "local"], 12]] for kind in list(names) * times
    ]
    if len(kinds) != config["layers"]:
        raise f.refuse("attention_types", f"kinds for {config['layers']} layers, as num_layers says")
    only(f, attention_layers=kinds)  # transformers writes these out into the files that it saves
    config |= {"mlp": activation(f, False), "bias": ("output", "up", "down")}
    held = tuple(kind == "local" for kind in kinds)
    return config | ({"window": f("window_size"), "window_layers": held} if any(held) else {})


def gpt_neox(f: Fields) -> dict[str, Any]:
    config = sizes(f)
    config |= {
        "mlp": activation(f, False), "positions": "rope", "parallel": bool(f("use_parallel_residual")),
        "bias": (*biases(f), "up", "down"),
    }  # fmt: skip
    return with_rotary(f, config, default=0.25)


def opt(f: Fields) -> dict[str, Any]:
    config = sizes(f, d_ff="ffn_dim")
    before = bool(f("do_layer_norm_before"))
    if not f("layer_norm_elementwise_affine"):
        config |= {"norm_scale": False}
    return config | {
        "mlp": activation(f, False), "extra_positions": 2, "embedding_dim": f("word_embed_proj_dim"),
        "bias": "all" if f("enable_bias") else "none", "norm_placement": "pre" if before else "residual",
        "final_norm": before and not f("_remove_final_layer_norm"),
    }  # fmt: skip


def bloom(f: Fields) -> dict[str, Any]:
    if f("apply_residual_connection_post_layernorm"):
        raise f.refuse("apply_residual_connection_post_layernorm", "False")
    config = sizes(f, layers="n_layer", heads="n_head")
    config.setdefault("context", f("seq_length") or 2048)
    return config | {"mlp": "gelu_new", "positions": "alibi", "embedding_norm": True}


def falcon(f: Fields) -> dict[str, Any]:
    config = sizes(f, kv_heads="num_kv_heads", d_ff="ffn_hidden_size")
    grouped, parallel = f("new_decoder_architecture"), f("parallel_attn")
    one, norms = f("multi_query"), f("num_ln_in_parallel_attn")
    if not grouped:
        config["kv_heads"] = 1 if one else config["heads"]
    config |= {
        "mlp": activation(f, False, "activation"), "positions": "alibi" if f("alibi") else "rope",
        "bias": "all" if f("bias") else "none",
    }  # fmt: skip
    if grouped or parallel:
        two = grouped and norms in (None, 2)
        config |= {"parallel": two, "norms_per_block": 2 if two else 1}
    return config


def mpt(f: Fields) -> dict[str, Any]:
    config = sizes(f, layers="n_layers", d_model="d_model", heads="n_heads", context="max_seq_len")
    attention = f("attn_config") or {}
    for name, usual in {"attn_type": "multihead_attention", "qk_ln": False, "prefix_lm": False}.items():
        if attention.get(name, usual) != usual:
            raise f.refuse(f"attn_config.{name}", repr(usual))
    if not f("no_bias"):
        raise f.refuse("no_bias", "True: transformers builds it without biases")
    ratio = f("expansion_ratio")
    return config | {
        "d_ff": ratio * config["d_model"], "mlp": "gelu", "positions": "alibi", "bias": "none", "norm_bias": False,
    }  # fmt: skip


def persimmon(f: Fields) -> dict[str, Any]:
    config = with_rotary(f, sizes(f) | {"mlp": activation(f, False), "positions": "rope"}, default=0.5)
    if f("qk_layernorm"):
        config |= {"qk_norm": "head", "qk_norm_bias": True}
    return config


def phi(f: Fields) -> dict[str, Any]:
    return persimmon(f) | {"norms_per_block": 1, "head_bias": True}


def starcoder2(f: Fields) -> dict[str, Any]:
    only(f, mlp_type="default", norm_type="layer_norm")
    config = sizes(f) | {"mlp": activation(f, False), "positions": "rope", "bias": "all" if f("use_bias") else "none"}
    return with_windows(f, config)
