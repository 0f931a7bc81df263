"""A TransformerConfig from a config.json of Hugging Face, or an error that names what it cannot express."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cs336kit.predict.checks import shown
from cs336kit.predict.families import FAMILIES, LACKING, OTHER_NAMES
from cs336kit.predict.families.fields import Fields, storage
from cs336kit.predict.names import known_as
from cs336kit.predict.transformer import TransformerConfig


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
            name = str(path)[:255]  # a text that is not a path may be long
            else_ = "; predict.model knows it by this name" if known_as(config) else ""
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

    Missing fields have the defaults of transformers; `notes` lists the sizes among them. A field that could change parameters,
    FLOPs or cache and is not understood is refused by name, and so is an unknown model_type. Fields that only change how a
    model is run or initialized are left out, and `notes` lists what else was left out knowingly. A quantization_config sets how
    weights are `stored`. Of a model for several modalities, the text model is read. Dropout is 0. Raises ValueError.
    """
    return read_hf(config)[0]


def read_hf(config: Mapping[str, Any] | str | Path, *, abridged: bool = False) -> tuple[TransformerConfig, set[str]]:
    """The configuration, and the names of the fields from which it follows.

    `abridged`: what has its default was left out on purpose, so no note says so.
    """
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
            raise ValueError(f"a {model_type} cannot be counted: no support for {lacking}")
        near = get_close_matches(model_type, FAMILIES, n=3)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(
            f"model_type {shown(model_type)} is not known.{meant} {len(FAMILIES)} are, such as gpt2 and llama"
        )
    if strange := [name for name in values if not (isinstance(name, str) and name.isprintable())]:
        raise ValueError(f"{source} has a field {shown(strange[0])}: give a config.json of Hugging Face")
    fields = Fields(values, model_type)
    try:
        ours = FAMILIES[model_type](fields)
        fields.check_rest()
        named = own_name(values)
        if fields.left_out and not abridged:
            fields.notes.append(f"sizes that are not given have transformers' defaults: {', '.join(fields.left_out)}")
        said: dict[str, Any] = {"source": f"config.json of {named}" if named else source, "model_type": model_type}
        stored, left_out = storage(values.get("quantization_config"), experts=bool(ours.get("experts")))
        result = TransformerConfig(**ours, **said, stored=stored, notes=(*notes, *fields.notes, *left_out))
        return result, {name for name in values if fields.aliases.get(name, name) in fields.read}
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{source} has a field of a type or size that a {model_type} cannot have: {error}") from None


def own_name(values: Mapping[str, Any]) -> str:
    """The name that a config.json gives its model, "" if it gives none."""
    return _line(values.get("_name_or_path") or values.get("name_or_path"))


def _line(text: object) -> str:
    """A text without control characters of a terminal, and "" for anything else."""
    return "".join(filter(str.isprintable, text)) if isinstance(text, str) else ""
