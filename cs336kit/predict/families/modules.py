"""The modules that a file names, and the components of a model that they are."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING

from cs336kit.predict.checks import shown

if TYPE_CHECKING:
    from cs336kit.predict.transformer import TransformerConfig

#: Matrices under the names that model families have for them, inside of a layer.
_ATTENTION = ("self_attn", "attention", "attn", "self_attention")
_QKV = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack")
_IN_ATTENTION = {
    "query": ("q_proj", "q_b_proj", *_QKV), "key": ("k_proj", *_QKV), "value": ("v_proj", *_QKV),
    "query latent": ("q_a_proj",), "latent": ("kv_a_proj_with_mqa",), "key and value": ("kv_b_proj",),
    "attention output": ("o_proj", "dense", "out_proj", "c_proj"),
}  # fmt: skip
_IN_MLP = {
    "gate": ("gate_proj", "gate_up_proj", "w1"),
    "up": ("up_proj", "gate_up_proj", "w3", "c_fc", "fc1", "dense_h_to_4h"),
    "down": ("down_proj", "w2", "c_proj", "fc2", "dense_4h_to_h"),
}
_PLACES = {
    "mlp": ("mlp.experts.0", "mlp.experts", "block_sparse_moe.experts.0", "feed_forward.experts", "feed_forward.experts.0"),
    "dense": ("mlp", "feed_forward", "ffn"),
    "shared": ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert", "mlp.shared_mlp", "shared_mlp"),
}  # fmt: skip
#: What stands before the layers' numbers in a name.
_ROOTS = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.", "transformer.h.")
_IN_LAYER = re.compile(
    r"(?:(?:model|language_model|transformer|decoder|gpt_neox|text_model)\.)*(?:layers|h|blocks)\.(\d+|\*)(?:\.(.+))?"
)
#: Modules that no packing here is about, whether a file lists them or not.
_NEVER_PACKED = re.compile(
    r"lm_head|embed|router|(^|[.*])gate\.?\*?$|shared_expert_gate|norm|bias|visi|visual|mm_proj|projector|audio|mtp|kv_cache|rotary"
)


class Modules:
    """Modules that a file names: by name, with *, or by a regular expression; which share of a module's copies they are."""

    def __init__(self, patterns: Sequence[str]):
        self.patterns, self.used = patterns, set[str]()
        #: number of a layer (-1 for all) → path in it → pattern → the expert, -1 for all
        self.exact: dict[int, dict[str, dict[str, int]]] = {}
        #: the same for paths with *
        self.in_layer: dict[int, list[tuple[str, re.Pattern[str]]]] = {}
        #: parts of a path, such as self_attn
        self.parts: dict[str, str] = {}
        #: matched with whole names; whether it depends on the layer
        self.free: list[tuple[str, re.Pattern[str], bool]] = []
        for pattern in patterns:
            self._add(pattern)

    def _add(self, pattern: str) -> None:
        name = pattern.removesuffix(".weight")
        if name.startswith("re:"):
            try:
                self.free.append((pattern, re.compile(name[3:]), bool(re.search(r"\d", name))))
            except re.error as error:
                raise ValueError(
                    f"{shown(pattern)} of quantization_config is no regular expression ({error}): mend it, or take it out"
                ) from None
            return
        inside = _IN_LAYER.fullmatch(name)
        layer, path = (-1 if inside[1] == "*" else int(inside[1]), inside[2] or "") if inside else (-1, name)
        if "*" in path:
            regex = re.compile(
                translate(path if inside else name).replace(r"\Z", "").replace(r"\z", "") + r"(?:\..*)?\Z"
            )
            if inside:
                self.in_layer.setdefault(layer, []).append((pattern, regex))
            else:
                self.free.append((pattern, regex, bool(re.search(r"\d", name))))
        elif inside:
            expert = re.search(r"(?<=experts\.)\d+", path)
            path = path if expert is None else path[: expert.start()] + "0" + path[expert.end() :]
            self.exact.setdefault(layer, {}).setdefault(path, {})[pattern] = -1 if expert is None else int(expert[0])
        else:
            self.parts[name] = pattern

    def share(self, layer: int, path: str, experts: int) -> float:
        """The share of this module in this layer that is named; of one that each expert has, the named experts' share."""
        named: set[int] = set()
        for number in (layer, -1):
            for start in _starts(path) if number in self.exact else ():
                for pattern, expert in self.exact[number].get(start, {}).items():
                    self.used.add(pattern)
                    named.add(expert)
            for pattern, regex in self.in_layer.get(number, ()):
                if regex.match(path):
                    self.used.add(pattern)
                    named.add(-1)
        if self.parts:
            for run in _runs(path):
                if run in self.parts:
                    self.used.add(self.parts[run])
                    named.add(-1)
        for pattern, regex, by_layer in self.free:
            if _matches(regex, layer if by_layer else 0, path):
                self.used.add(pattern)
                named.add(-1)
        return 1.0 if -1 in named else len(named) / max(experts, 1)

    def unused(self, layers: int) -> list[str]:
        """Those that mean no module which is counted here, and none that is known not to be."""
        rest = [pattern for pattern in self.patterns if pattern not in self.used and not _NEVER_PACKED.search(pattern)]
        further = [_IN_LAYER.fullmatch(pattern.removesuffix("*")) for pattern in rest]
        # Behind the last layer are those that predict further tokens.
        return [
            pattern for pattern, found in zip(rest, further, strict=True)
            if not (found and found[1] != "*" and int(found[1]) >= layers)
        ]  # fmt: skip


@lru_cache(maxsize=4096)
def _starts(path: str) -> tuple[str, ...]:
    parts = path.split(".")
    return tuple(".".join(parts[:n]) for n in range(len(parts) + 1))


@lru_cache(maxsize=4096)
def _runs(path: str) -> tuple[str, ...]:
    parts = path.split(".")
    return tuple(".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1))


@lru_cache(maxsize=2**16)
def _matches(regex: re.Pattern[str], layer: int, path: str) -> bool:
    return any(regex.match(f"{root}{layer}.{path}") for root in _ROOTS)


def components(c: "TransformerConfig") -> Iterator[tuple[str, tuple[str, ...], list[int], int, int]]:
    """Each component that may be quantized: its paths in a layer, the layers that have it, their experts, and its width."""
    every = range(c.layers)
    if c.kv_latent:
        attention = [
            "query",
            *(["query latent"] if c.query_latent else []),
            "latent",
            "key and value",
            "attention output",
        ]
    else:
        attention = ["query", "key", "value", "attention output"]
    for name in attention:
        width = c.kv_heads * c.head_dim if name in ("key", "value") else c.query_width
        yield name, tuple(f"{a}.{leaf}" for a in _ATTENTION for leaf in _IN_ATTENTION[name]), list(every), 1, width
    sparse = [layer for layer in every if c.is_sparse(layer)]
    dense = [layer for layer in every if not c.is_sparse(layer)]
    for kind, where, layers, width in (
        ("dense" if c.experts else "mlp", "dense", dense, c.dense_width), ("mlp", "mlp", sparse, c.experts * c.d_ff),
        ("shared", "shared", sparse if c.shared_d_ff else [], c.shared_d_ff),
    ):  # fmt: skip
        for name, leaves in _IN_MLP.items():
            if layers and (name != "gate" or c.gated):
                paths = tuple(f"{place}.{leaf}" for place in _PLACES[where] for leaf in leaves)
                yield f"{kind} {name}", paths, layers, c.experts if where == "mlp" else 1, width
