"""Convert weights between this course's decoder and the models of Hugging Face's transformers, both ways."""

import functools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor, nn

from cs336kit.lm.models import LLAMA, DecoderOnly, Llama, check_buildable
from cs336kit.predict import TransformerConfig
from cs336kit.predict.checks import known
from cs336kit.predict.families.fields import SAMPLING
from cs336kit.predict.hugging_face import read_hf
from cs336kit.predict.transformer import OPTIONS


@dataclass(frozen=True)
class Family:
    """How one architecture of transformers maps to our decoder: one table of families.toml, where the fields are explained."""

    names: Mapping[str, str]
    fixed: Mapping[str, Any]
    must: Mapping[str, Any]
    usual: Mapping[str, Any]
    prefix: str
    eps: str
    rope_pairs: str
    by_head: bool
    shards: int
    transposed: list[str]


#: Fields that have no effect on the logits: names, other heads, training, and numbers that follow from other fields.
_IDLE = re.compile(
    r"_token_id$|dropout|_pdrop$|^summary_|^_|initializer_range$|^init_std$|^use_cache$|^pretraining_tp$|^router_aux_loss_coef$"
    r"|_softmax_in_fp32$|^reorder_and_upcast_attn$|^router_jitter_noise$"
    r"|^(architectures|chunk_size_feed_forward|dtype|torch_dtype|id2label|label2id|return_dict|auto_map|n_ctx"
    r"|transformers_version|problem_type|attn_implementation|output_\w+|qk_head_dim)$|" + SAMPLING
)
#: Fields that are read here and not by predict; biases are read from the weights.
_READ = re.compile(r"bias$|^(model_type|rope_\w+|partial_rotary_factor|rotary_\w+|original_max_position_embeddings)$")
#: Our name of an MLP, and how its gelu is computed: DecoderOnly takes it as an option.
_GELU = {"gelu_new": "tanh", "gelu_tanh": "tanh"}


def from_transformers(
    model: nn.Module | Mapping[str, Tensor], config: Any = None, *, attention: str = "sdpa", **options: Any
) -> DecoderOnly:
    """Our decoder with the weights of a transformers model, in eval mode: a Llama if it is one, else a DecoderOnly.

    `model` is the model, or its state dict together with `config`, its configuration (the object, or its dict). Weights
    alone do not tell a Gemma from a Llama, so the configuration is required. A model_type, a field that matters, or a
    weight that our decoder lacks raises ValueError with its name. The logits equal those of the model up to rounding.
    Dropout is left at 0. `options` are those of DecoderOnly, such as device and dtype (default: those of the weights).
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
        kind, config_read, built = _choices(fields)
    except KeyError as error:
        raise ValueError(f"the configuration of {fields['model_type']} lacks {error}: give model.config.") from None
    ours = dict(_taken_apart(state, kind, config_read))
    if config_read.tied_head:
        table = ours.get("embedding.weight", torch.empty(0))
        head = ours.setdefault("head.weight", table)  # checkpoints may leave it out
        if not (table.is_meta or torch.equal(head, table)):
            raise ValueError(
                "head and embedding differ in the weights, and tie_word_embeddings=True says they are one."
            )
    ours_config = replace(config_read, **_biases(ours))
    if ours_config.mlp in _GELU and isinstance(ours_config.bias, str):
        built["approximate"], ours_config = _GELU[ours_config.mlp], replace(ours_config, mlp="gelu")
    if "embedding.weight" not in ours:
        raise ValueError("the weights of embedding.weight are missing in the state dict.")
    made_like = {"device": ours["embedding.weight"].device, "dtype": ours["embedding.weight"].dtype}
    make = Llama if all(getattr(ours_config, name) == value for name, value in LLAMA.items()) else DecoderOnly
    result = make(ours_config, attention=attention, **{**made_like, **built, **options})
    if missing := result.state_dict().keys() - ours.keys():
        raise ValueError(f"the weights of {', '.join(sorted(missing))} are missing in the state dict.")
    for name, tensor in result.state_dict().items():
        if tensor.shape != ours[name].shape:
            raise ValueError(
                f"{name} has the shape {tuple(ours[name].shape)} in the weights and {tuple(tensor.shape)} by the "
                "configuration: give the configuration of these weights, with all its fields."
            )
    result.load_state_dict(ours)
    return result.eval()


def to_transformers(
    state: Mapping[str, Tensor], config: TransformerConfig, *, family: str | None = None
) -> dict[str, Tensor]:
    """Our `state_dict` (or gradients by name) under the names and layouts of transformers.

    `family` is a model_type of transformers. By default, learned positions mean GPT-2, and rotary ones Llama, or Mixtral
    with experts; any other architecture raises ValueError. Values are copied only where the layout differs.
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
    kind = _family(family, config)
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


def _family(model_type: str, config: TransformerConfig) -> Family:
    known("architecture (model_type)", model_type, _table())
    merged = _merged(model_type)
    others = _table("parallel").get(model_type, {}) if config.parallel else {}
    return Family(**merged | {"names": merged["names"] | others})


def _merged(model_type: str) -> dict[str, Any]:
    own = dict(_table()[model_type])
    base = _merged(own.pop("like")) if "like" in own else {}
    return base | own | {"names": base.get("names", {}) | own.get("names", {})}


def _choices(fields: Mapping[str, Any]) -> tuple[Family, TransformerConfig, dict[str, Any]]:
    """The family, our configuration, and options of our decoder; an unread field that would change the logits is refused."""
    model_type = fields["model_type"]

    def refused(name: str, built: str, value: Any = None) -> ValueError:
        given = f"{model_type} with {name}={fields.get(name, value)!r}"
        return ValueError(f"a {given} cannot be built here: our decoder has {built}.")

    if lacking := _table("lacking").get(model_type):
        raise ValueError(f"a {model_type} cannot be built here: it has {lacking}.")
    fields = {name: value for name, value in fields.items() if not _IDLE.search(name)}
    fixed = _merged(model_type)["fixed"] if model_type in _table() else {}
    config, read = read_hf({**fields, **fixed})
    if config.attention_scale is not None and math.isclose(config.attention_scale, config.head_dim**-0.5):
        config = replace(config, attention_scale=None)  # given, and equal to our default
    try:
        check_buildable(config)
    except ValueError as error:
        raise ValueError(f"a {model_type} cannot be converted: {error}") from None
    if model_type not in _table():
        raise ValueError(
            f"a {model_type} cannot be converted yet: the names and layouts of its weights are not known here "
            f"(cs336kit/lm/families.toml). Known: {', '.join(sorted(_table()))}."
        )
    kind = _family(model_type, config)
    for name, value in {**kind.usual, **fields}.items():
        if name in kind.must and value != kind.must[name]:
            raise refused(name, f"{name}={kind.must[name]!r}", value)
        if value and name not in {*read, *kind.must, kind.eps} and not _READ.search(name):
            raise refused(name, "nothing of that kind")
    fields = {**fields, **kind.fixed}
    options = {"norm_eps": fields[kind.eps]}
    if config.positions == "rope":
        options |= {"rope_base": _rope_base(fields, refused), "rope_pairs": kind.rope_pairs}
    return kind, config, options


def _rope_base(fields: Mapping[str, Any], refused: Callable[[str, str, Any], ValueError]) -> float:
    """The base of plain rotary positions; other kinds are refused."""
    parameters = fields.get("rope_parameters") or {}
    each = [value for value in parameters.values() if isinstance(value, Mapping)]  # by kind of layer
    if each and all(value == each[0] for value in each):
        parameters = each[0]
    said = {**(fields.get("rope_scaling") or {}), **parameters}
    base: float = {**fields, **said}["rope_theta"]
    idle = ("partial_rotary_factor", "rope_theta", "original_max_position_embeddings")
    for name, value in said.items():
        plain = value if name in idle else "default" if name in ("rope_type", "type") else fields.get(name)
        if value and value != plain:
            raise refused(name, "plain rotary positions", value)
    return base


def _biases(ours: Mapping[str, Tensor]) -> dict[str, Any]:
    """Which biases there are, according to the weights themselves."""
    biased = {re.sub(r"\d+", "#", name)[: -len(".bias")] for name in ours if name.endswith(".bias")}
    norms = {name for name in biased if "norm" in name}
    linear = {name.rpartition(".")[2].replace("query_latent", "latent") for name in biased - norms}
    linear = {"key" if name == "latent" else name for name in linear}  # a configuration uses this name for both latents
    others = {f"{name}_bias": name in linear for name in ("head", "router")}
    return {"bias": tuple(linear - {"head", "router"}), "norm_bias": bool(norms), **others}


def _is_transposed(name: str, kind: Family) -> bool:
    return name.endswith(".weight") and name.split(".")[-2] in kind.transposed


def _taken_apart(state: Mapping[str, Tensor], kind: Family, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """Their weights under our names, with fused matrices split; a weight that has no name here is refused."""
    A, K, h = config.heads, config.kv_heads, config.head_dim

    def parts(last: str, tensor: Tensor) -> dict[str, Tensor]:
        if last == "gate_up":
            return dict(zip(("gate", "up"), tensor.chunk(2), strict=True))
        if last != "qkv":
            return {last: tensor}
        if tensor.shape[0] != (A + 2 * K) * h:
            raise ValueError(
                f"{A} query heads and {K} key/value heads of width {h} do not fit a weight of {tensor.shape[0]} rows: "
                "give the configuration of these weights."
            )
        if kind.shards:
            names = ("query", "value", "key")
            pieces = tensor.unflatten(0, (kind.shards, 3, -1)).unbind(1)
            return {own: piece.flatten(0, 1) for own, piece in zip(names, pieces, strict=True)}
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
            raise ValueError(
                f"the weight {name} has no place in what we build of this configuration, so it is not converted."
            )
        tensor = tensor.T if _is_transposed(name, kind) else tensor
        if config.shared_d_ff:
            ours = re.sub(r"\.mlp\.(router|experts)", r".mlp.mixture.\1", ours)
            ours = ours.replace(".mlp.shared_gate", ".mlp.gate")
        stem, dot, last = ours.replace("#", layer[1] if layer else "").rpartition(".")
        several = (
            {f"{stem}.{e}": expert for e, expert in enumerate(tensor)} if stem.endswith("experts") else {stem: tensor}
        )
        for prefix, piece in several.items():
            for own, part in parts(last, piece).items():
                yield f"{prefix}{dot}{own}{short[len(place) :] or '.weight'}", part


def _put_together(state: Mapping[str, Tensor], config: TransformerConfig, kind: Family) -> Iterator[tuple[str, Tensor]]:
    """Our weights, with those fused that their layout stores in one tensor: the inverse of `_taken_apart`."""
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
                if kind.shards:
                    query, key, value = (part.unflatten(0, (kind.shards, -1)) for part in parts)
                    parts = [torch.cat([query, value, key], dim=1).flatten(0, 1)]
                yield f"{attention}.qkv.{end}", torch.cat(parts)
            for part in ("mlp", "mlp.shared"):
                stem = f"blocks.{layer}.{part}"
                if f"blocks.#.{part}.gate_up" in kind.names and f"{stem}.up.{end}" in left:
                    yield f"{stem}.gate_up.{end}", torch.cat(take(stem, f"gate.{end}", f"up.{end}"))
        if config.is_sparse(layer):
            inside = f"{mlp}.mixture" if config.shared_d_ff else mlp
            if config.shared_gate:
                yield f"{mlp}.shared_gate.weight", left.pop(f"{mlp}.gate.weight")
            for end in ("weight", "bias"):
                if f"{inside}.router.{end}" in left:
                    yield f"{mlp}.router.{end}", left.pop(f"{inside}.router.{end}")
            stems = [f"{inside}.experts.{e}" for e in range(config.experts)]
            yield f"{mlp}.experts.gate_up", torch.stack([torch.cat(take(s, "gate.weight", "up.weight")) for s in stems])
            yield f"{mlp}.experts.down", torch.stack([take(s, "down.weight")[0] for s in stems])
    yield from left.items()
