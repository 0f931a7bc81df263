"""How the fields of a config.json are read: what most families say alike."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cs336kit.predict._common.checks import at_most, positive_int, shown
from cs336kit.predict._settle import LARGEST, MATRICES

ALL_ATTENTION = MATRICES[:4]
#: Hugging Face's name of an activation → the MLP without a gate, and with one ("" for none)
_ACTIVATIONS = {
    "gelu": ("gelu", "geglu"),
    "gelu_python": ("gelu", "geglu"),
    "gelu_new": ("gelu_new", "geglu_tanh"),
    "gelu_fast": ("gelu_new", "geglu_tanh"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
    "relu": ("relu", "reglu"),
    "relu2": ("relu2", "relu2glu"),
    "silu": ("silu", "swiglu"),
    "swish": ("silu", "swiglu"),
    "xielu": ("xielu", ""),
}


class Fields(Protocol):
    """The fields of a config.json, those left out with the default of transformers; remembers what was read."""

    notes: list[str]

    def __call__(self, name: str) -> Any:
        """The value of a field, which the family understands; None where this model_type has no such field."""

    def __contains__(self, name: str) -> bool:
        """Whether this model_type has such a field, given or not."""

    def refuse(self, name: str, allowed: str) -> ValueError:
        """The error for a value that no TransformerConfig can say."""


Family = Callable[[Fields], dict[str, Any]]


def activation(f: Fields, gated: bool, *names: str) -> str:
    """The MLP that the activation means; `names` are the fields to look at, else the usual ones."""
    for name in names or ("hidden_activation", "hidden_act", "activation_function"):
        if (value := f(name)) is not None:
            if mlp := _ACTIVATIONS.get(str(value), ("", ""))[gated]:
                return mlp
            raise f.refuse(name, f"one of {', '.join(_ACTIVATIONS)}")
    raise f.refuse("hidden_act", "an activation")


def sizes(f: Fields, **named: str) -> dict[str, Any]:
    """The sizes under their usual names; `named` gives the others."""
    usual = {
        "layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "d_ff": "intermediate_size",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
        "tied_head": "tie_word_embeddings",
    }
    found = {ours: f(theirs) for ours, theirs in {**usual, **named}.items() if theirs in f}
    if "tied_head" in found:
        found["tied_head"] = bool(found["tied_head"])
    found = {name: value for name, value in found.items() if value is not None}
    # Here, where the names of the file are known, and before patterns of layers are written out.
    for ours, theirs in {**usual, **named}.items():
        if ours in found and ours != "tied_head":
            at_most(theirs, positive_int(theirs, found[ours]), LARGEST.get(ours, sys.maxsize))
    return found


def only(f: Fields, **usual: Any) -> None:
    """Refuse other values of fields that published files have, and transformers does not read."""
    for name, value in usual.items():
        if f(name) not in (None, value):
            raise f.refuse(name, repr(value))


def by_layer(f: Fields, name: str, layers: int) -> Any:
    """A list with one entry for each layer, None where none is given."""
    entries = f(name)
    if entries is not None and len(entries) != layers:
        raise f.refuse(name, f"one entry for each of the {layers} layers")
    return entries


def biases(f: Fields, *, attention: Sequence[str] = ALL_ATTENTION, mlp: Sequence[str] = ()) -> tuple[str, ...]:
    """The matrices with a bias, as the usual flags say."""
    return (*(attention if f("attention_bias") else ()), *(mlp if f("mlp_bias") else ()))


def with_rotary(f: Fields, config: dict[str, Any], default: float = 1.0) -> dict[str, Any]:
    """The configuration with the share of each head that is turned: a field of its own, or one of the rotary parameters."""
    share = f("partial_rotary_factor")
    if share is None:
        share = f("rotary_pct")
    parameters = f("rope_parameters")
    if share is None and isinstance(parameters, dict):
        share = parameters.get("partial_rotary_factor")
    share = default if share is None else share
    head_dim = config.get("head_dim") or config["d_model"] // config["heads"]
    return config if share == 1 else config | {"rotary_dim": int(head_dim * share)}


def with_windows(
    f: Fields, config: dict[str, Any], *, window: str = "sliding_window", pattern: int | None = None
) -> dict[str, Any]:
    """The configuration with the layers' kinds of attention: a list of them, or one that follows from a period."""
    layers, chunked = config["layers"], {}
    size, kinds = f(window), by_layer(f, "layer_types", layers)
    if kinds is not None:
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention", "chunked_attention"):
                raise f.refuse("layer_types", "full_attention, sliding_attention or chunked_attention in each layer")
        held = [kind != "full_attention" for kind in kinds]
        if "chunked_attention" in kinds:
            chunked = {"window_kind": "chunked"}
    elif pattern:
        held = [(layer + 1) % pattern != 0 for layer in range(layers)]
    else:
        held = [True] * layers
    return config | chunked | {"window": size, "window_layers": tuple(held)} if size and any(held) else config


def with_switched_windows(f: Fields, config: dict[str, Any], held: Sequence[bool]) -> dict[str, Any]:
    """The configuration with a window only where a switch says so: in the layers of a list, or else in those `held`."""
    size, kinds, on = f("sliding_window"), by_layer(f, "layer_types", config["layers"]), f("use_sliding_window")
    if kinds is None:
        return config | {"window": size, "window_layers": tuple(held)} if on else config
    if not on and any(kind != "full_attention" for kind in kinds):
        raise f.refuse("layer_types", "full_attention in each layer, or use_sliding_window=True")
    return with_windows(f, config)


def rope_layers(f: Fields, layers: int) -> tuple[bool, ...]:
    """The layers with rotary positions: a list of them, which may go on, or one that follows from a period."""
    period = f("no_rope_layer_interval")
    turned = f("no_rope_layers") or [(layer + 1) % period != 0 for layer in range(layers)]
    if len(turned) < layers:
        raise f.refuse("no_rope_layers", f"one entry for each of the {layers} layers")
    return tuple(bool(turns) for turns in turned[:layers])


def note_further_tokens(f: Fields, *names: str) -> None:
    """Note the layers that predict more than the next token, which are left out; `names` are the fields to look at."""
    for name in names or ("num_nextn_predict_layers", "num_mtp_layers"):
        if count := f(name):
            f.notes.append(f"{shown(count)} layer(s) that predict further tokens ({name}) are left out")
            break
