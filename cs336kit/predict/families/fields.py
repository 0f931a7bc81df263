"""The fields of a config.json, and how to read those that most families share."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from cs336kit.predict.checks import at_most, positive_int, shown
from cs336kit.predict.data import data
from cs336kit.predict.settle import LARGEST, MATRICES

#: How text is sampled: part of every configuration in transformers 4, and of none in 5.
SAMPLING = (
    r"^((max|min)_length|num_beams|num_beam_groups|num_return_sequences|do_sample|early_stopping|temperature|top_[kp]|typical_p"
    r"|(diversity|repetition|length)_penalty|(encoder_)?no_repeat_ngram_size)$"
)
#: Fields that change neither parameters, nor FLOPs, nor the cache: names, numbers inside element-wise functions,
#: how a run starts, how results are used, how experts are chosen.
IRRELEVANT = re.compile(
    r"_token_ids?$|^_|^(model_type|architectures|auto_map|transformers_version|dtype|torch_dtype|name_or_path|language"
    r"|tokenizer_class|license|use_cache|cache_implementation|gradient_checkpointing|attn_implementation|init_device|verbose"
    r"|id2label|label2id|problem_type|return_dict|return_dict_in_generate|chunk_size_feed_forward|is_decoder"
    r"|is_encoder_decoder|task_specific_params|num_labels|classifier_dropout|pretraining_tp|slow_but_exact|torchscript"
    r"|tie_encoder_decoder|unk_index|attention_softmax_in_fp32|scale_attention_softmax_in_fp32|scale_attn_weights"
    r"|scale_attn_by_inverse_layer_idx|reorder_and_upcast_attn|softmax_scale|n_ctx|seq_length|masked_softmax_fusion"
    r"|skip_bias_add|skip_bias_add_qkv|offset_alibi|original_max_position_embeddings"
    r"|embedding_fraction|norm_type|learned_pos_emb|prefix|logit_scale)$"
    r"|^(summary|output|router_(aux|z)|(embedding_)?initializer|init|rope|rotary|moe_norm)_|(eps|epsilon)$|jitter|^aux_loss|loss_coef$"
    r"|^(rotary_emb_base|norm_topk_prob|routed_scaling_factor|n_group|topk_group|topk_method|scoring_func|seq_aux|ep_size"
    r"|aux_loss_alpha|clip_qkv|attn_temperature_tuning|attn_scale|floor_scale|swiglu_alpha|swiglu_limit|layerdrop"
    r"|moe_group|moe_aux_loss_coef|use_aux_loss|router_topk_policy|experts_implementation|unsloth_\w+|for_llm_compressor)$|"
    + SAMPLING
)
#: The most fields that an error names if they are not understood.
_NAMED = 8
#: A choice of each run, which registry and estimates leave at 0.
_DROPOUT = re.compile(r"dropout|_pdrop$")

#: Published as a fraction or as text, too, though transformers' default is a whole number.
_OF_OTHER_TYPES = ("query_pre_attn_scalar", "sliding_window_pattern")

ALL_ATTENTION = MATRICES[:4]
#: Hugging Face's name of an activation → the MLP without a gate, and with one ("" for none)
_ACTIVATIONS = {
    "gelu": ("gelu", "geglu"),
    "gelu_python": ("gelu", "geglu"),
    "gelu_new": ("gelu_new", "geglu_new"),
    "gelu_fast": ("gelu_new", "geglu_new"),
    "gelu_pytorch_tanh": ("gelu_tanh", "geglu_tanh"),
    "relu": ("relu", "reglu"),
    "relu2": ("relu2", "relu2glu"),
    "silu": ("silu", "swiglu"),
    "swish": ("silu", "swiglu"),
    "xielu": ("xielu", ""),
}


class NotRead(ValueError):
    """A file that may be right, and that no family here reads: of an unknown one, or with the `fields` that it does not know."""

    def __init__(self, sentence: str, fields: Sequence[str] = ()):
        super().__init__(sentence)
        self.fields = tuple(fields)


class Fields:
    """The fields of a config.json, with the defaults of transformers for missing ones; it records which fields were read."""

    def __init__(self, values: Mapping[str, Any], model_type: str):
        table = field_table().get(model_type)
        if table is None:
            raise ValueError(f"hf_fields.json has no {model_type}, a new family: run python -m benchmarks.hf_fields")
        self.aliases: dict[str, str] = table.get("aliases", {})
        self.given = {self.aliases.get(name, name): value for name, value in values.items()}
        self.defaults: dict[str, Any] = table["fields"]
        self.model_type = model_type
        self.read: set[str] = set()
        self.notes: list[str] = []
        #: sizes that the file leaves out, with the defaults that they have
        self.left_out: list[str] = []

    def __call__(self, name: str) -> Any:
        """The value of a field that the family understands; None if this model_type has no such field.

        Raises ValueError for what is no whole number, or not true or false, where transformers' default is one.
        """
        name = self.aliases.get(name, name)
        self.read.add(name)
        default = self.defaults.get(name)
        value = self.given.get(name, default)
        if isinstance(default, bool) and value not in (None, True, False):  # "false" would be true
            raise self.refuse(name, "true or false")
        whole = type(default) is int and name not in _OF_OTHER_TYPES
        if whole and isinstance(value, (bool, float, str, dict)):
            raise self.refuse(name, "a whole number")
        return value

    def __contains__(self, name: str) -> bool:
        """Whether this model_type has such a field, given or not."""
        name = self.aliases.get(name, name)
        return name in self.given or name in self.defaults

    def refuse(self, name: str, allowed: str) -> ValueError:
        """The error for a value that no TransformerConfig can express."""
        outer, _, inner = name.partition(".")
        value: Any = self.given.get(outer, self.defaults.get(outer))
        value = value[inner] if inner else value
        return ValueError(f"{name}={shown(value)} of this {self.model_type} cannot be counted: give {allowed}")

    def check_rest(self) -> None:
        """Refuse fields that were given and not read, and that could matter."""
        if self.given.get("is_encoder_decoder"):  # the decoder alone would be counted
            raise self.refuse("is_encoder_decoder", "False: only decoders are counted")
        strange, names = [], []
        for name, value in self.given.items():
            if name in self.read or IRRELEVANT.search(name):
                continue
            if _DROPOUT.search(name):
                if value:
                    self.notes.append(f"{name}={shown(value)} is left out: dropout is a choice of the run")
            elif name == "quantization_config":
                continue  # see storage.py
            elif value not in (None, False, [], {}, "") and value != self.defaults.get(name):
                strange.append(f"{name}={shown(value)}")
                names.append(name)
        if strange:
            if len(strange) > _NAMED:
                strange = [*strange[: _NAMED - 1], f"{len(strange) - _NAMED + 1:,} more"]
            several = len(strange) > 1
            listed = f"{', '.join(strange[:-1])} and {strange[-1]}" if several else strange[0]
            are, them, they_do = ("are", "them", "they do") if several else ("is", "it", "it does")
            raise NotRead(
                f"{listed} of this {self.model_type} {are} not understood and could change the answer: take {them} out of "
                f"the configuration if {they_do} not",
                names,
            )


@cache
def field_table() -> dict[str, Any]:
    """model_type → its fields in transformers with their defaults, and their other names."""
    return data("hf_fields.json")


Family = Callable[[Fields], dict[str, Any]]


def activation(f: Fields, gated: bool, *names: str) -> str:
    """The MLP that the activation means; `names` are the fields to look at, by default the usual ones."""
    values = {name: f(name) for name in names or ("hidden_activation", "hidden_act", "activation_function")}
    for name, value in values.items():  # the first counts; Gemma's files have two
        if value is not None:
            if mlp := _ACTIVATIONS.get(str(value), ("", ""))[gated]:
                if value in ("gelu_fast", "gelu_python"):
                    f.notes.append(
                        f"{name}={value} is counted as {mlp}: transformers writes it out in its own way, which keeps more"
                    )
                return mlp
            raise f.refuse(name, f"one of {', '.join(_ACTIVATIONS)}")
    raise f.refuse("hidden_act", "an activation")


def sizes(f: Fields, **named: str) -> dict[str, Any]:
    """The sizes from their usual fields; `named` gives other field names."""
    usual = {
        "layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "d_ff": "intermediate_size",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
    }
    found: dict[str, Any] = {}
    for ours, theirs in {**usual, **named}.items():
        if theirs in f and (value := f(theirs)) is not None:
            # Checked here, where the names in the file are known, and before patterns of layers are written out.
            found[ours] = at_most(theirs, positive_int(theirs, value), LARGEST.get(ours, sys.maxsize))
            if f.aliases.get(theirs, theirs) not in f.given:
                f.left_out.append(f"{theirs}={value}")
        elif f.defaults.get(theirs) is not None and ours not in ("kv_heads", "head_dim"):
            raise f.refuse(theirs, "a positive whole number")
    if "tie_word_embeddings" in f:
        found["tied_head"] = bool(f("tie_word_embeddings"))
    return found


def only(f: Fields, **usual: Any) -> None:
    """Refuse other values of fields that published files have and transformers does not read."""
    for name, value in usual.items():
        if f(name) not in (None, value):
            raise f.refuse(name, repr(value))


def by_layer(f: Fields, name: str, layers: int) -> Any:
    """A list with one entry for each layer, or None if it is not given."""
    entries = f(name)
    if entries is not None and not (isinstance(entries, (list, tuple)) and len(entries) == layers):
        raise f.refuse(name, f"one entry for each of the {layers} layers")
    return entries


def biases(f: Fields, *, attention: Sequence[str] = ALL_ATTENTION, mlp: Sequence[str] = ()) -> tuple[str, ...]:
    """The matrices with a bias, by the usual flags."""
    return (*(attention if f("attention_bias") else ()), *(mlp if f("mlp_bias") else ()))


def with_rotary(f: Fields, config: dict[str, Any], default: float = 1.0) -> dict[str, Any]:
    """The configuration with the share of each head that is rotated: from its own field, or from the rotary parameters."""
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
    """The configuration with each layer's kind of attention: from a list, or from a period."""
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
    """The configuration with a window only if a switch is on: in the layers of a list, or else in those `held`."""
    size, kinds, on = f("sliding_window"), by_layer(f, "layer_types", config["layers"]), f("use_sliding_window")
    if kinds is None:
        return config | {"window": size, "window_layers": tuple(held)} if on else config
    if not on and any(kind != "full_attention" for kind in kinds):
        raise f.refuse("layer_types", "full_attention in each layer, or use_sliding_window=True")
    return with_windows(f, config)


def rope_layers(f: Fields, layers: int) -> tuple[bool, ...]:
    """The layers with rotary positions: from a list, which may be longer, or from a period."""
    period = f("no_rope_layer_interval")
    turned = f("no_rope_layers") or [(layer + 1) % period != 0 for layer in range(layers)]
    if len(turned) < layers:
        raise f.refuse("no_rope_layers", f"one entry for each of the {layers} layers")
    return tuple(bool(turns) for turns in turned[:layers])


def note_further_tokens(f: Fields, *names: str) -> None:
    """Note the layers that predict more than the next token, which are left out; `names` are the fields to look at."""
    for name in names or ("num_nextn_predict_layers", "num_mtp_layers"):
        if count := f(name):
            many, layers = ("", "layer is") if count == 1 else (f"{shown(count)} ", "layers are")
            f.notes.append(f"the {many}multi-token prediction (MTP) {layers} left out")
            break
