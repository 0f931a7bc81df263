"""The shape of a decoder-only Transformer, from which every quantity of the course follows."""

from collections.abc import Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from cs336kit.predict.checks import known, shown
from cs336kit.predict.settle import BIASED, REQUIRED, settle
from cs336kit.predict.settle import GATED as GATED

#: Marks a field that is printed even where it has its default: in these, the course's own models differ.
PRINTED = {"printed": True}


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A decoder-only Transformer. The defaults are GPT-2's: learned positions, LayerNorm, GELU, biases, tied head.

    The block is pre-norm: x + attention(norm(x)), then x + MLP(norm(x)); a final norm and the head follow.
    A mixture of experts has one router matrix (experts × d_model). For everything that differs, there is a field below.
    Fields named `…_layers` give for each layer whether it has something; a shorter pattern repeats, and None means all layers.
    Impossible combinations raise a ValueError that says what to change. Most fields whose default is None are derived from the
    others.
    """

    #: number of blocks, L
    layers: int
    #: width of the residual stream, D
    d_model: int
    #: query heads, A
    heads: int
    #: key and value heads, K: None for one per query head, 1 for multi-query attention
    kv_heads: int = field(default=None, metadata=PRINTED)  # type: ignore[assignment]
    #: width of the MLP (of one expert), F: None for 4·d_model, which only GELU MLPs may leave out
    d_ff: int = field(default=None, metadata=PRINTED)  # type: ignore[assignment]
    #: size of the vocabulary, V
    vocab: int
    #: the longest sequence; with learned positions, also the number of position vectors
    context: int
    #: "gelu": up and down matrices; "swiglu": gate, up and down; more in settle.CHOICES
    mlp: str = field(default="gelu", metadata=PRINTED)
    norm: str = field(default="layernorm", metadata=PRINTED)
    positions: str = field(default="learned", metadata=PRINTED)
    #: linear layers of a block that have biases: "all", "none", "qkv" for query, key and value only, or names of settle.MATRICES
    bias: str | tuple[str, ...] = field(default="all", metadata=PRINTED)
    #: whether norms have a shift beside their scale: None for LayerNorm yes, RMSNorm no
    norm_bias: bool = field(default=None, metadata=PRINTED)  # type: ignore[assignment]
    #: whether the head shares its matrix with the token embedding
    tied_head: bool = field(default=True, metadata=PRINTED)
    #: width of one head, h: None for d_model / heads
    head_dim: int = field(default=None, metadata=PRINTED)  # type: ignore[assignment]
    #: experts per MLP: 0 (or 1) for a dense model without a router
    experts: int = field(default=0, metadata=PRINTED)
    #: experts that each token visits
    experts_per_token: int = field(default=None, metadata=PRINTED)  # type: ignore[assignment]
    #: sliding window: each position sees this many tokens, itself included; None for all
    window: int | None = field(default=None, metadata=PRINTED)
    #: dropout probability of attention weights and of both outputs of a block
    dropout: float = field(default=0.0, metadata=PRINTED)
    #: norms in one block: 2, or 1 where attention and MLP run in parallel after one norm (Falcon 7B)
    norms_per_block: int = field(default=2, metadata=PRINTED)
    #: whether attention and MLP run in parallel after two norms, too (NeoX, Falcon 40B); with one norm they always do
    parallel: bool = False
    #: where the norms of a block are: "pre", "post", "sandwich" or "residual"
    norm_placement: str = "pre"
    #: whether norms have parameters at all (OLMo 1: no)
    norm_scale: bool = True
    #: whether norms multiply by 1 + weight (Gemma)
    norm_unit_offset: bool = False
    #: whether there is a norm before the head
    final_norm: bool = True
    #: whether there is a norm after the embedding (BLOOM)
    embedding_norm: bool = False
    #: whether there are norms before the output matrices of attention and MLP, too (BitNet)
    inner_norms: bool = False
    #: norms of queries and keys, of the same kind as `norm`: "none", "head", "heads", "width" or "plain"
    qk_norm: str = "none"
    #: whether those norms have a shift (Persimmon)
    qk_norm_bias: bool = False
    #: whether the head has a bias (GPT-J, Phi)
    head_bias: bool = False
    #: rows of the table of learned positions beyond the context (OPT: two)
    extra_positions: int = 0
    #: width of the part of each head that is rotated: None for the whole head (with latent attention: give it)
    rotary_dim: int | None = None
    #: layers with rotary positions (SmolLM3, Llama 4)
    rope_layers: tuple[bool, ...] | None = None
    #: layers with the window (Gemma 2, gpt-oss)
    window_layers: tuple[bool, ...] | None = None
    #: "sliding" or "chunked"
    window_kind: str = "sliding"
    #: layers with experts; the others have a dense MLP of width `dense_d_ff`
    sparse_layers: tuple[bool, ...] | None = None
    #: width of the MLP of layers without experts: None for `d_ff`, which is the width of one expert
    dense_d_ff: int | None = None
    #: width of the MLP that every token visits beside its experts (the shared experts'); 0 for none, the sum if there are several
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
    #: width of the embedding, if one matrix leads to d_model and one back (OPT-350m): None for d_model
    embedding_dim: int | None = None
    #: whether every head has a learned score (a sink) that takes weight from the others (gpt-oss)
    sinks: bool = False
    #: scores and logits x become cap · tanh(x / cap) (Gemma 2); None for no cap
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    #: factor of the scores: None for 1/√head_dim
    attention_scale: float | None = None
    #: factors of the embeddings, the branches and the logits (Gemma, Granite, Cohere)
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    #: where the numbers come from
    source: str = field(default="", compare=False, repr=False)
    #: transformers' name of the architecture that this configuration was read for; "" if it is not known
    model_type: str = field(default="", compare=False, repr=False)
    #: how its published checkpoint stores the weights, a name of serving's WEIGHT_TYPES; "" if it is not known
    stored: str = field(default="", compare=False, repr=False)
    #: (component, type of weights, share of its matrices over all layers): what the checkpoint does not store as `stored` says
    stored_apart: tuple[tuple[str, str, float], ...] = field(default=(), compare=False, repr=False)
    #: what the original configuration has and this one leaves out, one sentence each
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        settle(self)

    def __repr__(self) -> str:
        # What is marked, or has no default, then only what differs from the defaults: there are many fields.
        shown = (f for f in fields(self) if f.repr and (f.metadata or getattr(self, f.name) != f.default))
        return f"TransformerConfig({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"

    def __hash__(self) -> int:
        # Programs are cached by their configuration, so its many fields are hashed only once.
        try:
            remembered: int = self.__dict__["_hash"]
        except KeyError:
            remembered = hash(tuple(getattr(self, name) for name in _COMPARED))
            object.__setattr__(self, "_hash", remembered)
        return remembered

    def __getstate__(self) -> dict[str, Any]:
        # Strings have other hashes in each process, so a pickled hash would match nothing there.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def query_width(self) -> int:
        """Width of all query heads together, A·h (d_model unless head_dim says otherwise)."""
        return self.heads * self.head_dim

    @property
    def side_by_side(self) -> bool:
        """Whether attention and MLP of a block run in parallel, on the same input."""
        return self.parallel or self.norms_per_block == 1

    @property
    def rotary_width(self) -> int:
        """Width of the part of each head that is rotated."""
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

    @property
    def biases(self) -> Collection[str]:
        """The matrices of a block that have a bias."""
        return BIASED[self.bias] if isinstance(self.bias, str) else self.bias

    def has_bias(self, matrix: str) -> bool:
        """Whether this matrix of a block (one of settle.MATRICES) has a bias."""
        return matrix in self.biases

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
        missing = [name for name in REQUIRED if name not in values]
        if missing:
            raise ValueError(f"the configuration lacks {', '.join(missing)}")
        return cls(**values)


_COMPARED = {f.name: f for f in fields(TransformerConfig) if f.compare}
#: Fields in which real architectures differ from the block of the course: they have a default, and are printed only beside it.
OPTIONS = tuple(name for name, f in _COMPARED.items() if f.default is not MISSING and not f.metadata)


def check_config(config: TransformerConfig) -> None:
    """Raise ValueError for anything other than a TransformerConfig, such as the name of a model."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(
            f"config must be a TransformerConfig, got {shown(config)}; MODELS holds well-known ones by name"
        )
