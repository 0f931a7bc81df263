"""Mixtures of experts, and latent attention, which few models have without experts."""

from collections.abc import Callable
from typing import Any

from cs336kit.predict.families.fields import (
    Fields,
    by_layer,
    note_further_tokens,
    only,
    rope_layers,
    with_rotary,
    with_switched_windows,
    with_windows,
)
from cs336kit.predict.families.llama import ernie4_5, glm, granite, llama, windowed


def _sparse(config: dict[str, Any], holds: Callable[[int], bool]) -> tuple[bool, ...]:
    return tuple(bool(holds(layer)) for layer in range(config["layers"]))


def _with_experts(
    f: Fields,
    config: dict[str, Any],
    experts: str,
    *,
    per_token: str = "num_experts_per_tok",
    width: str = "",
    sparse: tuple[bool, ...] | None = None,
) -> dict[str, Any]:
    """The configuration with experts of their own width (else all MLPs have the same), in some layers or in all."""
    count, chosen = f(experts), f(per_token)
    own = {"dense_d_ff": config["d_ff"], "d_ff": f(width)} if width else {}
    if not count or (sparse is not None and not any(sparse)):
        return config  # what a file says of experts is read, and does not matter
    layers = {} if sparse is None else {"sparse_layers": sparse}
    return config | {"experts": count, "experts_per_token": chosen} | own | layers


def _qwen_moe(f: Fields, **fixed: Any) -> dict[str, Any]:
    config = llama(f, **fixed)
    step, dense = f("decoder_sparse_step"), f("mlp_only_layers") or ()
    sparse = _sparse(config, lambda layer: layer not in dense and (layer + 1) % step == 0)
    return _with_experts(f, config, "num_experts", width="moe_intermediate_size", sparse=sparse)


def qwen2_moe(f: Fields) -> dict[str, Any]:
    config = _qwen_moe(f)
    config["bias"] = "qkv" if f("qkv_bias") else "none"
    f("max_window_layers")  # only matters with that switch
    if f("use_sliding_window"):
        raise f.refuse("use_sliding_window", "False")
    config = with_switched_windows(f, config, ())
    shared = f("shared_expert_intermediate_size")
    if config.get("experts"):
        config |= {"shared_d_ff": shared, "shared_gate": True}
    return config


def qwen3_moe(f: Fields) -> dict[str, Any]:
    only(f, use_qk_norm=True, shared_expert_intermediate_size=0)  # in the files of Qwen3-Coder, and never read
    config = _qwen_moe(f, qk_norm="head")
    window, _ = f("sliding_window"), f("max_window_layers")
    if f("use_sliding_window"):
        config["window"] = window
    return config


def mixtral(f: Fields) -> dict[str, Any]:
    return _with_experts(f, windowed(f), "num_local_experts")


def phimoe(f: Fields) -> dict[str, Any]:
    only(f, num_experts_per_tok=2)  # its router chooses two, whatever the file says
    return mixtral(f) | {"norm": "layernorm", "head_bias": bool(f("lm_head_bias"))}


def gpt_oss(f: Fields) -> dict[str, Any]:
    config = _with_experts(f, with_windows(f, llama(f), pattern=2), "num_local_experts")
    config |= {"mlp": "swiglu_clipped", "sinks": True, "router_bias": True}
    config["bias"] = (*config["bias"], "gate", "up", "down")
    # The published files have both of these twice, the second time under names that transformers does not read.
    if f("experts_per_token") not in (None, f("num_experts_per_tok")):
        raise f.refuse("experts_per_token", f"{f('num_experts_per_tok')}, as num_experts_per_tok says")
    first, stretched = f("initial_context_length"), f("rope_scaling") or f("rope_parameters") or {}
    if (before := stretched.get("original_max_position_embeddings")) and first not in (None, before):
        raise f.refuse("initial_context_length", f"{before}, as original_max_position_embeddings says")
    return config


def granitemoe(f: Fields) -> dict[str, Any]:
    config = _with_experts(f, granite(f), "num_local_experts")
    if "shared_intermediate_size" in f and config.get("experts"):
        config["shared_d_ff"] = f("shared_intermediate_size")
    return config


def olmoe(f: Fields) -> dict[str, Any]:
    return _with_experts(f, llama(f, qk_norm="width"), "num_experts")


def llama4(f: Fields) -> dict[str, Any]:
    config = llama(f)
    turned = config["rope_layers"] = rope_layers(f, config["layers"])
    kinds = f("layer_types")
    if kinds is None and f("attention_chunk_size"):
        config |= {
            "window": f("attention_chunk_size"), "window_kind": "chunked", "window_layers": turned,
        }  # fmt: skip
    elif kinds is not None:
        config = with_windows(f, config, window="attention_chunk_size")
    step, chosen = f("interleave_moe_layer_step"), f("moe_layers")
    sparse = _sparse(config, lambda layer: layer in chosen if chosen is not None else (layer + 1) % step == 0)
    expert = config["d_ff"]
    config["d_ff"] = f("intermediate_size_mlp")
    config = _with_experts(f, config, "num_local_experts", width="intermediate_size", sparse=sparse)
    if config.get("experts"):
        config["shared_d_ff"] = expert
    if f("use_qk_norm"):
        config["qk_norm"] = "plain"
    return config


def _with_first_dense(f: Fields, config: dict[str, Any], *, dense: int = 0) -> dict[str, Any]:
    """The configuration with dense layers first, `dense` of them if no field says how many, and then layers with experts.

    Every token visits some of the experts (shared experts).
    """
    if kinds := by_layer(f, "mlp_layer_types", config["layers"]):
        sparse = tuple(kind == "sparse" for kind in kinds)
    else:
        first = f("first_k_dense_replace") if "first_k_dense_replace" in f else dense
        if f("moe_layer_freq") not in (None, 1):
            raise f.refuse("moe_layer_freq", "1")
        sparse = _sparse(config, lambda layer: layer >= (first or 0))
    config = _with_experts(f, config, "n_routed_experts", width="moe_intermediate_size", sparse=sparse)
    shared = f("n_shared_experts") or 0
    if config.get("experts"):
        config["shared_d_ff"] = shared * config["d_ff"]
    return config


def youtu(f: Fields) -> dict[str, Any]:
    """Latent attention, and no experts."""
    config = llama(f)
    config |= {
        "kv_latent": f("kv_lora_rank"), "query_latent": f("q_lora_rank") or 0, "rotary_dim": f("qk_rope_head_dim"),
        "head_dim": f("qk_nope_head_dim") + f("qk_rope_head_dim"), "value_dim": f("v_head_dim"),
        "bias": ("key", "output") if f("attention_bias") else "none",
    }  # fmt: skip
    config.pop("kv_heads", None)
    only(f, qk_head_dim=config["head_dim"])  # transformers writes this sum into the files that it saves
    note_further_tokens(f)
    if f("mlp_bias"):
        raise f.refuse("mlp_bias", "False: its experts have no biases")
    return config


def deepseek(f: Fields, *, dense: int = 0) -> dict[str, Any]:
    return _with_first_dense(f, youtu(f), dense=dense)


def dots1(f: Fields) -> dict[str, Any]:
    config = llama(f, qk_norm="head")
    first = f("max_window_layers")
    if f("layer_types") is None and f("sliding_window"):
        held = tuple(layer >= first for layer in range(config["layers"]))
        config |= {"window": f("sliding_window"), "window_layers": held}
    else:
        config = with_windows(f, config)
    return _with_first_dense(f, config)


def glm4_moe(f: Fields) -> dict[str, Any]:
    config = glm(f, qk_norm="head" if f("use_qk_norm") else "none")
    note_further_tokens(f)
    return _with_first_dense(f, config)


def ernie4_5_moe(f: Fields) -> dict[str, Any]:
    config = ernie4_5(f)
    if f("use_bias"):
        raise f.refuse("use_bias", "False: its experts have no biases")
    first, last, step = f("moe_layer_start_index"), f("moe_layer_end_index"), f("moe_layer_interval")
    last = config["layers"] if last == -1 else last
    sparse = _sparse(config, lambda layer: (layer + 1) % step == 0 and first <= layer <= last)
    config = _with_experts(
        f, config, "moe_num_experts", per_token="moe_k", width="moe_intermediate_size", sparse=sparse
    )
    shared = f("moe_num_shared_experts")
    if config.get("experts"):
        config |= {"shared_d_ff": shared * config["d_ff"], "router_bias": True}
    return config


def minimax_m2(f: Fields) -> dict[str, Any]:
    config = llama(f, qk_norm="width")
    head_dim = config["head_dim"]
    config = with_rotary(f, config, default=(f("rotary_dim") or head_dim) / head_dim)
    # From earlier MiniMax models, with linear attention and scaled residuals.
    if any(kind != 1 for kind in by_layer(f, "attn_type_list", config["layers"]) or ()):
        raise f.refuse("attn_type_list", "1, attention to everything, for each layer")
    only(f, use_qk_norm=True, qk_norm_type="per_layer")
    only(f, layernorm_full_attention_beta=1.0, layernorm_linear_attention_beta=1.0, layernorm_mlp_beta=1.0)
    f("use_routing_bias")  # how experts are chosen
    only(f, mtp_transformer_layers=1)
    f("num_mtp_modules")  # only matters with that switch
    if f("use_mtp"):
        note_further_tokens(f, "num_mtp_modules")
    return _with_experts(f, config, "num_local_experts")


def hunyuan_moe(f: Fields) -> dict[str, Any]:
    config = llama(f, qk_norm="head")
    experts, chosen = f("num_experts"), f("moe_topk")
    for value, name in ((experts, "num_experts"), (chosen, "moe_topk")):
        if isinstance(value, list) and len(set(value)) > 1:
            raise f.refuse(name, "one number for all layers")
    config |= {
        "experts": experts[0] if isinstance(experts, list) else experts,
        "experts_per_token": chosen[0] if isinstance(chosen, list) else chosen, "shared_d_ff": config["d_ff"],
    }  # fmt: skip
    return config
