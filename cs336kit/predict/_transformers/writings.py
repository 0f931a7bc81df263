"""How each architecture's module in transformers is written: a row for each, and which row fits a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cs336kit.predict.checks import known
from cs336kit.predict.transformer import TransformerConfig


@dataclass(frozen=True)
class Writing:
    """How a module of transformers writes what other modules write differently."""

    #: "separate" matrices; one matrix whose output is split in three ("split") or head by head ("interleaved");
    #: "picked": the same, each picked for itself; "indexed": with keys and values selected by an index, which copies (Falcon's
    #: multi-query)
    qkv: str = "separate"
    #: a norm in fp32: scaled in the type of the activations ("narrow"), scaled in fp32 ("wide"), by 1 + weight ("offset"),
    #: with a mean ("centered"); "torch" for torch's layer norm
    norm: str = "torch"
    #: rotary positions in the type of the activations ("plain"), in fp32 and cast back ("returned"), in fp32 and in neighboring
    #: pairs ("wide"), with tables that each layer makes anew for queries and keys, in their type ("own tables") or in that of the
    #: model's tables ("repeated tables")
    rope: str = "plain"
    #: the softmax "in fp32", in the type of the scores ("as it is") or in that of the block's input ("as the input", where scores
    #: are scaled in place and held in a variable until the softmax is assigned to it: Falcon);
    #: "fp32 scores": queries and keys are cast to fp32 before; "fp32 factors": the same within the line of their product
    softmax: str = "in fp32"
    #: scores by one batched product that adds the position bias (BLOOM)
    baddbmm: bool = False
    #: whether GELU is a function of its own that saves its input, even if it is written out (BLOOM)
    own_gelu: bool = False
    #: whether the module can call torch's scaled_dot_product_attention; else transformers takes eager attention
    sdpa: bool = True
    #: whether the fused function is called with fewer key heads, but without enable_gqa
    broadcast: bool = False
    #: whether there is always a mask
    masked: bool = False
    #: whether the model makes a mask with a window and one without, even if it has a single layer
    both_masks: bool = False
    #: how a parallel block adds up: both outputs and then its input, attention's output and then "input first", or both outputs
    #: "in place", dropped together; with two norms, "inside": attention and MLP add their residual before they return
    sums: str = ""
    #: what a block with two norms holds in a variable until it returns: "attention input", "attention output", "mlp input"
    variables: frozenset[str] = frozenset()
    #: whether its linear layers multiply with a transposed weight, a view, of which autocast caches no copy
    transposes: bool = False
    #: whether the model's loop holds what a block has returned, attention weights among it, until the next one returns
    returns_weights: bool = False
    #: whether the MLP's lines are the block's own: its input is freed once the first matrix has read it
    inline_mlp: bool = False
    #: where dropout is applied: "inputs" (the embeddings' own variable), "embedding", "weights", "attention", "mlp", or, when
    #: these have returned, "block's attention" and "block's mlp"
    dropouts: frozenset[str] = frozenset({"weights"})
    #: whether a checkpointed block saves the mask besides its input
    keeps_mask: bool = False
    #: fields of a configuration that identify the architecture if it is not named
    tells: Mapping[str, object] = field(default_factory=dict, hash=False)


_ALL = frozenset({"embedding", "weights", "attention", "mlp"})
_BY_BLOCK = frozenset({"embedding", "weights", "block's attention", "block's mlp"})
_LLAMA = Writing(norm="narrow")
#: transformers' model_type → its writing. Source: transformers 5.23, models/*/modeling_*.py.
WRITINGS: dict[str, Writing] = {
    "gpt2": Writing(
        "split", softmax="as it is", variables=frozenset({"attention output", "mlp input"}), dropouts=_ALL, keeps_mask=True,
        tells={"positions": "learned", "extra_positions": 0}
    ),
    "opt": Writing(inline_mlp=True, dropouts=_BY_BLOCK - {"embedding"}, tells={"positions": "learned", "extra_positions": 2}),
    "bloom": Writing(
        "picked", baddbmm=True, own_gelu=True, sdpa=False, returns_weights=True, sums="inside",
        variables=frozenset({"mlp input"}), dropouts=_ALL - {"embedding"},
        tells={"positions": "alibi", "embedding_norm": True},
    ),
    "gpt_neox": Writing("interleaved", dropouts=_BY_BLOCK, tells={"positions": "rope", "norm": "layernorm", "parallel": True}),
    "gptj": Writing(
        rope="own tables", softmax="fp32 scores", sdpa=False, returns_weights=True, dropouts=_ALL,
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1, "bias": ("up", "down")},
    ),
    "cohere": Writing(
        norm="centered", rope="wide", sums="input first",
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1, "norm_bias": False},
    ),
    "falcon": Writing(
        "indexed", softmax="as the input", broadcast=True, masked=True, sums="in place", returns_weights=True, transposes=True,
        dropouts=frozenset({"block's mlp"}),
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1, "kv_heads": 1, "bias": "none"},
    ),
    "phi": Writing(
        dropouts=_BY_BLOCK - {"embedding"} | {"inputs"},
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1},
    ),
    "starcoder2": Writing(
        dropouts=_ALL, tells={"positions": "rope", "norm": "layernorm", "mlp": "gelu_tanh", "bias": "all"}
    ),
    "stablelm": Writing(
        variables=frozenset({"attention input", "attention output"}), dropouts=frozenset({"weights", "block's mlp"}),
        tells={"positions": "rope", "norm": "layernorm", "mlp": "swiglu"},
    ),
    "gemma2": Writing(
        norm="offset", sdpa=False, both_masks=True, tells={"norm_unit_offset": True, "norm_placement": "sandwich"}
    ),
    "gemma": Writing(norm="offset", tells={"norm_unit_offset": True}),
    "olmo2": Writing(norm="wide", rope="returned", tells={"norm": "rmsnorm", "norm_placement": "post"}),
    "llama": _LLAMA, "mistral": _LLAMA, "mixtral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA, "granite": _LLAMA,
}  # fmt: skip

#: Architectures that a later transformers writes otherwise, from which version on: a flavour has to name them. In 5.24, GPT-J
#: can call fused attention, and its layers repeat tables that the model made, which are in fp32 under autocast.
LATER = {
    "gptj-5.24": replace(
        WRITINGS["gptj"], rope="repeated tables", softmax="fp32 factors", sdpa=True, returns_weights=False
    )
}

#: What a configuration can have and these writings do not describe.
_OTHER = (
    "inner_norms", "qk_norm_bias", "sparse_layers", "shared_d_ff", "router_bias", "value_dim", "kv_latent", "embedding_dim",
    "sinks", "rope_layers", "norm_scale",
)  # fmt: skip
#: The MLPs that they describe.
_MLPS = frozenset({"gelu", "gelu_tanh", "gelu_new", "relu", "swiglu", "geglu", "geglu_tanh", "geglu_new", "reglu"})


def writing(config: TransformerConfig, family: str = "") -> Writing:
    """The writing of a model_type; without one, that of the first whose configuration looks like this one.

    A configuration that was read for an architecture has to fit that one. Errors: ValueError if none is described.
    """
    if family:
        known("architecture of transformers", family, WRITINGS | LATER)
    for name in _OTHER:
        if getattr(config, name) != getattr(TransformerConfig, name):
            raise ValueError(
                f"{name}={getattr(config, name)!r}: how transformers writes this down is not described here; "
                "ask for flavour='course'"
            )
    if config.mlp not in _MLPS or (config.experts and config.mlp != "swiglu"):
        raise ValueError(
            f"mlp={config.mlp!r}: how transformers writes this down is not described here; ask for flavour='course'"
        )
    if family:
        row = (WRITINGS | LATER)[family]
        # Of Falcon's three ways to divide queries, keys and values, only the multi-query one of Falcon 7B is described.
        if family == "falcon" and not _looks_like(config, row):
            raise ValueError("of the Falcons, only those like Falcon 7B are described here: ask for flavour='course'")
        return row
    found = _like(config)
    if config.model_type and found is not WRITINGS.get(config.model_type):
        raise ValueError(
            f"the modules of transformers are not described for {config.model_type}: ask for flavour='course'"
        )
    return found


def _looks_like(config: TransformerConfig, row: Writing) -> bool:
    return all(getattr(config, name) == value for name, value in row.tells.items())


def _like(config: TransformerConfig) -> Writing:
    for row in WRITINGS.values():
        if row.tells and _looks_like(config, row):
            return row
    if config.norm != "rmsnorm" or config.positions != "rope":
        raise ValueError(
            f"norm={config.norm!r} with positions={config.positions!r}: no architecture of transformers that is described "
            "here has both; ask for flavour='course'"
        )
    return _LLAMA
