"""The shape of a decoder-only Transformer, from which every quantity of the course follows."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from cs336kit.predict._common.checks import (
    at_most,
    boolean,
    known,
    non_negative_int,
    positive_int,
    positive_number,
)

#: What each choice means; also the table of allowed names.
CHOICES = {
    "mlp": {
        "gelu": "up, GELU, down",
        "gelu_tanh": "up, GELU by its tanh formula, down",
        "gelu_new": "the same, written out in elementary operations",
        "relu": "up, ReLU, down",
        "relu2": "up, ReLU squared, down",
        "silu": "up, SiLU, down",
        "xielu": "up, xIELU with two learned numbers, down",
        "swiglu": "SiLU(gate) · up, down",
        "swiglu_clipped": "gate · sigmoid(1.702 · gate) · (up + 1) with both clipped, down",
        "geglu": "GELU(gate) · up, down",
        "geglu_tanh": "GELU by its tanh formula (gate) · up, down",
        "reglu": "ReLU(gate) · up, down",
        "relu2glu": "ReLU squared (gate) · up, down",
    },
    "norm": {"layernorm": "mean and variance", "rmsnorm": "root mean square, scale only"},
    "positions": {
        "learned": "a vector per position",
        "rope": "rotated queries and keys",
        "alibi": "scores less a multiple of the distance",
        "sinusoidal": "a fixed vector per position",
        "none": "no positions",
    },
    "bias": {"all": "every linear layer of a block", "none": "no linear layer", "qkv": "query, key and value only"},
    "norm_placement": {
        "pre": "before each branch",
        "post": "behind each branch, before the sum (OLMo 2)",
        "sandwich": "before and behind each branch (Gemma 2)",
        "residual": "behind each sum (GPT-1, OPT-350m)",
    },
    "qk_norm": {
        "none": "queries and keys as they are",
        "head": "over each head, all heads with one scale (Qwen3)",
        "heads": "over each head, every head with its own scale (Command R+)",
        "width": "over all heads together (OLMo 2)",
        "plain": "over each head, without a scale (Llama 4)",
    },
    "window_kind": {
        "sliding": "the last tokens, as many as the window",
        "chunked": "the tokens of the same chunk, as long as the window (Llama 4)",
    },
}

#: MLPs with a gate matrix beside up and down.
GATED = frozenset({"swiglu", "swiglu_clipped", "geglu", "geglu_tanh", "reglu", "relu2glu"})
#: The matrices of a block that `bias` may name.
MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
_BIASED = {"all": frozenset(MATRICES), "none": frozenset[str](), "qkv": frozenset(MATRICES[:3])}

#: Far beyond any model: sizes that a typing error makes, and that would only exhaust the memory.
LARGEST = {"layers": 10**5, "d_model": 10**7, "heads": 10**6, "vocab": 10**9, "context": 10**10, "experts": 10**5}

_REQUIRED = ("layers", "d_model", "heads", "vocab", "context")


@dataclass(frozen=True, kw_only=True, repr=False)
class TransformerConfig:
    """A decoder-only Transformer. The defaults are GPT-2's: learned positions, LayerNorm, GELU, biases, tied head.

    The block is pre-norm: x + attention(norm(x)), then x + MLP(norm(x)); a final norm and the head follow.
    A mixture of experts has one router matrix (experts × d_model). What differs has a field of its own below.
    Fields named `…_layers` say for each layer whether something holds there; a shorter pattern repeats, None means all.
    Impossible combinations raise a ValueError whose sentence says what to change. A field whose default is None is settled
    from the others.
    """

    #: number of blocks, L
    layers: int
    #: width of the residual stream, D
    d_model: int
    #: query heads, A
    heads: int
    #: key and value heads, K: None for one per query head, 1 for multi-query attention
    kv_heads: int = None  # type: ignore[assignment]
    #: width of the MLP (of one expert), F: None for 4·d_model, which only GELU MLPs may leave out
    d_ff: int = None  # type: ignore[assignment]
    #: size of the vocabulary, V
    vocab: int
    #: the longest sequence; with learned positions, also the number of position vectors
    context: int
    #: "gelu": up and down matrices; "swiglu": gate, up and down; more in CHOICES
    mlp: str = "gelu"
    norm: str = "layernorm"
    positions: str = "learned"
    #: which linear layers of a block have biases: "all", "none", "qkv" for query, key and value only, or names of MATRICES
    bias: str | tuple[str, ...] = "all"
    #: whether norms have a shift beside their scale: None for LayerNorm yes, RMSNorm no
    norm_bias: bool = None  # type: ignore[assignment]
    #: whether the head shares its matrix with the token embedding
    tied_head: bool = True
    #: width of one head, h: None for d_model / heads
    head_dim: int = None  # type: ignore[assignment]
    #: experts per MLP: 0 (or 1) for a dense model without a router
    experts: int = 0
    #: experts that each token visits
    experts_per_token: int = None  # type: ignore[assignment]
    #: sliding window: each position sees this many tokens, itself included; None for all
    window: int | None = None
    #: dropout probability of attention weights and of both outputs of a block
    dropout: float = 0.0
    #: norms in one block: 2, or 1 where attention and MLP run in parallel behind one norm (Falcon 7B)
    norms_per_block: int = 2
    #: whether attention and MLP run side by side behind two norms, too (NeoX, Falcon 40B); with one norm they always do
    parallel: bool = False
    #: where the norms of a block stand: "pre", "post", "sandwich" or "residual"
    norm_placement: str = "pre"
    #: whether norms have parameters at all (OLMo 1: no)
    norm_scale: bool = True
    #: whether norms multiply by 1 + weight (Gemma)
    norm_unit_offset: bool = False
    #: whether a norm stands before the head
    final_norm: bool = True
    #: whether a norm stands behind the embedding (BLOOM)
    embedding_norm: bool = False
    #: whether norms stand before the output matrices of attention and MLP too (BitNet)
    inner_norms: bool = False
    #: norms of queries and keys, of the kind of `norm`: "none", "head", "heads", "width" or "plain"
    qk_norm: str = "none"
    #: whether those norms have a shift (Persimmon)
    qk_norm_bias: bool = False
    #: whether the head has a bias (GPT-J, Phi)
    head_bias: bool = False
    #: rows of the table of learned positions beyond the context (OPT: two)
    extra_positions: int = 0
    #: width of each head that rotary positions turn: None for the whole head (with latent attention: give it)
    rotary_dim: int | None = None
    #: layers with rotary positions (SmolLM3, Llama 4)
    rope_layers: tuple[bool, ...] | None = None
    #: layers where the window holds (Gemma 2, gpt-oss)
    window_layers: tuple[bool, ...] | None = None
    #: "sliding" or "chunked"
    window_kind: str = "sliding"
    #: layers with experts; the others have a dense MLP of width `dense_d_ff`
    sparse_layers: tuple[bool, ...] | None = None
    #: width of the MLP of layers without experts: None for `d_ff`, which is the width of one expert
    dense_d_ff: int | None = None
    #: width of the MLP that every token visits beside its experts; 0 for none, the sum where there are several
    shared_d_ff: int = 0
    #: whether that MLP's output is weighted by a gate of its own (Qwen1.5-MoE)
    shared_gate: bool = False
    #: whether the router has a bias (gpt-oss)
    router_bias: bool = False
    #: width of one head's values: None for head_dim
    value_dim: int | None = None
    #: width of the latent from which keys and values are made (DeepSeek V2); 0 for none. A cache holds it and the rotary part
    kv_latent: int = 0
    #: width of the latent from which queries are made; 0 for none
    query_latent: int = 0
    #: width of the embedding, with a matrix to d_model and one back (OPT-350m): None for d_model
    embedding_dim: int | None = None
    #: whether every head has a learned score that takes weight from the others (gpt-oss)
    sinks: bool = False
    #: scores and logits x become cap · tanh(x / cap) (Gemma 2); None for no cap
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    #: scores are multiplied by it: None for 1/√head_dim
    attention_scale: float | None = None
    #: embeddings, branches and logits are multiplied by these (Gemma, Granite, Cohere)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    #: where the numbers come from
    source: str = field(default="", compare=False, repr=False)
    #: what was left out of the configuration that this one follows, one sentence each
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            self._set(name, at_most(name, positive_int(name, getattr(self, name)), LARGEST[name]))
        for name, choices in CHOICES.items():
            if name != "bias":
                known(name, getattr(self, name), choices)
        self._settle_heads()
        self._settle_latent()
        self._settle_mlp()
        self._settle_bias()
        self._settle_norms()
        if self.window is not None:
            self._set("window", positive_int("window", self.window))
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout!r}: give a probability from 0 up to, not including, 1")
        self._settle_layers()
        for name in _BOOLEANS:
            boolean(name, getattr(self, name))
        for name in ("attention_softcap", "logit_softcap", "attention_scale", *_SCALES):
            if getattr(self, name) is not None or name in _SCALES:
                self._set(name, positive_number(name, getattr(self, name)))
        self._set("extra_positions", non_negative_int("extra_positions", self.extra_positions))
        # None where it says what is so anyway: equal configurations are equal, and a changed d_model changes its embedding.
        for name, usual in (("embedding_dim", self.d_model), ("value_dim", self.head_dim), ("dense_d_ff", self.d_ff)):
            given = getattr(self, name)
            if given is not None:
                self._set(name, None if positive_int(name, given) == usual else int(given))
        self._set("notes", tuple(self.notes))

    def __repr__(self) -> str:
        # What differs from the defaults, behind the sizes: there are many fields.
        shown = (f for f in fields(self) if f.repr and (f.name in _SHOWN or getattr(self, f.name) != f.default))
        return f"TransformerConfig({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def __hash__(self) -> int:
        # Programs are remembered by their configuration: its many fields are hashed once.
        try:
            remembered: int = self.__dict__["_hash"]
        except KeyError:
            remembered = hash(tuple(getattr(self, name) for name in _COMPARED))
            self._set("_hash", remembered)
        return remembered

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _settle_norms(self) -> None:
        if self.norm_bias is None:
            self._set("norm_bias", self.norm == "layernorm" and bool(self.norm_scale))
        for name in ("norm_bias", "tied_head"):
            boolean(name, getattr(self, name))
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ValueError("norm_bias=True with norm='rmsnorm': RMSNorm has a scale only; use norm='layernorm'")
        if self.norm_bias and not self.norm_scale:
            raise ValueError(
                "norm_bias=True with norm_scale=False: a norm without a scale has no shift; drop one of them"
            )
        if type(self.norms_per_block) is not int or self.norms_per_block not in (1, 2):
            raise ValueError(f"norms_per_block is {self.norms_per_block!r}: give 2, or 1 for a parallel block")
        if boolean("parallel", self.parallel) and self.norms_per_block == 1:
            self._set("parallel", False)
        if self.side_by_side and self.norm_placement != "pre":
            raise ValueError(
                f"norm_placement={self.norm_placement!r} with parallel branches: they have their norms in front; "
                "give norm_placement='pre'"
            )
        if self.qk_norm in ("none", "plain") and self.qk_norm_bias:
            raise ValueError(
                f"qk_norm_bias=True with qk_norm={self.qk_norm!r}: there is no scale beside which a shift stands"
            )

    def _settle_bias(self) -> None:
        bias = self.bias
        if isinstance(bias, str) or not isinstance(bias, Iterable):
            known("bias", bias, CHOICES["bias"])
            return
        named = frozenset(
            known("matrix with a bias", name, dict(zip(MATRICES, MATRICES, strict=True))) for name in bias
        )
        exist = frozenset(MATRICES if self.mlp in GATED else (name for name in MATRICES if name != "gate"))
        if named - exist:
            raise ValueError(f"bias names 'gate', and mlp={self.mlp!r} has no gate: leave it out")
        # One name for one pattern, so that equal configurations are equal.
        for word, pattern in _BIASED.items():
            if named == pattern & exist:
                self._set("bias", word)
                return
        self._set("bias", tuple(name for name in MATRICES if name in named))

    def _settle_latent(self) -> None:
        for name in ("kv_latent", "query_latent", "shared_d_ff"):
            self._set(name, non_negative_int(name, getattr(self, name)))
        if self.rotary_dim is None:
            if self.kv_latent:
                raise ValueError("rotary_dim is missing: with kv_latent, say how wide the rotary part of a key is")
        else:
            width = positive_int("rotary_dim", self.rotary_dim)
            if width > self.head_dim:
                raise ValueError(f"rotary_dim={width} is more than head_dim={self.head_dim}: give at most that")
            if self.positions == "rope" and width % 2:
                raise ValueError(f"rotary_dim={width} is odd: positions='rope' rotates pairs, so make it even")
            self._set("rotary_dim", None if width == self.head_dim and not self.kv_latent else width)
        if self.query_latent and not self.kv_latent:
            raise ValueError("query_latent without kv_latent: give kv_latent too, or neither")
        if self.kv_latent and self.kv_heads != self.heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} with kv_latent: every query head makes its own keys; leave kv_heads out"
            )

    def _settle_layers(self) -> None:
        for name, applies in (
            ("rope_layers", self.positions == "rope"),
            ("window_layers", self.window is not None),
            ("sparse_layers", self.experts > 0),
        ):
            pattern = getattr(self, name)
            if pattern is None:
                continue
            given = tuple(pattern)
            if not given or any(type(value) is not bool for value in given):
                raise ValueError(f"{name} is {pattern!r}: give True or False for each layer, or a pattern that repeats")
            settled = tuple(given[layer % len(given)] for layer in range(self.layers))
            if not any(settled) and name == "sparse_layers":
                raise ValueError(f"sparse_layers has no True: with experts={self.experts}, at least one layer has them")
            if name == "window_layers" and not any(settled):
                self._set("window", None)
                applies = False
            self._set(name, settled if applies and not all(settled) else None)
        if self.sparse_layers is None:
            self._set("dense_d_ff", None)
        if not self.experts and (self.shared_d_ff or self.router_bias):
            raise ValueError("shared_d_ff and router_bias belong to a mixture: give experts, or leave them out")
        if self.shared_gate and not self.shared_d_ff:
            raise ValueError("shared_gate=True without shared_d_ff: there is no shared expert to weigh")

    def _settle_heads(self) -> None:
        if self.kv_heads is None:
            self._set("kv_heads", self.heads)
        self._set("kv_heads", positive_int("kv_heads", self.kv_heads))
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: every key/value head must serve the "
                "same number of query heads"
            )
        if self.head_dim is None:
            if self.d_model % self.heads:
                raise ValueError(
                    f"heads={self.heads} does not divide d_model={self.d_model}: change one of them, or give head_dim"
                )
            self._set("head_dim", self.d_model // self.heads)
        self._set("head_dim", positive_int("head_dim", self.head_dim))
        if self.positions == "rope" and self.head_dim % 2 and self.rotary_dim is None:
            raise ValueError(f"head_dim={self.head_dim} is odd: positions='rope' rotates pairs, so make it even")

    def _settle_mlp(self) -> None:
        if self.d_ff is None:
            if self.mlp in GATED:
                raise ValueError("d_ff is missing: a SwiGLU MLP has no usual width (Llama-2 7B: 11008 at d_model 4096)")
            self._set("d_ff", 4 * self.d_model)
        self._set("d_ff", positive_int("d_ff", self.d_ff))
        experts = 0 if self.experts is None else non_negative_int("experts", self.experts)
        self._set("experts", at_most("experts", experts, LARGEST["experts"]))
        if self.experts in (0, 1):
            if self.experts_per_token not in (None, 0, 1):
                raise ValueError(
                    f"experts_per_token={self.experts_per_token} with experts={self.experts}: a dense model has no "
                    "experts to choose from; give experts too"
                )
            self._set("experts", 0)
            self._set("experts_per_token", 0)
            return
        if self.experts_per_token is None:
            raise ValueError(
                f"experts_per_token is missing: how many of the {self.experts} experts does a token visit?"
            )
        self._set("experts_per_token", positive_int("experts_per_token", self.experts_per_token))
        if self.experts_per_token > self.experts:
            raise ValueError(f"experts_per_token={self.experts_per_token} is more than experts={self.experts}")

    @property
    def query_width(self) -> int:
        """Width of all query heads together, A·h (d_model unless head_dim says otherwise)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, K·h; its values are as wide, unless value_dim says otherwise."""
        return self.kv_heads * self.head_dim

    @property
    def side_by_side(self) -> bool:
        """Whether attention and MLP of a block read the same input."""
        return self.parallel or self.norms_per_block == 1

    @property
    def rotary_width(self) -> int:
        """Width of each head that rotary positions turn."""
        return self.rotary_dim or self.head_dim

    @property
    def value_head_dim(self) -> int:
        """Width of one head's values."""
        return self.value_dim or self.head_dim

    @property
    def embedding_width(self) -> int:
        """Width of the embedding table."""
        return self.embedding_dim or self.d_model

    @property
    def dense_width(self) -> int:
        """Width of the MLP of a layer without experts."""
        return self.dense_d_ff or self.d_ff

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate matrix."""
        return self.mlp in GATED

    def has_bias(self, matrix: str) -> bool:
        """Whether this matrix of a block (one of MATRICES) has a bias."""
        return matrix in (_BIASED[self.bias] if isinstance(self.bias, str) else self.bias)

    def is_sparse(self, layer: int) -> bool:
        """Whether this layer, counted from 0, has experts."""
        return self.experts > 0 and (self.sparse_layers is None or self.sparse_layers[layer])

    def has_rope(self, layer: int) -> bool:
        """Whether this layer, counted from 0, rotates its queries and keys."""
        return self.positions == "rope" and (self.rope_layers is None or self.rope_layers[layer])

    def window_of(self, layer: int) -> int | None:
        """The window of this layer, counted from 0; None where it sees everything."""
        return self.window if self.window_layers is None or self.window_layers[layer] else None

    @property
    def sparse_count(self) -> int:
        """How many layers have experts."""
        return 0 if not self.experts else self.layers if self.sparse_layers is None else sum(self.sparse_layers)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TransformerConfig":
        """A configuration from a dictionary, as read from a JSON file. Unknown and missing names raise ValueError."""
        if not isinstance(values, dict):
            raise ValueError(f"a configuration is an object of names and values, not {type(values).__name__}")
        names = {f.name: f for f in fields(cls)}
        for name in values:
            known("field of a TransformerConfig", name, names)
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise ValueError(f"the configuration lacks {', '.join(missing)}")
        return cls(**values)


_NAMES = list(TransformerConfig.__dataclass_fields__)
_SCALES = ("embedding_scale", "residual_scale", "logit_scale")
_SHOWN = frozenset(_NAMES[: _NAMES.index("parallel")])
#: Fields in which real architectures differ from the block of the course.
OPTIONS = tuple(f.name for f in fields(TransformerConfig) if f.name not in _SHOWN and f.compare)
_BOOLEANS = tuple(f.name for f in fields(TransformerConfig) if f.type == "bool" or f.type is bool)
_COMPARED = tuple(f.name for f in fields(TransformerConfig) if f.compare)


def check_config(config: TransformerConfig) -> None:
    """Raise ValueError for anything else than a TransformerConfig, such as the name of a model."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"config must be a TransformerConfig, got {config!r}; MODELS holds well-known ones by name")
