"""Weights between this course's decoder and the models of Hugging Face's transformers, both ways."""

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from cs336kit.lm.models import LLAMA, DecoderOnly, Llama
from cs336kit.predict import TransformerConfig
from cs336kit.predict._common.checks import known
from cs336kit.predict.transformer import OPTIONS


@dataclass(frozen=True)
class Family:
    """How one architecture of transformers says what our decoder says: one table of families.toml, which explains it."""

    names: Mapping[str, str]
    sizes: Mapping[str, str]
    fixed: Mapping[str, Any]
    must: Mapping[str, Any]
    prefix: str
    eps: str
    activation: str
    by_head: bool
    transposed: list[str]


#: Fields that are read elsewhere (biases from the weights), or have no effect on the logits: names, other heads, training.
_READ = re.compile(
    r"_token_id$|dropout|_pdrop$|^summary_|^_|^initializer_range$|^use_cache$|^pretraining_tp$|^router_aux_loss_coef$"
    r"|^max_window_layers$|_softmax_in_fp32$|^reorder_and_upcast_attn$|^original_max_position_embeddings$|bias$"
    r"|^(architectures|chunk_size_feed_forward|dtype|torch_dtype|id2label|label2id|model_type|return_dict|auto_map"
    r"|transformers_version|problem_type|attn_implementation|use_sliding_window|output_\w+|rope_parameters|rope_theta"
    r"|rope_scaling|partial_rotary_factor|layer_types|multi_query|num_key_value_heads|new_decoder_architecture|parallel_attn"
    r"|num_ln_in_parallel_attn)$"
)
_ACTIVATIONS = {
    "gelu": {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"},
    "swiglu": {"silu": "none", "swish": "none"},
}


def from_transformers(
    model: nn.Module | Mapping[str, Tensor], config: Any = None, *, attention: str = "sdpa", **options: Any
) -> DecoderOnly:
    """Our decoder with the weights of a transformers model, in eval mode: a Llama where it is one, else a DecoderOnly.

    `model` is the model, or its state dict with `config`, its configuration (the object, or its dict). Weights alone do
    not tell a Gemma from a Llama, so there is no conversion without the configuration. A model_type, a field that
    matters, or a weight that our decoder does not have raises ValueError with its name. Logits are theirs up to
    rounding. Dropout is left at 0. `options` are those of DecoderOnly, such as device and dtype (default: the weights').
    """
    state = model.state_dict() if isinstance(model, nn.Module) else model
    config = getattr(model, "config", None) if config is None else config
    fields = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(fields, Mapping) or "model_type" not in fields:
        raise ValueError(
            f"the configuration of transformers is missing (got {type(config).__name__}): give the model, or its state "
            "dict with model.config, since weights alone do not say what is computed with them."
        )
    try:
        kind = _family(fields["model_type"])
        choices, built = _choices(fields, kind)
    except KeyError as error:
        raise ValueError(f"the configuration of {fields['model_type']} lacks {error}: give model.config.") from None
    ours = dict(_taken_apart(state, kind, choices))
    if choices["tied_head"]:
        table = ours.get("embedding.weight", torch.empty(0))
        if not torch.equal(ours.setdefault("head.weight", table), table):  # checkpoints may leave it out
            raise ValueError(
                "head and embedding differ in the weights, and tie_word_embeddings=True says they are one."
            )
    ours_config = TransformerConfig(**choices, **_biases(ours))
    made_like = {"device": ours["final_norm.weight"].device, "dtype": ours["final_norm.weight"].dtype}
    make = Llama if all(getattr(ours_config, name) == value for name, value in LLAMA.items()) else DecoderOnly
    result = make(ours_config, attention=attention, **{**made_like, **built, **options})
    if missing := result.state_dict().keys() - ours.keys():
        raise ValueError(f"the weights of {', '.join(sorted(missing))} are missing in the state dict.")
    result.load_state_dict(ours)
    return result.eval()


def to_transformers(
    state: Mapping[str, Tensor], config: TransformerConfig, *, family: str | None = None
) -> dict[str, Tensor]:
    """Our `state_dict` (or gradients by name) under the names and layouts of transformers.

    `family` is a model_type of transformers; left out, learned positions mean GPT-2, rotary ones Llama, with experts
    Mixtral, and another architecture raises ValueError. Values are copied where the layout differs.
    """
    plain = all(getattr(config, name) == TransformerConfig.__dataclass_fields__[name].default for name in OPTIONS)
    if family is None and plain:
        shape = (config.positions, config.norm, config.mlp, config.norms_per_block)
        family = {
            ("learned", "layernorm", "gelu", 2): "gpt2",
            ("rope", "rmsnorm", "swiglu", 2): "mixtral" if config.experts else "llama",
        }.get(shape)
    if family is None:
        raise ValueError(
            "only GPT-2's architecture (learned positions, LayerNorm, GELU) and Llama's (rotary positions, RMSNorm, SwiGLU) "
            f"are known by their shape: name the family, one of {', '.join(sorted(_table()))}; got {config!r}."
        )
    kind = _family(family)
    theirs = {}
    for name, tensor in _put_together(state, config, kind):
        part, _, end = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "")
        layer = re.search(r"blocks\.(\d+)", part)
        generic = re.sub(r"blocks\.\d+", "blocks.#", part)
        full = known(f"part of {family}", generic, kind.names).replace("#", layer[1] if layer else "")
        full = ("" if generic == "head" else kind.prefix) + full + ("." + end if end else "")
        theirs[full] = tensor.T.contiguous() if _is_transposed(full, kind) else tensor
    return theirs


@functools.cache
def _table(name: str = "architecture") -> dict[str, Any]:
    return tomllib.loads((files("cs336kit.lm") / "families.toml").read_text("utf-8"))[name]


def _family(model_type: str) -> Family:
    if lacking := _table("lacking").get(model_type):
        raise ValueError(f"a {model_type} cannot be built here: it has {lacking}.")
    own = known("architecture (model_type)", model_type, _table())
    base = _table().get(own.get("like"), {})
    merged = {name: {**base.get(name, {}), **part} for name, part in own.items() if isinstance(part, dict)}
    return Family(**{name: value for name, value in {**base, **own, **merged}.items() if name != "like"})


def _choices(fields: Mapping[str, Any], kind: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of our configuration, options of our decoder; what would change the logits and is not read is refused."""

    def refused(name: str, built: str, value: Any = None) -> ValueError:
        given = f"{fields['model_type']} with {name}={fields.get(name, value)!r}"
        return ValueError(f"a {given} cannot be built here: our decoder has {built}.")

    optional = ("head_dim", "kv_heads", "d_ff")
    choices: dict[str, Any] = {
        ours: fields.get(name) if ours in optional else fields[name] for ours, name in kind.sizes.items()
    }
    choices |= {**kind.fixed, "source": fields["model_type"]}
    if (
        kind.by_head and "parallel" not in choices
    ):  # Falcon and StarCoder say by flags how many kv heads there are, and Falcon how many norms
        grouped = fields.get("new_decoder_architecture", False)
        if not grouped:
            choices["kv_heads"] = 1 if fields["multi_query"] else choices["heads"]
        if fields.get("parallel_attn"):
            choices["norms_per_block"] = 1
            if (fields["num_ln_in_parallel_attn"] or (2 if grouped else 1)) == 2:
                raise refused("num_ln_in_parallel_attn", "one norm for both branches")
    for name, value in fields.items():
        if name in kind.must and value != kind.must[name]:
            raise refused(name, f"{name}={kind.must[name]!r}")
        if (
            value
            and name not in {*kind.sizes.values(), *kind.must, kind.eps, kind.activation}
            and not _READ.search(name)
        ):
            raise refused(name, "nothing of that kind")
    layers = fields.get("layer_types") or ()
    held = tuple(layer == "sliding_attention" for layer in layers)
    if set(layers) - {"full_attention", "sliding_attention"} or (fields.get("use_sliding_window") and not layers):
        raise refused("layer_types", "full and sliding attention")
    if fields.get("use_sliding_window") is False or (layers and not any(held)):
        choices["window"] = None
    elif layers:
        choices["window_layers"] = held
    activations = _ACTIVATIONS[choices["mlp"]]
    if fields[kind.activation] not in activations:
        raise refused(kind.activation, f"{', '.join(activations)} there")
    options = {"norm_eps": fields[kind.eps], "approximate": activations[fields[kind.activation]]}
    if choices["positions"] == "rope":
        given = {**fields, **(fields.get("rope_scaling") or {}), **(fields.get("rope_parameters") or {})}
        options["rope_base"] = given["rope_theta"]
        share = given.get("partial_rotary_factor") or 1.0
        head_dim = choices.get("head_dim") or choices["d_model"] // choices["heads"]
        choices["rotary_dim"] = int(head_dim * share)
        plain = {
            "rope_type": "default",
            "type": "default",
            "partial_rotary_factor": share,
            "rope_theta": given["rope_theta"],
        }
        for name, value in given.items():
            if value is not None and value != plain.get(name, fields.get(name)):
                raise refused(name, "plain rotary positions", value)
    return choices, options


def _biases(ours: Mapping[str, Tensor]) -> dict[str, Any]:
    """Which biases there are, by the weights themselves."""
    biased = {re.sub(r"\d+", "#", name)[: -len(".bias")] for name in ours if name.endswith(".bias")}
    norms = {name for name in biased if "norm" in name}
    linear = {name.rpartition(".")[2] for name in biased - norms}
    others = {f"{name}_bias": name in linear for name in ("head", "router")}
    return {"bias": tuple(linear - {"head", "router"}), "norm_bias": bool(norms), **others}


def _is_transposed(name: str, kind: Family) -> bool:
    return name.endswith(".weight") and name.split(".")[-2] in kind.transposed


def _taken_apart(state: Mapping[str, Tensor], kind: Family, choices: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Their weights under our names, fused matrices taken apart; a weight that has no name here is refused."""
    A = choices["heads"]
    K, h = choices.get("kv_heads") or A, choices.get("head_dim") or choices["d_model"] // A

    def parts(last: str, tensor: Tensor) -> dict[str, Tensor]:
        if last == "gate_up":
            return dict(zip(("gate", "up"), tensor.chunk(2), strict=True))
        if last != "qkv":
            return {last: tensor}
        rows = tensor.unflatten(0, (K, A // K + 2, h)) if kind.by_head else tensor.unflatten(0, (A + 2 * K, h))
        each = (rows[:, :-2], rows[:, -2], rows[:, -1]) if kind.by_head else rows.split([A, K, K])
        shape = tensor.shape[1:]
        return {own: part.reshape(-1, *shape) for own, part in zip(("query", "key", "value"), each, strict=True)}

    by_name = {theirs: ours for ours, theirs in kind.names.items()}
    for name, tensor in state.items():
        if re.search(r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$", name):
            continue  # tables that follow from the configuration
        short = name.removeprefix(kind.prefix)
        place = re.sub(r"\.(weight|bias)$", "", short)
        layer = re.search(r"\.(\d+)\.", place)
        ours = by_name.get(re.sub(r"\.\d+\.", ".#.", place, count=1))
        if ours is None:
            raise ValueError(f"the weight {name} has no place in our decoder, so this model computes something else.")
        tensor = tensor.T if _is_transposed(name, kind) else tensor
        stem, dot, last = ours.replace("#", layer[1] if layer else "").rpartition(".")
        several = (
            {f"{stem}.{e}": expert for e, expert in enumerate(tensor)} if stem.endswith("experts") else {stem: tensor}
        )
        for prefix, piece in several.items():
            for own, part in parts(last, piece).items():
                yield f"{prefix}{dot}{own}{short[len(place) :] or '.weight'}", part


def _put_together(state: Mapping[str, Tensor], config: TransformerConfig, kind: Family) -> Iterator[tuple[str, Tensor]]:
    """Our weights, with those put together that their layout keeps in one tensor: the inverse of the taking apart."""
    left, K = dict(state), config.kv_heads or config.heads

    def take(stem: str, *names: str) -> list[Tensor]:
        return [left.pop(f"{stem}.{name}") for name in names]

    for layer in range(config.layers):
        attention, mlp = f"blocks.{layer}.attention", f"blocks.{layer}.mlp"
        for end in ("weight", "bias"):
            if "blocks.#.attention.qkv" in kind.names and f"{attention}.query.{end}" in left:
                parts = take(attention, f"query.{end}", f"key.{end}", f"value.{end}")
                if kind.by_head:
                    parts = [torch.cat([part.unflatten(0, (K, -1)) for part in parts], dim=1).flatten(0, 1)]
                yield f"{attention}.qkv.{end}", torch.cat(parts)
            if "blocks.#.mlp.gate_up" in kind.names and f"{mlp}.gate.{end}" in left:
                yield f"{mlp}.gate_up.{end}", torch.cat(take(mlp, f"gate.{end}", f"up.{end}"))
        if config.experts:
            stems = [f"{mlp}.experts.{e}" for e in range(config.experts)]
            yield f"{mlp}.experts.gate_up", torch.stack([torch.cat(take(s, "gate.weight", "up.weight")) for s in stems])
            yield f"{mlp}.experts.down", torch.stack([take(s, "down.weight")[0] for s in stems])
    yield from left.items()
