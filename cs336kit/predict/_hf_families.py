"""What each model_type of Hugging Face's transformers means, in the words of a TransformerConfig.

A family is a function that reads the fields of a config.json and returns ours. What it does not read, and no list calls
irrelevant, is refused by `from_hf`: see there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cs336kit.predict._common.checks import at_most, positive_int
from cs336kit.predict.transformer import LARGEST, MATRICES

ALL_ATTENTION = MATRICES[:4]
_ACTIVATIONS = {
    "gelu": ("gelu", "geglu"),
    "gelu_python": ("gelu", "geglu"),
    "gelu_new": ("gelu_new", "geglu_tanh"),
    "gelu_fast": ("gelu_new", "geglu_tanh"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
    "relu": ("relu", "reglu"),
    "relu2": ("relu2", "relu2glu"),
    "silu": ("silu", "swiglu"),
    "swish": ("silu", "swiglu"),
    "xielu": ("xielu", ""),
}


class Fields(Protocol):
    """The fields of a config.json, those left out with the default of transformers; remembers what was read."""

    notes: list[str]

    def __call__(self, name: str) -> Any:
        """The value of a field, which the family understands."""

    def __contains__(self, name: str) -> bool:
        """Whether this model_type has such a field, given or not."""

    def refuse(self, name: str, allowed: str) -> ValueError:
        """The error for a value that no TransformerConfig can say."""


Family = Callable[[Fields], dict[str, Any]]


def _activation(f: Fields, gated: bool, *names: str) -> str:
    for name in names or ("hidden_activation", "hidden_act", "activation_function"):
        if name in f and (value := f(name)) is not None:
            if mlp := _ACTIVATIONS.get(str(value), ("", ""))[gated]:
                return mlp
            raise f.refuse(name, f"one of {', '.join(_ACTIVATIONS)}")
    raise f.refuse("hidden_act", "an activation")


def _sizes(f: Fields, **named: str) -> dict[str, Any]:
    """The sizes under their usual names; `named` gives the others."""
    usual = {
        "layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "d_ff": "intermediate_size",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
        "tied_head": "tie_word_embeddings",
    }
    found = {ours: f(theirs) for ours, theirs in {**usual, **named}.items() if theirs in f}
    if "tied_head" in found:
        found["tied_head"] = bool(found["tied_head"])
    if found.get("layers") is not None:  # patterns of layers are written out before the configuration checks its sizes
        at_most("num_hidden_layers", positive_int("num_hidden_layers", found["layers"]), LARGEST["layers"])
    return {name: value for name, value in found.items() if value is not None}


def _bias(f: Fields, *, attention: Sequence[str] = ALL_ATTENTION, mlp: Sequence[str] = ()) -> tuple[str, ...]:
    """Biases that the usual flags say."""
    biased: tuple[str, ...] = ()
    if "attention_bias" in f and f("attention_bias"):
        biased += tuple(attention)
    if "mlp_bias" in f and f("mlp_bias"):
        biased += tuple(mlp)
    return biased


def _rotary(f: Fields, config: dict[str, Any], default: float = 1.0) -> None:
    """The share of each head that is turned: a field of its own, or one of the rotary parameters."""
    share = f("partial_rotary_factor") if "partial_rotary_factor" in f else None
    if share is None and "rotary_pct" in f:
        share = f("rotary_pct")
    parameters = f("rope_parameters") if "rope_parameters" in f else None
    if share is None and isinstance(parameters, dict):
        share = parameters.get("partial_rotary_factor")
    share = default if share is None else share
    head_dim = config.get("head_dim") or config["d_model"] // config["heads"]
    if share != 1:
        config["rotary_dim"] = int(head_dim * share)


def _windows(f: Fields, config: dict[str, Any], *, window: str = "sliding_window", pattern: int | None = None) -> None:
    """The layers' kinds of attention: a list of them, or one that follows from a period."""
    size, kinds = f(window), f("layer_types") if "layer_types" in f else None
    layers = config["layers"]
    if kinds is not None:
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention", "chunked_attention"):
                raise f.refuse("layer_types", "full_attention, sliding_attention or chunked_attention in each layer")
        held = [kind != "full_attention" for kind in kinds][:layers]
        if "chunked_attention" in kinds:
            config["window_kind"] = "chunked"
    elif pattern:
        held = [(layer + 1) % pattern != 0 for layer in range(layers)]
    else:
        held = [True] * layers
    if size and any(held):
        config |= {"window": size, "window_layers": tuple(held)}
    else:
        config.pop("window_kind", None)


def _llama(
    f: Fields,
    *,
    gated: bool = True,
    attention: Sequence[str] = ALL_ATTENTION,
    **fixed: Any,
) -> dict[str, Any]:
    """Llama, and what differs from it by flags alone."""
    config = _sizes(f)
    config |= {
        "norm": "rmsnorm", "positions": "rope", "mlp": _activation(f, gated),
        "bias": _bias(f, attention=attention, mlp=MATRICES[4:] if gated else MATRICES[5:]),
    }  # fmt: skip
    return config | fixed


def _windowed(f: Fields, **fixed: Any) -> dict[str, Any]:
    config = _llama(f, **fixed)
    _windows(f, config)
    return config


def _qwen_window(f: Fields, config: dict[str, Any]) -> None:
    """A window only where a switch says so, from some layer on."""
    size, first = f("sliding_window"), f("max_window_layers")
    kinds = f("layer_types")
    if not f("use_sliding_window"):
        return
    if kinds is None:
        config |= {"window": size, "window_layers": tuple(layer >= first for layer in range(config["layers"]))}
    else:
        _windows(f, config)


def _qwen2(f: Fields) -> dict[str, Any]:
    config = _llama(f, bias="qkv")
    _qwen_window(f, config)
    return config


def _qwen3(f: Fields) -> dict[str, Any]:
    config = _llama(f, qk_norm="head")
    _qwen_window(f, config)
    return config


def _sparse(layers: int, holds: Callable[[int], bool]) -> tuple[bool, ...]:
    return tuple(bool(holds(layer)) for layer in range(layers))


def _mixture(
    f: Fields,
    config: dict[str, Any],
    *,
    experts: str,
    per_token: str,
    width: str = "",
    sparse: tuple[bool, ...] | None = None,
) -> None:
    """Experts of the width of a field of their own (else all MLPs are as wide), in some layers or in all."""
    count = f(experts)
    if not count or (sparse is not None and not any(sparse)):
        return
    config |= {"experts": count, "experts_per_token": f(per_token)}
    if width:
        config |= {"dense_d_ff": config["d_ff"], "d_ff": f(width)}
    if sparse is not None:
        config["sparse_layers"] = sparse


def _qwen_moe(f: Fields, **fixed: Any) -> dict[str, Any]:
    config = _llama(f, **fixed)
    step, dense = f("decoder_sparse_step"), f("mlp_only_layers") or ()
    sparse = _sparse(config["layers"], lambda layer: layer not in dense and (layer + 1) % step == 0)
    _mixture(
        f, config, experts="num_experts", per_token="num_experts_per_tok", width="moe_intermediate_size", sparse=sparse
    )
    return config


def _qwen2_moe(f: Fields) -> dict[str, Any]:
    config = _qwen_moe(f)
    config["bias"] = "qkv" if f("qkv_bias") else "none"
    f("sliding_window"), f("max_window_layers"), f("layer_types")  # matter only with that switch
    if f("use_sliding_window"):
        raise f.refuse("use_sliding_window", "False")
    if config.get("experts"):
        config |= {"shared_d_ff": f("shared_expert_intermediate_size"), "shared_gate": True}
    return config


def _qwen3_moe(f: Fields) -> dict[str, Any]:
    config = _qwen_moe(f, qk_norm="head")
    window, _ = f("sliding_window"), f("max_window_layers")
    if f("use_sliding_window"):
        config["window"] = window
    return config


def _mixtral(f: Fields) -> dict[str, Any]:
    config = _windowed(f)
    _mixture(f, config, experts="num_local_experts", per_token="num_experts_per_tok")
    return config


def _gpt_oss(f: Fields) -> dict[str, Any]:
    config = _llama(f)
    _windows(f, config, pattern=2)
    _mixture(f, config, experts="num_local_experts", per_token="num_experts_per_tok")
    config |= {"mlp": "swiglu_clipped", "sinks": True, "router_bias": True}
    config["bias"] = (*config["bias"], "gate", "up", "down")
    return config


# -- before Llama ----------------------------------------------------------------------------------------------------------


def _gpt2_sizes(f: Fields, **named: str) -> dict[str, Any]:
    return _sizes(f, layers="n_layer", d_model="n_embd", heads="n_head", d_ff="n_inner", context="n_positions", **named)


def _gpt2(f: Fields) -> dict[str, Any]:
    if f("add_cross_attention"):
        raise f.refuse("add_cross_attention", "False")
    return _gpt2_sizes(f) | {"mlp": _activation(f, False)}


def _gpt_bigcode(f: Fields) -> dict[str, Any]:
    config = _gpt2(f)
    return config | {"kv_heads": 1 if f("multi_query") else config["heads"]}


def _openai_gpt(f: Fields) -> dict[str, Any]:
    return _gpt2_sizes(f) | {"mlp": _activation(f, False, "afn"), "norm_placement": "residual", "final_norm": False}


def _gptj(f: Fields) -> dict[str, Any]:
    config = _gpt2_sizes(f)
    return config | {
        "mlp": _activation(f, False), "positions": "rope", "rotary_dim": f("rotary_dim"), "norms_per_block": 1,
        "bias": ("up", "down"), "head_bias": True,
    }  # fmt: skip


def _gpt_neo(f: Fields) -> dict[str, Any]:
    config = _sizes(f, layers="num_layers", heads="num_heads")
    kinds = [
        kind for names, times in f("attention_types") or [[["global", "local"], 12]] for kind in list(names) * times
    ]
    config |= {"mlp": _activation(f, False), "bias": ("output", "up", "down")}
    held = tuple(kind == "local" for kind in kinds)
    return config | ({"window": f("window_size"), "window_layers": held} if any(held) else {})


def _gpt_neox(f: Fields) -> dict[str, Any]:
    config = _sizes(f)
    config |= {
        "mlp": _activation(f, False), "positions": "rope", "parallel": bool(f("use_parallel_residual")),
        "bias": (*_bias(f), "up", "down"),
    }  # fmt: skip
    _rotary(f, config, default=0.25)
    return config


def _opt(f: Fields) -> dict[str, Any]:
    config = _sizes(f, d_ff="ffn_dim")
    before = bool(f("do_layer_norm_before"))
    if not f("layer_norm_elementwise_affine"):
        config |= {"norm_scale": False}
    return config | {
        "mlp": _activation(f, False), "extra_positions": 2, "embedding_dim": f("word_embed_proj_dim"),
        "bias": "all" if f("enable_bias") else "none", "norm_placement": "pre" if before else "residual",
        "final_norm": before and not f("_remove_final_layer_norm"),
    }  # fmt: skip


def _bloom(f: Fields) -> dict[str, Any]:
    if f("apply_residual_connection_post_layernorm"):
        raise f.refuse("apply_residual_connection_post_layernorm", "False")
    config = _sizes(f, layers="n_layer", heads="n_head")
    config.setdefault("context", f("seq_length") if "seq_length" in f and f("seq_length") else 2048)
    return config | {"mlp": "gelu_new", "positions": "alibi", "embedding_norm": True}


def _falcon(f: Fields) -> dict[str, Any]:
    config = _sizes(f, kv_heads="num_kv_heads", d_ff="ffn_hidden_size")
    grouped, parallel = f("new_decoder_architecture"), f("parallel_attn")
    if not grouped:
        config["kv_heads"] = 1 if f("multi_query") else config["heads"]
    config |= {
        "mlp": _activation(f, False, "activation"), "positions": "alibi" if f("alibi") else "rope",
        "bias": "all" if f("bias") else "none",
    }  # fmt: skip
    if grouped or parallel:
        two = grouped and f("num_ln_in_parallel_attn") in (None, 2)
        config |= {"parallel": two, "norms_per_block": 2 if two else 1}
    return config


def _mpt(f: Fields) -> dict[str, Any]:
    config = _sizes(f, layers="n_layers", d_model="d_model", heads="n_heads", context="max_seq_len")
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


def _phi(f: Fields) -> dict[str, Any]:
    config = _sizes(f)
    config |= {"mlp": _activation(f, False), "positions": "rope", "norms_per_block": 1, "head_bias": True}
    _rotary(f, config, default=0.5)
    if f("qk_layernorm"):
        config |= {"qk_norm": "head", "qk_norm_bias": True}
    return config


def _persimmon(f: Fields) -> dict[str, Any]:
    config = _sizes(f) | {"mlp": _activation(f, False), "positions": "rope"}
    _rotary(f, config, default=0.5)
    if f("qk_layernorm"):
        config |= {"qk_norm": "head", "qk_norm_bias": True}
    return config


def _stablelm(f: Fields) -> dict[str, Any]:
    config = _llama(f, norm="layernorm", bias="qkv" if f("use_qkv_bias") else "none")
    _rotary(f, config, default=0.25)
    if f("use_parallel_residual"):
        config["norms_per_block"] = 1
    if f("qk_layernorm"):
        config["qk_norm"] = "heads"
    return config


def _starcoder2(f: Fields) -> dict[str, Any]:
    config = _sizes(f) | {"mlp": _activation(f, False), "positions": "rope", "bias": "all" if f("use_bias") else "none"}
    _windows(f, config)
    return config


# -- after Llama -----------------------------------------------------------------------------------------------------------


def _partial(default: float, **fixed: Any) -> Family:
    """Llama with rotary positions on a part of each head."""

    def read(f: Fields) -> dict[str, Any]:
        config = _llama(f, **fixed)
        _rotary(f, config, default=default)
        return config

    return read


def _glm(f: Fields, **fixed: Any) -> dict[str, Any]:
    config = _llama(f, **fixed)
    config["bias"] = _bias(f, attention=ALL_ATTENTION[:3])
    _rotary(f, config, default=0.5)
    return config


def _phi3(f: Fields) -> dict[str, Any]:
    config = _windowed(f)
    _rotary(f, config)
    return config


def _phimoe(f: Fields) -> dict[str, Any]:
    config = _mixtral(f) | {"norm": "layernorm", "head_bias": bool(f("lm_head_bias"))}
    return config


def _cohere(f: Fields) -> dict[str, Any]:
    config = _llama(f, norm="layernorm", norm_bias=False, norms_per_block=1, logit_scale=f("logit_scale") or 1.0)
    if "use_qk_norm" in f and f("use_qk_norm"):
        config["qk_norm"] = "heads"
    return config


def _cohere2(f: Fields) -> dict[str, Any]:
    config = _cohere(f)
    period = f("sliding_window_pattern") if "sliding_window_pattern" in f else None
    _windows(f, config, pattern=period or 4)
    if "window" in config:
        config["rope_layers"] = config["window_layers"]
    return config


def _gemma(f: Fields) -> dict[str, Any]:
    return _llama(f, norm_unit_offset=True, embedding_scale=f("hidden_size") ** 0.5)


def _gemma2(f: Fields) -> dict[str, Any]:
    config = _gemma(f) | {"norm_placement": "sandwich", "attention_scale": f("query_pre_attn_scalar") ** -0.5}
    if f("use_bidirectional_attention"):
        raise f.refuse("use_bidirectional_attention", "False")
    for ours, theirs in (("attention_softcap", "attn_logit_softcapping"), ("logit_softcap", "final_logit_softcapping")):
        if f(theirs):
            config[ours] = f(theirs)
    _windows(f, config, pattern=2)
    return config


def _gemma3(f: Fields) -> dict[str, Any]:
    config = _gemma2(f) | {"qk_norm": "head"}
    if not ("layer_types" in f and f("layer_types")):
        period = f("sliding_window_pattern") if "sliding_window_pattern" in f else None
        _windows(f, config, pattern=period or 6)
    return config


def _vaultgemma(f: Fields) -> dict[str, Any]:
    config = _gemma(f) | {"attention_scale": f("query_pre_attn_scalar") ** -0.5}
    for ours, theirs in (("attention_softcap", "attn_logit_softcapping"), ("logit_softcap", "final_logit_softcapping")):
        if f(theirs):
            config[ours] = f(theirs)
    _windows(f, config, pattern=2)
    return config


def _granite(f: Fields) -> dict[str, Any]:
    return _llama(f) | {
        "embedding_scale": f("embedding_multiplier"), "residual_scale": f("residual_multiplier"),
        "attention_scale": f("attention_multiplier"), "logit_scale": 1 / f("logits_scaling"),
    }  # fmt: skip


def _granitemoe(f: Fields) -> dict[str, Any]:
    config = _granite(f)
    _mixture(f, config, experts="num_local_experts", per_token="num_experts_per_tok")
    if "shared_intermediate_size" in f and config.get("experts"):
        config["shared_d_ff"] = f("shared_intermediate_size")
    return config


def _olmo(f: Fields) -> dict[str, Any]:
    return _llama(f, norm="layernorm", norm_scale=False)


def _olmo2(f: Fields) -> dict[str, Any]:
    return _llama(f, norm_placement="post", qk_norm="width")


def _olmo3(f: Fields) -> dict[str, Any]:
    config = _olmo2(f)
    _windows(f, config, pattern=4)
    return config


def _olmoe(f: Fields) -> dict[str, Any]:
    config = _llama(f, qk_norm="width")
    _mixture(f, config, experts="num_experts", per_token="num_experts_per_tok")
    return config


def _flex_olmo(f: Fields) -> dict[str, Any]:
    return _olmoe(f) | {"norm_placement": "post"}


def _exaone4(f: Fields) -> dict[str, Any]:
    config = _llama(f, norm_placement="post", qk_norm="head")
    period = f("sliding_window_pattern")
    if isinstance(period, str):  # "LLLG": local and global layers; the last one is global whatever they say
        held = (*(period[layer % len(period)] == "L" for layer in range(config["layers"] - 1)), False)
        size, kinds = f("sliding_window"), f("layer_types")
        if kinds is None and size and any(held):
            return config | {"window": size, "window_layers": held}
        period = None
    _windows(f, config, pattern=period)
    return config


def _smollm3(f: Fields) -> dict[str, Any]:
    config = _llama(f)
    period = f("no_rope_layer_interval")
    turned = f("no_rope_layers") or [(layer + 1) % period != 0 for layer in range(config["layers"])]
    config["rope_layers"] = tuple(bool(turns) for turns in turned)
    f("sliding_window"), f("layer_types")  # matter only with that switch
    if f("use_sliding_window"):
        _windows(f, config)
    return config


def _llama4(f: Fields) -> dict[str, Any]:
    config = _llama(f)
    period, layers = f("no_rope_layer_interval"), config["layers"]
    turned = f("no_rope_layers") or [(layer + 1) % period != 0 for layer in range(layers)]
    config["rope_layers"] = tuple(bool(turns) for turns in turned)
    kinds = f("layer_types")
    if kinds is None and f("attention_chunk_size"):
        config |= {
            "window": f("attention_chunk_size"), "window_kind": "chunked",
            "window_layers": tuple(bool(turns) for turns in turned[:layers]),
        }  # fmt: skip
    elif kinds is not None:
        _windows(f, config, window="attention_chunk_size")
    step, chosen = f("interleave_moe_layer_step"), f("moe_layers")
    sparse = _sparse(layers, lambda layer: layer in chosen if chosen is not None else (layer + 1) % step == 0)
    expert = config["d_ff"]
    config["d_ff"] = f("intermediate_size_mlp")
    _mixture(
        f,
        config,
        experts="num_local_experts",
        per_token="num_experts_per_tok",
        width="intermediate_size",
        sparse=sparse,
    )
    if config.get("experts"):
        config["shared_d_ff"] = expert
    if f("use_qk_norm"):
        config["qk_norm"] = "plain"
    return config


def _latent(f: Fields, config: dict[str, Any]) -> None:
    config |= {
        "kv_latent": f("kv_lora_rank"), "query_latent": f("q_lora_rank") or 0, "rotary_dim": f("qk_rope_head_dim"),
        "head_dim": f("qk_nope_head_dim") + f("qk_rope_head_dim"), "value_dim": f("v_head_dim"),
    }  # fmt: skip
    config.pop("kv_heads", None)
    for name in ("num_nextn_predict_layers", "num_mtp_layers"):
        if name in f and (count := f(name)):
            f.notes.append(f"{count} layer(s) that predict further tokens ({name}) are left out")
            break


def _first_dense(
    f: Fields,
    config: dict[str, Any],
    *,
    experts: str = "n_routed_experts",
    shared: str = "n_shared_experts",
    default: int = 0,
) -> None:
    """Dense layers first, then experts, and those that every token visits."""
    if "mlp_layer_types" in f and f("mlp_layer_types"):
        sparse = tuple(kind == "sparse" for kind in f("mlp_layer_types"))
    else:
        first = f("first_k_dense_replace") if "first_k_dense_replace" in f else default
        step = f("moe_layer_freq") if "moe_layer_freq" in f else 1
        if step not in (None, 1):
            raise f.refuse("moe_layer_freq", "1")
        sparse = _sparse(config["layers"], lambda layer: layer >= (first or 0))
    _mixture(f, config, experts=experts, per_token="num_experts_per_tok", width="moe_intermediate_size", sparse=sparse)
    if config.get("experts"):
        config["shared_d_ff"] = (f(shared) or 0) * config["d_ff"]


def _deepseek(f: Fields) -> dict[str, Any]:
    return _latent_mixture(f, default=0)


def _latent_mixture(f: Fields, *, default: int) -> dict[str, Any]:
    config = _youtu(f)
    _first_dense(f, config, default=default)
    return config


def _youtu(f: Fields) -> dict[str, Any]:
    config = _llama(f)
    _latent(f, config)
    config["bias"] = ("key", "output") if f("attention_bias") else "none"
    if "mlp_bias" in f and f("mlp_bias"):
        raise f.refuse("mlp_bias", "False: its experts have no biases")
    return config


def _dots1(f: Fields) -> dict[str, Any]:
    config = _llama(f, qk_norm="head")
    first = f("max_window_layers")
    if f("layer_types") is None and f("sliding_window"):
        held = tuple(layer >= first for layer in range(config["layers"]))
        config |= {"window": f("sliding_window"), "window_layers": held}
    else:
        _windows(f, config)
    _first_dense(f, config)
    return config


def _glm4_moe(f: Fields) -> dict[str, Any]:
    config = _glm(f, qk_norm="head" if f("use_qk_norm") else "none")
    for name in ("num_nextn_predict_layers", "num_mtp_layers"):
        if name in f and (count := f(name)):
            f.notes.append(f"{count} layer(s) that predict further tokens ({name}) are left out")
            break
    _first_dense(f, config)
    return config


def _ernie4_5(f: Fields) -> dict[str, Any]:
    return _llama(f, bias="all" if f("use_bias") else "none")


def _ernie4_5_moe(f: Fields) -> dict[str, Any]:
    config = _ernie4_5(f)
    if f("use_bias"):
        raise f.refuse("use_bias", "False: its experts have no biases")
    layers = config["layers"]
    first, last, step = f("moe_layer_start_index"), f("moe_layer_end_index"), f("moe_layer_interval")
    last = layers if last == -1 else last
    sparse = _sparse(layers, lambda layer: (layer + 1) % step == 0 and first <= layer <= last)
    _mixture(f, config, experts="moe_num_experts", per_token="moe_k", width="moe_intermediate_size", sparse=sparse)
    if config.get("experts"):
        config |= {"shared_d_ff": f("moe_num_shared_experts") * config["d_ff"], "router_bias": True}
    return config


def _minimax_m2(f: Fields) -> dict[str, Any]:
    config = _llama(f, qk_norm="width")
    _rotary(f, config)
    _mixture(f, config, experts="num_local_experts", per_token="num_experts_per_tok")
    return config


def _hunyuan_moe(f: Fields) -> dict[str, Any]:
    config = _llama(f, qk_norm="head")
    experts, chosen = f("num_experts"), f("moe_topk")
    for value, name in ((experts, "num_experts"), (chosen, "moe_topk")):
        if isinstance(value, list) and len(set(value)) > 1:
            raise f.refuse(name, "one number for all layers")
    config |= {
        "experts": experts[0] if isinstance(experts, list) else experts,
        "experts_per_token": chosen[0] if isinstance(chosen, list) else chosen, "shared_d_ff": config["d_ff"],
    }  # fmt: skip
    return config


def _bitnet(f: Fields) -> dict[str, Any]:
    return _llama(f, inner_norms=True)


def _seed_oss(f: Fields) -> dict[str, Any]:
    config = _llama(f)
    biased = _bias(f, attention=ALL_ATTENTION[:3], mlp=("gate", "up", "down"))
    return config | {"bias": (*biased, *(("output",) if f("attention_out_bias") else ()))}


def _apertus(f: Fields) -> dict[str, Any]:
    return _llama(f, gated=False, qk_norm="head")


def _nanochat(f: Fields) -> dict[str, Any]:
    return _llama(f, gated=False, qk_norm="plain", norm_scale=False, logit_softcap=f("final_logit_softcapping"))


#: model_type → how it is read
FAMILIES: dict[str, Family] = {
    "apertus": _apertus,
    "arcee": lambda f: _llama(f, gated=False),
    "bitnet": _bitnet,
    "bloom": _bloom,
    "codegen": _gptj,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "cwm": _windowed,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "dots1": _dots1,
    "ernie4_5": _ernie4_5,
    "ernie4_5_moe": _ernie4_5_moe,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "flex_olmo": _flex_olmo,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "glm": _glm,
    "glm4": lambda f: _glm(f, norm_placement="sandwich"),
    "glm4_moe": _glm4_moe,
    "glm4_moe_lite": lambda f: _latent_mixture(f, default=1),
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gpt_oss": _gpt_oss,
    "gptj": _gptj,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoe,
    "helium": lambda f: _llama(f, attention=ALL_ATTENTION[:3]),
    "hunyuan_v1_dense": lambda f: _llama(f, qk_norm="head"),
    "hunyuan_v1_moe": _hunyuan_moe,
    "jais2": lambda f: _llama(f, gated=False, norm="layernorm"),
    "llama": _llama,
    "llama4_text": _llama4,
    "minimax_m2": _minimax_m2,
    "ministral": _windowed,
    "ministral3": _windowed,
    "mistral": _windowed,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "nanochat": _nanochat,
    "nemotron": _partial(0.5, gated=False, norm="layernorm", norm_unit_offset=True),
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "openai-gpt": _openai_gpt,
    "opt": _opt,
    "persimmon": _persimmon,
    "phi": _phi,
    "phi3": _phi3,
    "phimoe": _phimoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "seed_oss": _seed_oss,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "vaultgemma": _vaultgemma,
    "youtu": _youtu,
}

#: What well-known others have, and no TransformerConfig can say.
LACKING = {
    "bamba": "state-space layers",
    "dbrx": "its sizes in nested configurations",
    "deepseek_v32": "an indexer that chooses the keys",
    "falcon_h1": "state-space layers",
    "falcon_mamba": "state-space layers",
    "gemma3n": "layers that share keys and values, and embeddings per layer",
    "gemma4": "layers that share keys and values, and heads of two widths",
    "granitemoehybrid": "state-space layers",
    "jamba": "state-space layers",
    "jetmoe": "experts of attention",
    "kimi_linear": "linear attention",
    "lfm2": "convolutions",
    "longcat_flash": "experts that compute nothing, and two attentions in a layer",
    "mamba": "state-space layers",
    "mamba2": "state-space layers",
    "mimo_v2_flash": "layers with heads of two widths",
    "minicpm3": "residual scales that depend on the depth",
    "minimax": "linear attention",
    "nemotron_h": "state-space layers",
    "olmo_hybrid": "linear attention",
    "qwen3_5": "linear attention",
    "qwen3_next": "linear attention",
    "recurrent_gemma": "recurrent layers",
    "rwkv": "recurrent layers",
    "zamba2": "state-space layers",
}
