"""Llama's relatives: RMSNorm, rotary positions, an MLP with a gate, and what each family changes in that."""

from typing import Any

from cs336kit.predict.families.fields import (
    ALL_ATTENTION,
    Fields,
    activation,
    biases,
    only,
    rope_layers,
    sizes,
    with_rotary,
    with_switched_windows,
    with_windows,
)
from cs336kit.predict.settle import MATRICES


def llama(f: Fields, *, gated: bool = True, **fixed: Any) -> dict[str, Any]:
    """Llama, and models that differ from it only by flags."""
    return sizes(f) | {
        "norm": "rmsnorm", "positions": "rope", "mlp": activation(f, gated),
        "bias": biases(f, mlp=MATRICES[4:] if gated else MATRICES[5:]),
    } | fixed  # fmt: skip


def windowed(f: Fields) -> dict[str, Any]:
    return with_windows(f, llama(f))


def cwm(f: Fields) -> dict[str, Any]:
    """A window in all layers but the first of every four, if no list says which."""
    config = windowed(f)
    if f("layer_types") is None and config.get("window"):
        config["window_layers"] = tuple(layer % 4 != 0 for layer in range(config["layers"]))
    return config


def qwen(f: Fields, **fixed: Any) -> dict[str, Any]:
    """A window only if a switch is on, from some layer on."""
    config, first = llama(f, **fixed), f("max_window_layers")
    return with_switched_windows(f, config, [layer >= first for layer in range(config["layers"])])


def stablelm(f: Fields) -> dict[str, Any]:
    config = llama(f, norm="layernorm", bias="qkv" if f("use_qkv_bias") else "none")
    config = with_rotary(f, config, default=0.25)
    if f("use_parallel_residual"):
        config["norms_per_block"] = 1
    if f("qk_layernorm"):
        config["qk_norm"] = "heads"
    return config


def nemotron(f: Fields) -> dict[str, Any]:
    return with_rotary(f, llama(f, gated=False, norm="layernorm", norm_unit_offset=True), default=0.5)


def glm(f: Fields, **fixed: Any) -> dict[str, Any]:
    config = llama(f, **fixed)
    config["bias"] = biases(f, attention=ALL_ATTENTION[:3])
    return with_rotary(f, config, default=0.5)


def phi3(f: Fields) -> dict[str, Any]:
    return with_rotary(f, windowed(f))


def cohere(f: Fields) -> dict[str, Any]:
    scale = f("logit_scale")
    config = llama(f, norm="layernorm", norm_bias=False, norms_per_block=1, logit_scale=1.0 if scale is None else scale)
    if f("use_qk_norm"):
        config["qk_norm"] = "heads"
    return config


def cohere2(f: Fields) -> dict[str, Any]:
    """Layers with full attention have no positions, even if no layer has a window."""
    config = with_windows(f, cohere(f), pattern=f("sliding_window_pattern") or 4)
    return config | {"rope_layers": config.get("window_layers", (False,) * config["layers"])}


def gemma(f: Fields) -> dict[str, Any]:
    return llama(f, norm_unit_offset=True, embedding_scale=f("hidden_size") ** 0.5)


def vaultgemma(f: Fields) -> dict[str, Any]:
    config = gemma(f) | {"attention_scale": f("query_pre_attn_scalar") ** -0.5}
    for ours, theirs in (("attention_softcap", "attn_logit_softcapping"), ("logit_softcap", "final_logit_softcapping")):
        if f(theirs):
            config[ours] = f(theirs)
    return with_windows(f, config, pattern=2)


def gemma2(f: Fields) -> dict[str, Any]:
    if f("use_bidirectional_attention"):
        raise f.refuse("use_bidirectional_attention", "False")
    only(f, sliding_window_size=f("sliding_window"))  # the published files have the window twice
    return vaultgemma(f) | {"norm_placement": "sandwich"}


def gemma3(f: Fields) -> dict[str, Any]:
    config = gemma2(f) | {"qk_norm": "head"}
    if f("layer_types"):
        return config
    return with_windows(f, config, pattern=f("sliding_window_pattern") or 6)


def granite(f: Fields) -> dict[str, Any]:
    return llama(f) | {
        "embedding_scale": f("embedding_multiplier"), "residual_scale": f("residual_multiplier"),
        "attention_scale": f("attention_multiplier"), "logit_scale": 1 / f("logits_scaling"),
    }  # fmt: skip


def olmo2(f: Fields) -> dict[str, Any]:
    return llama(f, norm_placement="post", qk_norm="width")


def olmo3(f: Fields) -> dict[str, Any]:
    return with_windows(f, olmo2(f), pattern=4)


def exaone4(f: Fields) -> dict[str, Any]:
    config = llama(f, norm_placement="post", qk_norm="head")
    period, size, layers = f("sliding_window_pattern"), f("sliding_window"), config["layers"]
    if not isinstance(period, str):
        config = with_windows(f, config, pattern=period)
    elif f("layer_types") is not None:
        config = with_windows(f, config)
    elif size:  # "LLLG": local and global layers; the last one is global in any case
        held = (*(period[layer % len(period)] == "L" for layer in range(layers - 1)), False)
        config |= {"window": size, "window_layers": held}
    if size:  # beside a window, layers with full attention have no positions
        config["rope_layers"] = config.get("window_layers", (False,) * layers)
    return config


def smollm3(f: Fields) -> dict[str, Any]:
    """A window, if a switch is on, in the layers without positions."""
    config = llama(f)
    turned = config["rope_layers"] = rope_layers(f, config["layers"])
    f("max_window_layers")  # in the published files, but never read
    return with_switched_windows(f, config, [not turns for turns in turned])


def ernie4_5(f: Fields) -> dict[str, Any]:
    return llama(f, bias="all" if f("use_bias") else "none")


def helium(f: Fields) -> dict[str, Any]:
    """The flag for attention's biases does not apply to the output matrix."""
    return llama(f, bias=biases(f, attention=ALL_ATTENTION[:3], mlp=MATRICES[4:]))


def seed_oss(f: Fields) -> dict[str, Any]:
    config = helium(f)
    return config | {"bias": (*config["bias"], *(("output",) if f("attention_out_bias") else ()))}


def nanochat(f: Fields) -> dict[str, Any]:
    return llama(f, gated=False, qk_norm="plain", norm_scale=False, logit_softcap=f("final_logit_softcapping"))
