"""Which fields of a TransformerConfig go together, and the values of those that are left out."""

import sys
from collections.abc import Iterable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

from cs336kit.predict.checks import checked, known, non_negative_int, one_of, positive_int, several, shown
from cs336kit.predict.packed import packing_called

if TYPE_CHECKING:
    from cs336kit.predict.transformer import TransformerConfig

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
        "geglu_new": "the same, written out in elementary operations",
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

#: MLPs with a gate matrix besides up and down.
GATED = frozenset({"swiglu", "swiglu_clipped", "geglu", "geglu_tanh", "geglu_new", "reglu", "relu2glu"})
#: The matrices of a block that `bias` may name.
MATRICES = ("query", "key", "value", "output", "gate", "up", "down")
#: What the words for biases mean.
BIASED = {"all": frozenset(MATRICES), "none": frozenset[str](), "qkv": frozenset(MATRICES[:3])}

#: Far beyond any model: larger sizes are typing errors, and would only exhaust the memory.
LARGEST = {"layers": 10**5, "d_model": 10**7, "heads": 10**6, "vocab": 10**9, "context": 10**10, "experts": 10**5}

#: Fields without a default.
REQUIRED = ("layers", "d_model", "heads", "vocab", "context")
#: What may differ from layer to layer: whether it has rotary positions, a window, experts.
PATTERNS = ("rope_layers", "window_layers", "sparse_layers")


def settle(c: "TransformerConfig") -> None:
    """Set the fields that are left out, and refuse impossible ones with a ValueError."""
    most = dict.fromkeys((f.name for f in fields(c) if f.type in (int, int | None)), sys.maxsize) | LARGEST
    values = checked(
        c, limits=most, choices={name: names for name, names in CHOICES.items() if name != "bias"},
        experts=None if c.experts is None else non_negative_int, experts_per_token=non_negative_int,
        dropout=None, notes=partial(several, kind="sentences"), stored_apart=_apart,
    )  # fmt: skip
    for name, value in values.items():
        _set(c, name, value)
    _settle_heads(c)
    _settle_latent(c)
    _settle_mlp(c)
    _settle_bias(c)
    _settle_norms(c)
    if isinstance(c.dropout, bool) or not isinstance(c.dropout, (int, float)) or not 0 <= c.dropout < 1:
        raise ValueError(f"dropout is {shown(c.dropout)}: give a probability from 0 up to, not including, 1")
    _settle_layers(c)
    # None if it is the default anyway: equal configurations stay equal, and a changed d_model changes its embedding.
    for name, usual in (("embedding_dim", c.d_model), ("value_dim", c.head_dim), ("dense_d_ff", c.d_ff)):
        if getattr(c, name) == usual:
            _set(c, name, None)
    if odd := [note for note in c.notes if not (isinstance(note, str) and note.isprintable())]:
        raise ValueError(f"notes must be sentences of one line each, got {shown(odd[0])}.")


def _apart(name: str, value: object) -> tuple[tuple[str, str, float], ...]:
    """(component, type of weights, share), in rows: lists of a JSON file as tuples; ValueError for what is none."""
    rows = [tuple(each) if isinstance(each, (list, tuple)) else () for each in several(name, value)]
    for row in rows:
        texts = len(row) == 3 and all(isinstance(text, str) for text in row[:2])
        stored = texts and (row[1] in ("bf16", "fp16", "fp32") or packing_called(row[1]))
        if not stored or isinstance(row[2], bool) or not isinstance(row[2], (int, float)) or not 0 < row[2] <= 1:
            raise ValueError(
                f"{name} must be rows of a component, a type of weights and the share of its matrices that has it, above 0 and "
                f"at most 1, such as ('query', 'bf16', 1.0), got {shown(value)}"
            )
    for component in {row[0] for row in rows}:
        if (total := sum(row[2] for row in rows if row[0] == component)) > 1 + 1e-9:
            raise ValueError(f"{name} gives {shown(component)} shares of {total:g} together, and they are at most 1")
    return tuple(rows)


def _set(c: "TransformerConfig", name: str, value: object) -> None:
    object.__setattr__(c, name, value)


def _settle_heads(c: "TransformerConfig") -> None:
    if c.kv_heads is None:
        _set(c, "kv_heads", c.heads)
    if c.heads % c.kv_heads:
        raise ValueError(
            f"kv_heads={c.kv_heads} does not divide heads={c.heads}: every key/value head must serve the "
            "same number of query heads"
        )
    if c.head_dim is None:
        if c.d_model % c.heads:
            raise ValueError(
                f"heads={c.heads} does not divide d_model={c.d_model}: change one of them, or give head_dim"
            )
        _set(c, "head_dim", c.d_model // c.heads)
    if c.positions == "rope" and c.head_dim % 2 and c.rotary_dim is None:
        raise ValueError(f"head_dim={c.head_dim} is odd: positions='rope' rotates pairs, so make it even")


def _settle_latent(c: "TransformerConfig") -> None:
    if c.rotary_dim is None:
        if c.kv_latent:
            raise ValueError("rotary_dim is missing: with kv_latent, say how wide the rotary part of a key is")
    elif c.rotary_dim > c.head_dim:
        raise ValueError(f"rotary_dim={c.rotary_dim} is more than head_dim={c.head_dim}: give at most that")
    elif c.positions == "rope" and c.rotary_dim % 2:
        raise ValueError(f"rotary_dim={c.rotary_dim} is odd: positions='rope' rotates pairs, so make it even")
    elif c.rotary_dim == c.head_dim and not c.kv_latent:
        _set(c, "rotary_dim", None)
    if c.query_latent and not c.kv_latent:
        raise ValueError("query_latent without kv_latent: give kv_latent too, or neither")
    if c.kv_latent and c.kv_heads != c.heads:
        raise ValueError(
            f"kv_heads={c.kv_heads} with kv_latent: every query head makes its own keys; leave kv_heads out"
        )


def _settle_mlp(c: "TransformerConfig") -> None:
    if c.d_ff is None:
        if c.mlp in GATED:
            raise ValueError("d_ff is missing: a SwiGLU MLP has no usual width (Llama-2 7B: 11008 at d_model 4096)")
        _set(c, "d_ff", 4 * c.d_model)
    if c.experts in (None, 0, 1):
        if c.experts_per_token not in (None, 0, 1):
            raise ValueError(
                f"experts_per_token={c.experts_per_token} with experts={c.experts}: a dense model has no "
                "experts to choose from; give experts too"
            )
        _set(c, "experts", 0)
        _set(c, "experts_per_token", 0)
        return
    if c.experts_per_token is None:
        raise ValueError(f"experts_per_token is missing: how many of the {c.experts} experts does a token visit?")
    if positive_int("experts_per_token", c.experts_per_token) > c.experts:
        raise ValueError(f"experts_per_token={c.experts_per_token} is more than experts={c.experts}")


def _settle_bias(c: "TransformerConfig") -> None:
    bias = c.bias
    if isinstance(bias, str) or not isinstance(bias, Iterable):
        known("bias", bias, CHOICES["bias"])
        return
    named = frozenset(one_of("matrix with a bias", name, MATRICES) for name in bias)
    exist = frozenset(MATRICES if c.mlp in GATED else (name for name in MATRICES if name != "gate"))
    if named - exist:
        raise ValueError(f"bias names 'gate', and mlp={c.mlp!r} has no gate: leave it out")
    # One name for each pattern, so that equal configurations are equal.
    for word, pattern in BIASED.items():
        if named == pattern & exist:
            _set(c, "bias", word)
            return
    _set(c, "bias", tuple(name for name in MATRICES if name in named))


def _settle_norms(c: "TransformerConfig") -> None:
    if c.norm_bias is None:
        _set(c, "norm_bias", c.norm == "layernorm" and bool(c.norm_scale))
    if c.norm == "rmsnorm" and c.norm_bias:
        raise ValueError("norm_bias=True with norm='rmsnorm': RMSNorm has a scale only; use norm='layernorm'")
    if c.norm_bias and not c.norm_scale:
        raise ValueError("norm_bias=True with norm_scale=False: a norm without a scale has no shift; drop one of them")
    if c.norms_per_block not in (1, 2):
        raise ValueError(f"norms_per_block is {c.norms_per_block}: give 2, or 1 for a parallel block")
    if c.parallel and c.norms_per_block == 1:
        _set(c, "parallel", False)
    if c.side_by_side and c.norm_placement != "pre":
        raise ValueError(
            f"norm_placement={c.norm_placement!r} with parallel branches: they have their norms in front; "
            "give norm_placement='pre'"
        )
    if c.qk_norm in ("none", "plain") and c.qk_norm_bias:
        raise ValueError(
            f"qk_norm_bias=True with qk_norm={c.qk_norm!r}: there is no scale, and so no shift; leave it out"
        )


def _settle_layers(c: "TransformerConfig") -> None:
    apply = c.positions == "rope", c.window is not None, bool(c.experts)
    for name, applies in zip(PATTERNS, apply, strict=True):
        pattern = getattr(c, name)
        if pattern is None:
            continue
        given = several(name, pattern, "True or False for each layer")
        if not given or any(type(value) is not bool for value in given):
            raise ValueError(
                f"{name} is {shown(pattern)}: give True or False for each layer, or a pattern that repeats"
            )
        settled = tuple(given[layer % len(given)] for layer in range(c.layers))
        if not any(settled) and name == "sparse_layers":
            raise ValueError(f"sparse_layers has no True: with experts={c.experts}, at least one layer has them")
        if name == "window_layers" and not any(settled):
            _set(c, "window", None)
            applies = False
        _set(c, name, settled if applies and not all(settled) else None)
    if c.sparse_layers is None:
        _set(c, "dense_d_ff", None)
    if not c.experts and (c.shared_d_ff or c.router_bias):
        raise ValueError("shared_d_ff and router_bias belong to a mixture: give experts, or leave them out")
    if c.shared_gate and not c.shared_d_ff:
        raise ValueError("shared_gate=True without shared_d_ff: there is no shared expert to weigh")
