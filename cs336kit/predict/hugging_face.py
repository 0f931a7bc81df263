"""A TransformerConfig from a config.json of Hugging Face, or a sentence that names what cannot be said."""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from cs336kit.predict._common.checks import shown
from cs336kit.predict._families import FAMILIES, LACKING, OTHER_NAMES
from cs336kit.predict.models import MODELS
from cs336kit.predict.packed import PACKINGS
from cs336kit.predict.transformer import TransformerConfig

#: Fields that change neither parameters, nor FLOPs, nor the cache: names of things, numbers inside elementwise functions,
#: how a run starts, what is done with results, how experts are chosen.
IRRELEVANT = re.compile(
    r"_token_ids?$|^_|^(model_type|architectures|auto_map|transformers_version|dtype|torch_dtype|name_or_path|language"
    r"|tokenizer_class|license|use_cache|cache_implementation|gradient_checkpointing|attn_implementation|init_device|verbose"
    r"|id2label|label2id|problem_type|return_dict|return_dict_in_generate|chunk_size_feed_forward|is_decoder"
    r"|is_encoder_decoder|task_specific_params|num_labels|classifier_dropout|pretraining_tp|slow_but_exact|torchscript"
    r"|tie_encoder_decoder|unk_index|attention_softmax_in_fp32|scale_attention_softmax_in_fp32|scale_attn_weights"
    r"|scale_attn_by_inverse_layer_idx|reorder_and_upcast_attn|softmax_scale|n_ctx|seq_length|masked_softmax_fusion"
    r"|skip_bias_add|skip_bias_add_qkv|offset_alibi|original_max_position_embeddings"
    r"|embedding_fraction|norm_type|learned_pos_emb|prefix|logit_scale)$"
    r"|^(summary|output|router_(aux|z)|initializer|init|rope|rotary|moe_norm)_|(eps|epsilon)$|jitter|^aux_loss|loss_coef$"
    r"|^(rotary_emb_base|norm_topk_prob|routed_scaling_factor|n_group|topk_group|topk_method|scoring_func|seq_aux|ep_size"
    r"|aux_loss_alpha|clip_qkv|attn_temperature_tuning|attn_scale|floor_scale|swiglu_alpha|swiglu_limit|layerdrop"
    r"|moe_group|moe_aux_loss_coef|use_aux_loss|router_topk_policy|experts_implementation|unsloth_\w+|for_llm_compressor)$"
)
#: So many fields that are not understood are named.
_NAMED = 8
#: A run's own choice, which registry and estimates leave at 0.
_DROPOUT = re.compile(r"dropout|_pdrop$")


class _Fields:
    """The fields given, under one name each, with the defaults of transformers behind them."""

    def __init__(self, values: Mapping[str, Any], model_type: str):
        table = _table()[model_type]
        self.aliases: dict[str, str] = table.get("aliases", {})
        self.given = {self.aliases.get(name, name): value for name, value in values.items()}
        self.defaults: dict[str, Any] = table["fields"]
        self.model_type = model_type
        self.read: set[str] = set()
        self.notes: list[str] = []

    def __call__(self, name: str) -> Any:
        name = self.aliases.get(name, name)
        self.read.add(name)
        return self.given.get(name, self.defaults.get(name))

    def __contains__(self, name: str) -> bool:
        name = self.aliases.get(name, name)
        return name in self.given or name in self.defaults

    def refuse(self, name: str, allowed: str) -> ValueError:
        outer, _, inner = name.partition(".")
        value: Any = self.given.get(outer, self.defaults.get(outer))
        value = value[inner] if inner else value
        return ValueError(f"{name}={shown(value)} of this {self.model_type} cannot be counted: give {allowed}")

    def check_rest(self) -> None:
        """Refuse what was given, was not read, and could matter."""
        strange = []
        for name, value in self.given.items():
            if name in self.read or IRRELEVANT.search(name):
                continue
            if _DROPOUT.search(name):
                if value:
                    self.notes.append(f"{name}={shown(value)} is left out: dropout is a choice of the run")
            elif name == "quantization_config":
                if value:
                    self.notes.append(_note_of_storage(value))
            elif value not in (None, False, [], {}, "") and value != self.defaults.get(name):
                strange.append(f"{name}={shown(value)}")
        if strange:
            if len(strange) > _NAMED:
                strange = [*strange[: _NAMED - 1], f"{len(strange) - _NAMED + 1:,} more"]
            several = len(strange) > 1
            listed = f"{', '.join(strange[:-1])} and {strange[-1]}" if several else strange[0]
            are, them, they_do = ("are", "them", "they do") if several else ("is", "it", "it does")
            raise ValueError(
                f"{listed} of this {self.model_type} {are} not understood and could change the answer: take {them} out of "
                f"the configuration if {they_do} not"
            )


def _note_of_storage(stored: Any) -> str:
    """What is left out with a quantization_config, and the packing that counts it, if there is one."""
    stored = stored if isinstance(stored, Mapping) else {}
    note = "quantization_config is left out: parameters are counted, however they are stored"
    if (packing := _packing(stored)) in PACKINGS:
        note += f"; serve --weights {packing} counts all matrices of the blocks in {packing}"
        note += ", also those of modules_to_not_convert" if stored.get("modules_to_not_convert") else ""
    return note


def _packing(stored: Mapping[str, Any]) -> str:
    """The name that a quantization_config would have among the packings."""
    method, bits = str(stored.get("quant_method")), stored.get("bits")
    if method == "bitsandbytes":
        return "int8" if stored.get("load_in_8bit") else str(stored.get("bnb_4bit_quant_type"))
    if method == "compressed-tensors":
        groups = stored.get("config_groups")
        weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, Mapping) else []
        names = {f"{'fp' if one.get('type') == 'float' else 'int'}{one.get('num_bits')}" for one in weights}
        return names.pop() if len(names) == 1 else ""
    if method in ("awq", "gptq"):
        return f"int{bits}"
    return "fp8" if method.endswith("_fp8") else method


@cache
def _table() -> dict[str, Any]:
    text = Path(__file__).with_name("hf_fields.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def _read(config: Any) -> tuple[Mapping[str, Any], str]:
    """The fields and where they come from."""
    if isinstance(config, Mapping):
        return config, "config.json"
    if isinstance(config, str) and config.lstrip().startswith("{"):
        text, source = config, "config.json"
    elif isinstance(config, (str, Path)):
        path = Path(config)
        try:
            path = path / "config.json" if path.is_dir() else path
            text, source = path.read_text(encoding="utf-8-sig"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            name = str(path)[:255]  # what is no path may be a whole text
            else_ = "; predict.model knows it by this name" if config in MODELS else ""
            raise ValueError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}{else_}") from None
    else:
        raise ValueError(
            f"config is {type(config).__name__}: give a dictionary, the path of a config.json, or its text"
        )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{source} is not JSON: give a config.json of Hugging Face") from None
    if not isinstance(values, dict):
        raise ValueError(f"{source} holds {type(values).__name__}: give an object of names and values")
    return values, source


def from_hf(config: Mapping[str, Any] | str | Path) -> TransformerConfig:
    """The TransformerConfig of a config.json of Hugging Face: a dictionary, a path (also of its folder), or JSON text.

    Fields that are left out have the defaults of transformers. A field that could change parameters, FLOPs or cache and
    is not understood is refused by name, and so is a model_type that is not known; what only changes how a model is run
    or initialized is left out, and what is left out knowingly stands in `notes`. Of a model for several modalities, the
    text model is read. Dropout is 0. Raises ValueError.
    """
    return read_hf(config)[0]


def read_hf(config: Mapping[str, Any] | str | Path) -> tuple[TransformerConfig, set[str]]:
    """The same, and the names of the fields from which it follows."""
    values, source = _read(config)
    notes: list[str] = []
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(
            f"{source} has no model_type: give a config.json of Hugging Face, which says for instance 'llama'"
        )
    model_type = OTHER_NAMES.get(model_type, model_type)
    if model_type not in FAMILIES and isinstance(values.get("text_config"), Mapping):
        inner = dict(values["text_config"])
        inner.setdefault("model_type", f"{model_type}_text" if f"{model_type}_text" in FAMILIES else model_type)
        for name in ("tie_word_embeddings", "quantization_config"):
            if name in values:
                inner.setdefault(name, values[name])
        if isinstance(inner["model_type"], str) and inner["model_type"] in FAMILIES:
            notes.append(
                f"of this {_line(model_type) or 'model'}, the text model is counted, and what reads images or sound is left out"
            )
            values, model_type = inner, inner["model_type"]
    if model_type not in FAMILIES:
        if lacking := LACKING.get(model_type):
            raise ValueError(f"a {model_type} cannot be counted: it has {lacking}, which no TransformerConfig can say")
        near = get_close_matches(model_type, FAMILIES, n=3)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"model_type {shown(model_type)} is not known.{meant} {len(FAMILIES)} are, such as gpt2 and llama"
        )
    if strange := [name for name in values if not (isinstance(name, str) and name.isprintable())]:
        raise ValueError(f"{source} has a field {shown(strange[0])}: give a config.json of Hugging Face")
    fields = _Fields(values, model_type)
    try:
        ours = FAMILIES[model_type](fields)
        fields.check_rest()
        named = own_name(values)
        said: dict[str, Any] = {"source": f"config.json of {named}" if named else source, "model_type": model_type}
        result = TransformerConfig(**ours, **said, notes=(*notes, *fields.notes))
        return result, {name for name in values if fields.aliases.get(name, name) in fields.read}
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{source} has a field of a type or size that a {model_type} cannot have: {error}") from None


def own_name(values: Mapping[str, Any]) -> str:
    """What a config.json calls its model, "" if nothing."""
    return _line(values.get("_name_or_path") or values.get("name_or_path"))


def _line(text: object) -> str:
    """A text without what a terminal would obey, and "" for anything else."""
    return "".join(filter(str.isprintable, text)) if isinstance(text, str) else ""
