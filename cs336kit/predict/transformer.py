"""The shape of a decoder-only Transformer, from which every quantity of the course follows."""

from dataclasses import dataclass, field, fields
from typing import Any

from cs336kit.predict._common.checks import at_most, boolean, known, non_negative_int, positive_int

#: What each choice means; also the table of allowed names.
CHOICES = {
    "mlp": {"gelu": "up, GELU, down", "swiglu": "SiLU(gate) · up, down"},
    "norm": {"layernorm": "mean and variance", "rmsnorm": "root mean square, scale only"},
    "positions": {"learned": "a vector per position", "rope": "rotated queries and keys", "none": "no positions"},
    "bias": {"all": "every linear layer of a block", "none": "no linear layer", "qkv": "query, key and value only"},
}

#: Far beyond any model: sizes that a typing error makes, and that would only exhaust the memory.
LARGEST = {"layers": 10**5, "d_model": 10**7, "heads": 10**6, "vocab": 10**9, "context": 10**10}

_REQUIRED = ("layers", "d_model", "heads", "vocab", "context")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """A decoder-only Transformer. The defaults are GPT-2's: learned positions, LayerNorm, GELU, biases, tied head.

    The block is pre-norm: x + attention(norm(x)), then x + MLP(norm(x)); a final norm and the head follow.
    The head has no bias; a mixture of experts has one router matrix (experts × d_model) and no shared expert.
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
    #: "gelu": up and down matrices; "swiglu": gate, up and down
    mlp: str = "gelu"
    norm: str = "layernorm"
    positions: str = "learned"
    #: which linear layers of a block have biases: "all", "none", or "qkv" for query, key and value only
    bias: str = "all"
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
    #: where the numbers come from
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in _REQUIRED:
            self._set(name, at_most(name, positive_int(name, getattr(self, name)), LARGEST[name]))
        for name, choices in CHOICES.items():
            known(name, getattr(self, name), choices)
        self._settle_heads()
        self._settle_mlp()
        if self.norm_bias is None:
            self._set("norm_bias", self.norm == "layernorm")
        for name in ("norm_bias", "tied_head"):
            boolean(name, getattr(self, name))
        if self.norm == "rmsnorm" and self.norm_bias:
            raise ValueError("norm_bias=True with norm='rmsnorm': RMSNorm has a scale only; use norm='layernorm'")
        if self.window is not None:
            self._set("window", positive_int("window", self.window))
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout!r}: give a probability from 0 up to, not including, 1")
        if type(self.norms_per_block) is not int or self.norms_per_block not in (1, 2):
            raise ValueError(f"norms_per_block is {self.norms_per_block!r}: give 2, or 1 for a parallel block")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

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
        if self.positions == "rope" and self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd: positions='rope' rotates pairs, so make it even")

    def _settle_mlp(self) -> None:
        if self.d_ff is None:
            if self.mlp == "swiglu":
                raise ValueError("d_ff is missing: a SwiGLU MLP has no usual width (Llama-2 7B: 11008 at d_model 4096)")
            self._set("d_ff", 4 * self.d_model)
        self._set("d_ff", positive_int("d_ff", self.d_ff))
        self._set("experts", 0 if self.experts is None else non_negative_int("experts", self.experts))
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
        """Width of all keys of a token, K·h; its values are as wide."""
        return self.kv_heads * self.head_dim

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


def check_config(config: TransformerConfig) -> None:
    """Raise ValueError for anything else than a TransformerConfig, such as the name of a model."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"config must be a TransformerConfig, got {config!r}; MODELS holds well-known ones by name")
