"""The decoder as transformers writes it: the same products as the course's, and other tensors kept for the backward pass.

What an architecture does stands in its configuration; how its module writes that down is a row of WRITINGS.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from cs336kit.predict._builder import Builder
from cs336kit.predict._common.checks import known
from cs336kit.predict._sdpa import Heads, scaled_dot_product_attention
from cs336kit.predict.devices import Device
from cs336kit.predict.operations import Gradient, Op, Program, Storage, Tensor
from cs336kit.predict.precision import PrecisionPolicy
from cs336kit.predict.transformer import GATED, TransformerConfig


@dataclass(frozen=True)
class Writing:
    """How a module of transformers writes what other modules write otherwise."""

    #: "separate" matrices; one matrix whose output is seen in three parts ("split") or head by head ("interleaved");
    #: "indexed": the same, with keys and values picked out by an index, which copies (Falcon's multi-query)
    qkv: str = "separate"
    #: a norm in fp32: scaled in the type of the activations ("narrow"), scaled in fp32 ("wide"), by 1 + weight ("offset"),
    #: with a mean ("centered"); "torch" for torch's layer norm
    norm: str = "torch"
    #: rotary positions in the type of the activations ("plain"), in fp32 and cast back ("returned"), in fp32 and in neighbouring
    #: pairs ("wide"), with tables that each layer makes for queries and keys anew ("own tables")
    rope: str = "plain"
    #: the softmax "in fp32", in the type of the scores ("as it is") or in that of the block's input ("as the input");
    #: "fp32 scores": queries and keys are cast to fp32 before
    softmax: str = "in fp32"
    #: scores by one batched product that adds the position bias (BLOOM)
    baddbmm: bool = False
    #: whether GELU is a function of its own that keeps its input, even where it is written out (BLOOM)
    own_gelu: bool = False
    #: whether the module can call torch's scaled_dot_product_attention; else transformers takes eager attention
    sdpa: bool = True
    #: whether the fused function is called with fewer key heads and no word about it
    broadcast: bool = False
    #: whether it always gets a mask
    masked: bool = False
    #: where dropout falls: "embedding", "weights", "attention", "mlp"
    dropouts: frozenset[str] = frozenset({"weights"})
    #: whether a checkpointed block keeps the mask beside its input
    keeps_mask: bool = False
    #: fields of a configuration that tell the architecture where it is not named
    tells: Mapping[str, object] = field(default_factory=dict, hash=False)


_ALL = frozenset({"embedding", "weights", "attention", "mlp"})
_LLAMA = Writing(norm="narrow")
#: transformers' model_type → its writing. Source: transformers 5.23, models/*/modeling_*.py.
WRITINGS: dict[str, Writing] = {
    "gpt2": Writing(
        "split", softmax="as it is", dropouts=_ALL, keeps_mask=True, tells={"positions": "learned", "extra_positions": 0}
    ),
    "opt": Writing(dropouts=_ALL - {"embedding"}, tells={"positions": "learned", "extra_positions": 2}),
    "bloom": Writing(
        "interleaved", baddbmm=True, own_gelu=True, sdpa=False, dropouts=_ALL - {"embedding"},
        tells={"positions": "alibi", "embedding_norm": True},
    ),
    "gpt_neox": Writing("interleaved", dropouts=_ALL, tells={"positions": "rope", "norm": "layernorm", "parallel": True}),
    "gptj": Writing(
        rope="own tables", softmax="fp32 scores", sdpa=False, dropouts=_ALL,
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1, "bias": ("up", "down")},
    ),
    "cohere": Writing(
        norm="centered", rope="wide",
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1, "norm_bias": False},
    ),
    "falcon": Writing(
        "indexed", softmax="as the input", broadcast=True, masked=True, dropouts=frozenset({"mlp"}),
        tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1, "kv_heads": 1, "bias": "none"},
    ),
    "phi": Writing(dropouts=_ALL, tells={"positions": "rope", "norm": "layernorm", "norms_per_block": 1}),
    "starcoder2": Writing(
        dropouts=_ALL, tells={"positions": "rope", "norm": "layernorm", "mlp": "gelu_tanh", "bias": "all"}
    ),
    "stablelm": Writing(
        dropouts=frozenset({"weights", "mlp"}), tells={"positions": "rope", "norm": "layernorm", "mlp": "swiglu"}
    ),
    "gemma2": Writing(norm="offset", sdpa=False, tells={"norm_unit_offset": True, "norm_placement": "sandwich"}),
    "gemma": Writing(norm="offset", tells={"norm_unit_offset": True}),
    "olmo2": Writing(norm="wide", rope="returned", tells={"norm": "rmsnorm", "norm_placement": "post"}),
    "llama": _LLAMA, "mistral": _LLAMA, "mixtral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA, "granite": _LLAMA,
}  # fmt: skip

#: What a configuration can say and these writings do not describe.
_OTHER = (
    "inner_norms", "qk_norm_bias", "sparse_layers", "shared_d_ff", "router_bias", "value_dim", "kv_latent", "embedding_dim",
    "sinks", "rope_layers",
)  # fmt: skip


def writing(config: TransformerConfig, family: str = "") -> Writing:
    """The writing of a model_type; without one, that of the first whose configuration looks like this one.

    Errors: ValueError where none is described.
    """
    if family:
        known("architecture of transformers", family, WRITINGS)
    defaults = {f.name: f.default for f in fields(config)}
    for name in _OTHER:
        if getattr(config, name) != defaults[name]:
            raise ValueError(
                f"{name}={getattr(config, name)!r}: how transformers writes this down is not described here; "
                "ask for flavour='course'"
            )
    if family:
        return WRITINGS[family]
    for row in WRITINGS.values():
        if row.tells and all(getattr(config, name) == value for name, value in row.tells.items()):
            return row
    if config.norm != "rmsnorm" or config.positions != "rope":
        raise ValueError(
            f"norm={config.norm!r} with positions={config.positions!r}: no architecture of transformers that is described "
            "here has both; ask for flavour='course'"
        )
    return _LLAMA


class Parts(NamedTuple):
    """What the blocks share: sizes, tables of positions, the mask."""

    B: int
    S: int
    tables: tuple[Tensor, Tensor] | None
    mask: Tensor | None


class Modules:
    """A block of an architecture, module by module."""

    def __init__(self, b: Builder, config: TransformerConfig, how: Writing, attention: str):
        self.b, self.c, self.how = b, config, how
        self.method = attention if how.sdpa else "eager"
        self.biases = {"all": _MATRICES, "none": (), "qkv": _MATRICES[:3]}.get(str(config.bias), config.bias)
        self.rotary = config.rotary_dim or config.head_dim

    def dropped(self, at: str, place: str, x: Tensor, mask: str) -> Tensor:
        """Dropout, where this architecture has it."""
        return self.b.dropout(place, x, self.c.dropout if at in self.how.dropouts else 0.0, mask=mask)

    def linear(self, place: str, x: Tensor, outputs: int, component: str, *, name: str = "", cast: str = "") -> Tensor:
        bias = component.split()[-1] in self.biases
        return self.b.linear(place, x, outputs, component=component, bias=bias, name=name, cast=cast)

    # -- norms -------------------------------------------------------------------------------------------------------

    def norm(self, place: str, x: Tensor, *, name: str, component: str = "norms", kind: str = "") -> Tensor:
        """A norm over the last axis, as the module writes it; x is let go by the caller."""
        b, c, kind = self.b, self.c, kind or self.how.norm
        before, b.part = b.part, "norms"
        if kind == "torch":
            y = b.layer_norm(place, x, component=component, shift=c.norm_bias, name=name, kept_as=place)
        elif kind == "wide":
            y = b.rms_norm(place, x, component=component, scale=x.shape[-1:], name=name, kept_as=place)
        else:
            y = self._fp32_norm(place, x, kind, component, name)
        b.part = before
        return y

    def _fp32_norm(self, place: str, x: Tensor, kind: str, component: str, name: str) -> Tensor:
        b, D = self.b, x.shape[-1]
        weight = b.parameter(component, D)
        wide = b.cast(f"{place}/fp32", x, "fp32", name=place)
        made = [] if wide is x else [wide]
        few = (*x.shape[:-1], 1)
        squared = wide
        if kind == "centered":
            mean = b.op(f"{place}/mean of x", "mean", [wide], few)
            # The module subtracts the mean twice, once for the variance and once for the result.
            squared = b.add(f"{place}/center for variance", wide, mean, name=place)
            made.append(squared)
        square = b.op(
            f"{place}/square", "square", [squared], x.shape, keeps=[squared], scratch=(squared.bytes, squared.bytes)
        )
        variance = b.op(f"{place}/mean", "mean", [square], few)
        shifted = b.op(f"{place}/add eps", "add", [variance], few, passes=True)
        inverse = b.op(f"{place}/rsqrt", "rsqrt", [shifted], few, keeps_output=True, name=place)
        centered = wide
        if kind == "centered":
            centered = b.add(f"{place}/center", wide, mean, name=place)
            made += [mean, centered]
        normed = b.mul(f"{place}/normalize", centered, inverse, name=place)
        b.free(square, variance, shifted, inverse, *made)
        factor = weight
        if kind == "narrow":
            narrow = b.cast(f"{place}/cast", normed, x.dtype, name=place)
            result = b.mul(f"{place}/scale", narrow, weight, name=name)
            b.free(normed, *([] if narrow is normed else [narrow]))
            return result
        if kind in ("offset", "centered"):
            factor = b.cast(f"{place}/weight", weight, "fp32", name=f"copies of {component}")
        if kind == "offset":
            raised = b.op(f"{place}/1 + weight", "add", [factor], (D,), passes=True, name=f"copies of {component}")
            if factor is not weight:
                b.free(factor)
            factor = raised
        scaled = b.mul(f"{place}/scale", normed, factor, name=name)
        b.free(normed, *([] if factor is weight else [factor]))
        result = b.cast(f"{place}/back", scaled, x.dtype, name=name)
        if result is not scaled:
            b.free(scaled)
        return result

    # -- attention ---------------------------------------------------------------------------------------------------

    def attention(self, x: Tensor, parts: Parts, window: int | None) -> Tensor:
        """Projections, rotary positions, eager or fused attention, output projection, dropout."""
        b, c = self.b, self.c
        q, k, v, held = self._projected(x)
        if parts.tables is not None:
            q, k = (self._rotated(f"{name} rotary", t, parts, name) for name, t in (("query", q), ("key", k)))
            held += [q.x, k.x]
        if self.method == "sdpa":
            z = self._fused(q, k, v, parts, window)
        else:
            z = self._eager(q, k, v, parts, x.dtype)
        merged = z if z.shape == (*x.shape[:2], c.query_width) else self._merged(z, x.shape)
        out = self.linear("output", merged, c.d_model, "attention output")
        b.free(*held, merged)
        return self.dropped("attention", "output dropout", out, "attention dropout mask")

    def _projected(self, x: Tensor) -> tuple[Heads, Heads, Heads, list[Tensor]]:
        """Queries, keys and values of every head, and the tensors that hold them."""
        b, c, (B, S, _) = self.b, self.c, x.shape
        A, K, h = c.heads, c.kv_heads, c.head_dim
        if self.how.qkv == "separate":
            made = []
            for name, n in (("query", A), ("key", K), ("value", K)):
                y = self.linear(name, x, n * h, name, name=name)
                if name != "value" and c.qk_norm != "none":
                    rows = y if c.qk_norm == "width" else b.view(y, B, S, n, h)
                    normed = self.norm(f"{name} norm", rows, name=name, component="query and key norms")
                    b.free(y)
                    y = normed
                made.append(Heads(b.view(y, B, n, S, h)))
            return made[0], made[1], made[2], [heads.x for heads in made]
        fused = b.linear(
            "query, key, value", x, (A + 2 * K) * h, component="query, key, value", bias="query" in self.biases,
            name="query, key, value",
        )  # fmt: skip
        views = tuple(
            Tensor((B, n, S, h), fused.dtype, fused.storage, fused.needs_gradient, object()) for n in (A, K, K)
        )
        gradients = (Gradient(fused, fused.bytes),) if fused.needs_gradient else ()
        b.items.append(Op(f"{b.prefix}split", "chunk", (fused,), views, (), (), gradients, b.part))
        held = [fused]
        q, k, v = (Heads(t, split=self.how.qkv == "split") for t in views)
        if self.how.qkv == "indexed":
            k, v = (
                Heads(b.op(f"{name}/pick", "copy", [t.x], t.x.shape, name=name))
                for name, t in (("key", k), ("value", v))
            )
            held += [k.x, v.x]
        return q, k, v, held

    def _rotated(self, place: str, given: Heads, parts: Parts, name: str) -> Heads:
        b, (B, n, S, h) = self.b, given.x.shape
        assert parts.tables is not None
        x, width, dtype = given.x, self.rotary, given.x.dtype
        tables = parts.tables
        with b.within(place):
            if self.how.rope == "wide":
                x = b.cast("fp32", x, "fp32")
            if self.how.rope == "own tables":
                tables = tuple(
                    b.op(t, "repeat", [], (1, S, 1, width), dtype=dtype, name="rotary tables")
                    for t in ("cosine", "sine")
                )  # type: ignore[assignment]
            first, second = b.chunk("halves", x)
            turning = x if width == h else b.view(x, B, n, S, width)
            straight = b.op(
                "cosine", "mul", [turning, tables[0]], turning.shape, keeps=[tables[0]], dtype=_wider(x, tables[0])
            )
            negative = b.op("negate", "neg", [second], (B, n, S, width // 2))
            turned = b.cat("exchange", negative, first, turning.shape)
            crossed = b.op(
                "sine", "mul", [turned, tables[1]], turning.shape, keeps=[tables[1]], dtype=_wider(x, tables[1])
            )
            rotated = b.add("sum", straight, crossed, name=name)
            b.free(negative, turned, straight, crossed, *(tables if tables is not parts.tables else ()))
            if width != h:
                rest = b.view(x, B, n, S, h - width)
                whole = b.cat("put together", rotated, rest, (B, n, S, h))
                whole.storage.name = name
                b.free(rotated)
                # In GPT-J the heads still stand behind the sequence here.
                return Heads(whole, front=self.how.rope != "own tables")
            if self.how.rope in ("returned", "wide"):
                result = b.cast("back", rotated, dtype, name=name)
                if result is not rotated:
                    b.free(rotated)
                rotated = result
        return Heads(rotated)

    def _repeated(self, name: str, given: Heads) -> Heads:
        """repeat_kv: a copy with as many heads as the queries have; a single head is expanded without one."""
        B, n, S, h = given.x.shape
        if n == self.c.heads:
            return given
        if n == 1:
            return Heads(self.b.view(given.x, B, self.c.heads, S, h), expanded=True)
        return Heads(self.b.op(f"{name}/repeat", "repeat", [given.x], (B, self.c.heads, S, h), name=name), True)

    def _fused(self, q: Heads, k: Heads, v: Heads, parts: Parts, window: int | None) -> Tensor:
        b, c = self.b, self.c
        mask, kv = None, (k, v)
        # A window as long as the sequence cuts nothing off, and gets a mask all the same.
        if self.how.masked or (window is not None and window <= parts.S):
            mask = b.op(
                "mask/fp", "where", [], (parts.B, 1, parts.S, parts.S), dtype=b.policy.products, name="window mask"
            )
            if not self.how.broadcast:
                k, v = self._repeated("key", k), self._repeated("value", v)
        p = c.dropout if "weights" in self.how.dropouts else 0.0
        with b.within("sdpa"):
            z = scaled_dot_product_attention(
                b, q, k, v, mask=mask, dropout=p, grouped=not self.how.broadcast, flops=self._flops(parts)
            )
        if mask is not None:
            b.free(mask, *[t.x for t, given in ((k, kv[0]), (v, kv[1])) if t.x.storage is not given.x.storage])
        return z

    def _flops(self, parts: Parts) -> int:
        return 2 * parts.B * self.c.query_width * parts.S**2

    def _eager(self, q: Heads, k: Heads, v: Heads, parts: Parts, dtype: str) -> Tensor:
        b, c, how, (B, A, S, _) = self.b, self.c, self.how, q.x.shape
        pairs, flops, before = (B, A, S, S), self._flops(parts), (q, k, v)
        if how.softmax == "fp32 scores":
            q, k = (t.cast(b, f"{name}/fp32", "fp32") for name, t in (("query", q), ("key", k)))
        if not how.broadcast and not how.baddbmm:
            k, v = self._repeated("key", k), self._repeated("value", v)
        x, y = (self._factor(t, name) for t, name in ((q, "query"), (k, "key")))
        scores = b.matmul("scores", x, y, pairs, flops, component="attention scores")
        if not how.baddbmm:
            scaled = b.op("scale", "mul", [scores], pairs)
            b.free(scores)
            scores = scaled
        if c.attention_softcap is not None:
            scores = self._softcapped("softcap", scores, "capped scores")
        assert parts.mask is not None
        masked = b.add("mask", scores, parts.mask)
        b.free(scores)
        z = self._weighted(masked, v, q.x.dtype if how.softmax == "in fp32" else v.x.dtype, dtype, flops)
        b.free(*[copy for copy, given in ((x, q), (y, k)) if copy is not given.x])
        b.free(*[t.x for t, given in zip((q, k, v), before, strict=True) if t.x.storage is not given.x.storage])
        return z

    def _weighted(self, masked: Tensor, v: Heads, result: str, dtype: str, flops: int) -> Tensor:
        """The softmax, dropout and the sum of values."""
        b, how = self.b, self.how
        if how.softmax in ("as it is", "fp32 scores"):
            soft = b.softmax("softmax", masked, name="softmax output")
        else:
            if how.softmax == "as the input":
                result = dtype
            wide = b.cast("softmax/wide", masked, dtype if how.softmax == "as the input" else "fp32")
            soft = b.op("softmax", "softmax", [wide], masked.shape, keeps_output=True, name="softmax output")
            if wide is not masked:
                b.free(wide)
        b.free(masked)
        weights = b.cast("weights/cast", soft, result, name="copies of attention weights")
        if weights is not soft:
            b.free(soft)
        weights = b.dropout(
            "weights dropout", weights, self.c.dropout if "weights" in how.dropouts else 0.0,
            mask="weights' dropout mask", name="dropped weights",
        )  # fmt: skip
        x, y = self._factor(Heads(weights, True), "copies of attention weights"), self._factor(v, "value")
        z = b.matmul("values", x, y, (*masked.shape[:3], v.x.shape[-1]), flops, component="attention values")
        b.free(*[copy for copy, given in ((x, weights), (y, v.x)) if copy is not given], weights)
        return z

    def _factor(self, given: Heads, name: str) -> Tensor:
        """What a batched product keeps: the factor in the products' type, with batch and heads as one axis."""
        b, heads = self.b, self.c.heads
        lowered = given.cast(b, f"{name}/cast", b.policy.products, name=name) if b.policy.casts else given
        x = lowered.x
        if lowered.one_batch_of(heads):
            return x
        copied = b.copy(f"{name}/batched", x, (x.shape[0], heads, *x.shape[2:]), name=name)
        if x is not given.x:
            b.free(x)
        return copied

    def _merged(self, z: Tensor, shape: tuple[int, ...]) -> Tensor:
        b, (B, S) = self.b, shape[:2]
        rows, name = (B, S, self.c.query_width), "attention output's input"
        if self.c.heads == 1 or S == 1:
            z.storage.name = name
            return b.view(z, *rows)
        merged = b.copy("merge heads", z, rows, name=name)
        b.free(z)
        return merged

    def _softcapped(self, place: str, x: Tensor, name: str) -> Tensor:
        b = self.b
        divided = b.op(f"{place}/div", "div", [x], x.shape)
        tanh = b.op(f"{place}/tanh", "tanh", [divided], x.shape, keeps_output=True, name=name)
        capped = b.op(f"{place}/mul", "mul", [tanh], x.shape)
        b.free(x, divided, tanh)
        return capped

    # -- MLP ---------------------------------------------------------------------------------------------------------

    def activation(self, place: str, x: Tensor, name: str) -> Tensor:
        """The function between the matrices; x is let go."""
        b, kind = self.b, self.c.mlp
        if kind in ("relu", "reglu"):
            y = b.op(place, "relu", [x], x.shape, keeps_output=True, name=name)
        elif kind == "gelu_new" and not self.how.own_gelu:
            y = self._gelu_new(place, x, name)
        elif kind == "swiglu":
            y = b.op(place, "silu", [x], x.shape, keeps=[x], name=name)
        else:
            y = b.op(place, "gelu", [x], x.shape, keeps=[x], name=name)
        b.free(x)
        return y

    def _gelu_new(self, place: str, x: Tensor, name: str) -> Tensor:
        """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), operation by operation."""
        b, kept = self.b, x.storage.name
        base = x
        if b.policy.casts and "pow" in b.device.autocast_fp32:
            base = b.cast(f"{place}/fp32", x, "fp32", name=kept)
        cube = b.op(f"{place}/cube", "pow", [base], x.shape, keeps=[base])
        small = b.op(f"{place}/small", "mul", [cube], x.shape)
        total = b.add(f"{place}/sum", x, small)
        inner = b.op(f"{place}/inner", "mul", [total], x.shape)
        tanh = b.op(f"{place}/tanh", "tanh", [inner], x.shape, keeps_output=True, name=kept)
        one = b.op(f"{place}/1 + tanh", "add", [tanh], x.shape, passes=True, name=kept)
        half = b.op(f"{place}/half", "mul", [x], x.shape, name=kept)
        y = b.mul(f"{place}/product", half, one, name=name)
        if base is not x:
            b.free(base)
        b.free(cube, small, total, inner, tanh, one, half)
        return y

    def mlp(self, x: Tensor) -> Tensor:
        if self.c.experts:
            return self._mixture(x)
        b, c = self.b, self.c
        if c.mlp in GATED:
            gate = self.linear("gate", x, c.d_ff, "mlp gate", name="gate", cast="mlp inputs")
            active = self.activation("activation", gate, "silu")
            up = self.linear("up", x, c.d_ff, "mlp up", name="up", cast="mlp inputs")
            hidden = b.mul("product", active, up, name="mlp down's input")
            b.free(active, up)
        else:
            up = self.linear("up", x, c.d_ff, "mlp up", name="gelu input", cast="mlp inputs")
            hidden = self.activation("activation", up, "mlp down's input")
        out = self.linear("down", hidden, c.d_model, "mlp down")
        b.free(hidden)
        return self.dropped("mlp", "dropout", out, "mlp dropout mask")

    def _mixture(self, x: Tensor) -> Tensor:
        """Tokens sorted by expert, and one grouped product for all; it is no part of autocast, and runs in the weights' type."""
        b, c, (B, S, D) = self.b, self.c, x.shape
        N, k, F = B * S, c.experts_per_token, c.d_ff
        rows = N * k
        tokens = b.view(x, N, D)
        given = b.linear("router", tokens, c.experts, component="router", name="router scores", cast="mlp inputs")
        wide = b.cast("scores/fp32", given, "fp32")
        soft = b.op("softmax", "softmax", [wide], (N, c.experts), keeps_output=True, name="routing weights")
        chosen = Storage("indices", 8 * rows)
        top = b.op("topk", "topk", [soft], (N, k), keeps=[chosen], statistics=[chosen], watched=soft.bytes)
        total = b.op("sum", "sum", [top], (N, 1), name="routing weights")
        # The division is in place, so that it keeps a copy of what it divides.
        before = Storage("routing weights", 4 * rows)
        shares = b.op("normalize", "div", [top, total], (N, k), keeps=[total, before], statistics=[before])
        b.free(*([] if wide is given else [wide]), given, soft, top, total)
        order = Tensor((rows,), "int64", chosen, False)
        mine = b.index("tokens", tokens, order, (rows, D), name="mlp inputs")
        weight = b.index("weights", shares, order, (rows, 1), name="routing weights")
        b.free(shares)
        kind = b.policy.weights
        mine = self._as(mine, kind, "mlp inputs")
        both = self._grouped("gate and up", mine, 2 * F, ("mlp gate", "mlp up"), "gate and up")
        gate, up = b.chunk("halves", both)
        silu = b.op("silu", "silu", [gate], (rows, F), keeps=[gate], name="silu")
        hidden = b.mul("product", silu, up, name="mlp down's input")
        b.free(both, silu)
        out = self._grouped("down", hidden, D, ("mlp down",), "expert outputs")
        weighted = b.mul("weighted", out, weight)
        b.free(mine, hidden, out, weight)
        ordered = b.index("original order", weighted, order, (rows, D), name="expert outputs")
        summed = b.op("sum of experts", "sum", [ordered], (N, D))
        b.free(weighted, ordered)
        return b.view(self._as(summed, x.dtype, ""), *x.shape)

    def _as(self, x: Tensor, dtype: str, name: str) -> Tensor:
        y = self.b.cast("cast", x, dtype, name=name)
        if y is not x:
            self.b.free(x)
        return y

    def _grouped(self, place: str, x: Tensor, outputs: int, components: tuple[str, ...], name: str) -> Tensor:
        """One product for all experts: each row with the matrix of its expert."""
        b, (rows, inputs) = self.b, x.shape
        E = self.c.experts
        weights = [b.parameter(component, E, outputs // len(components), inputs) for component in components]
        flops = 2 * rows * inputs * outputs
        return b.op(
            place, "matmul", [x, weights[0]], (rows, outputs), keeps=[x], name=name, flops=((components[0], flops),),
            gradient_flops=flops,
        )  # fmt: skip

    # -- the block ---------------------------------------------------------------------------------------------------

    def _branch(self, name: str, x: Tensor, inputs: str, run: object, *args: object) -> Tensor:
        b, placement = self.b, self.c.norm_placement
        normed = x if placement == "post" else self.norm(f"{name} norm", x, name=inputs)
        with b.within(name, part=name):
            z: Tensor = run(normed, *args)  # type: ignore[operator]
        if normed is not x:
            b.free(normed)
        if placement in ("post", "sandwich"):
            behind = self.norm(f"{name} post norm", z, name=f"{name} branch")
            b.free(z)
            z = behind
        b.part = name
        return z

    def block(self, x: Tensor, parts: Parts, window: int | None) -> Tensor:
        """Norms, attention and MLP, one behind the other or side by side."""
        b, c = self.b, self.c
        if c.norms_per_block == 1:
            normed = self.norm("attention norm", x, name="query, key, value inputs")
            with b.within("attention", part="attention"):
                z = self.attention(normed, parts, window)
            with b.within("mlp", part="mlp"):
                m = self.mlp(normed)
            first = b.add("attention sum", z, m)
            y = b.add("mlp sum", first, x)
            b.free(z, m, first, normed)
            return y
        z = self._branch("attention", x, "query, key, value inputs", self.attention, parts, window)
        y = b.add("attention sum", x, z, name="mlp norm")
        b.free(z)
        m = self._branch("mlp", x if c.parallel else y, "mlp inputs", self.mlp)
        out = b.add("mlp sum", y, m, name="attention norm")
        b.free(y, m)
        return out


_MATRICES = ("query", "key", "value", "output", "gate", "up", "down")


def _wider(x: Tensor, y: Tensor) -> str:
    return "fp32" if "fp32" in (x.dtype, y.dtype) else x.dtype


def decoder(
    config: TransformerConfig,
    how: Writing,
    *,
    batch: int,
    sequence: int,
    policy: PrecisionPolicy,
    attention: str,
    device: Device,
    checkpointing: bool,
    train: bool,
) -> Program:
    """What `predict.program` returns for flavour="transformers": one forward pass without a cache, and its loss."""
    c, B, S = config, batch, sequence
    b = Builder(policy, device=device, train=train)
    modules = Modules(b, c, how, attention)
    tokens = b.data("tokens", (B, S))
    table = b.parameter("token embedding", c.vocab, c.d_model)
    x = b.embedding("embedding", table, tokens, (B, S, c.d_model), name="attention norm")
    if c.positions == "learned":
        positions = b.parameter("position embedding", c.context + c.extra_positions, c.d_model)
        rows = b.embedding("positions/embedding", positions, b.data("positions", (S,)), (1, S, c.d_model))
        summed = b.add("positions", x, rows, name="attention norm")
        b.free(x, rows)
        x = summed
    if c.embedding_norm:
        normed = modules.norm("embedding norm", x, name="attention norm", component="embedding norm")
        b.free(x)
        x = normed
    x = modules.dropped("embedding", "embedding dropout", x, "embedding dropout mask")
    tables = mask = None
    if c.positions == "rope":
        shape, kind = (1, 1, S, modules.rotary), "fp32" if how.rope == "returned" else policy.weights
        tables = tuple(b.op(name, "table", [], shape, dtype=kind, name="rotary tables") for name in ("cosine", "sine"))
    if modules.method == "eager":
        mask = b.op("mask", "mask", [], (B, 1, S, S), dtype=policy.weights, name="mask")
    for tensor in (*(tables or ()), *([] if mask is None else [mask])):
        tensor.storage.shared = True
    parts = Parts(B, S, tables, mask)  # type: ignore[arg-type]
    b.mark("embedding")
    b.section = "block"
    if checkpointing and how.keeps_mask and mask is not None and train:
        # An operation of no work stands for what checkpointing keeps beside a block's input.
        b.items.append(Op("checkpointed mask", "checkpoint", (), (), (), (mask.storage,), (), "attention"))
    for count, window in _layers(c):
        with b.repeat("block", count, checkpoint=x if checkpointing else None):
            y = modules.block(x, parts, window)
            b.mark("block forward")
            b.free(x)
        x = y
    b.section = "end"
    x.storage.name = "final norm"
    normed = modules.norm("final norm", x, name="head's input", component="final norm")
    b.free(x)
    if mask is not None and not checkpointing:  # a checkpointed block holds on to it
        b.free(mask)
    b.part = "head"
    head = table if c.tied_head else b.parameter("head", c.vocab, c.d_model)
    logits = b.linear("head", normed, c.vocab, component="head", weight=head, bias=c.head_bias, copies="copy of head")
    b.free(normed)
    if c.logit_softcap is not None:
        logits = modules._softcapped("softcap", logits, "capped logits")
    output = logits
    if train:
        b.part = "loss"
        wide = b.cast("logits/fp32", logits, "fp32")
        if wide is not logits:
            b.free(logits)
        logs = b.op("log softmax", "log_softmax", [wide], (B * S, c.vocab), keeps_output=True, name="cross-entropy")
        weight = Storage("cross-entropy", 4)
        output = b.op("loss", "nll_loss", [logs], (), keeps=[logs, weight], statistics=[weight], name="loss")
        b.free(wide, logs)
    b.end_of_cache()
    return b.program(output)


def _layers(c: TransformerConfig) -> list[tuple[int, int | None]]:
    """(how many in a row, their window)."""
    if c.window is None or c.window_layers is None:
        return [(c.layers, c.window)]
    rows: list[tuple[int, int | None]] = []
    for windowed in c.window_layers:
        window = c.window if windowed else None
        if rows and rows[-1][1] == window:
            rows[-1] = rows[-1][0] + 1, window
        else:
            rows.append((1, window))
    return rows
