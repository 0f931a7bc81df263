"""A TransformerConfig from a config.json of Hugging Face, or an error that names what it cannot express."""

import json
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cs336kit.predict.checks import shown
from cs336kit.predict.families import FAMILIES, LACKING, OTHER_NAMES
from cs336kit.predict.families.fields import Fields, NotRead
from cs336kit.predict.families.storage import storage
from cs336kit.predict.names import known_as
from cs336kit.predict.transformer import TransformerConfig


def _read(config: Any) -> tuple[Mapping[str, Any], str]:
    """The fields and where they come from."""
    if isinstance(config, Mapping):
        return config, "config.json"
    if isinstance(config, str) and config.lstrip().startswith("{"):
        return _object(config, "config.json"), "config.json"
    if not isinstance(config, (str, Path)):
        raise ValueError(
            f"config is {type(config).__name__}: give a dictionary, the path of a config.json, or its text"
        )
    try:
        return read_file(Path(config))
    except ValueError as error:
        else_ = "; predict.model knows it by this name" if "cannot be read" in str(error) and known_as(config) else ""
        raise ValueError(f"{error}{else_}") from None


#: What modelopt writes beside a config.json: how the weights are stored.
QUANTIZATION_FILE = "hf_quant_config.json"


def read_file(path: Path) -> tuple[dict[str, Any], str]:
    """What a JSON file or the config.json of a folder holds, and its path; with what a file of modelopt beside it says.

    Raises ValueError for what cannot be read, is no file (a pipe would be waited for), is no JSON object, or gives a name twice.
    """
    with suppress(OSError, ValueError):  # what is too long for a path is said below
        path = path / "config.json" if path.is_dir() else path
    values = _object(_text(path), str(path))
    beside = path.with_name(QUANTIZATION_FILE)
    if "model_type" in values and "quantization_config" not in values and beside.exists():
        inner = values.get("text_config")
        if not (isinstance(inner, Mapping) and "quantization_config" in inner):
            values["quantization_config"] = _of_modelopt(_object(_text(beside), str(beside)), str(beside))
    return values, str(path)


def _of_modelopt(values: dict[str, Any], source: str) -> dict[str, Any]:
    """The quantization_config that a file of modelopt means."""
    inner = values.get("quantization", values)
    if not isinstance(inner, dict) or "quant_algo" not in inner:
        raise ValueError(f"{source} does not say by a quant_algo how the weights are stored: mend it, or take it away")
    return {"quant_method": "modelopt", **inner}


def _text(path: Path) -> str:
    name = str(path)[:255]  # a text that is not a path may be long
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError(
                f"{name} cannot be read: it is no file, but a folder, a pipe or a device; give a config.json"
            )
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _object(text: str, source: str) -> dict[str, Any]:
    """The JSON object in a text; ValueError for anything else, and for two values of one name."""
    try:
        values = json.loads(text, object_pairs_hook=_once)
    except _Twice as error:
        raise ValueError(f"{source}: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{source} is not JSON: give a config.json of Hugging Face") from None
    if not isinstance(values, dict):
        raise ValueError(f"{source}: a configuration is an object of names and values, not {type(values).__name__}")
    return values


class _Twice(Exception):
    """Two values for one name."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, in which the last of two equal names would win silently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Twice(f"the configuration gives {shown(twice)} twice: leave one of them out")
    return values


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
        inner["model_type"] = OTHER_NAMES.get(str(inner["model_type"]), inner["model_type"])
        for name in ("tie_word_embeddings", "quantization_config"):
            if name in values:
                inner.setdefault(name, values[name])
        if isinstance(inner["model_type"], str) and inner["model_type"] in FAMILIES:
            others = [
                _line(name) for name, value in values.items() if isinstance(value, Mapping) and name.endswith("_config")
            ]
            rest = ", ".join(name for name in others if name not in ("text_config", "quantization_config"))
            notes.append(
                f"of this {_line(model_type) or 'model'}, the text model is counted, and what reads images or sound is left out"
                + f" ({rest})" * bool(rest)
            )
            values, model_type = inner, inner["model_type"]
    if model_type not in FAMILIES:
        if lacking := LACKING.get(model_type):
            raise NotRead(f"a {model_type} cannot be counted: no support for {lacking}")
        near = get_close_matches(model_type, FAMILIES, n=3)
        meant = f" Did you mean {' or '.join(near)}?" if near else ""
        raise NotRead(
            f"model_type {shown(model_type)} is not known.{meant} {len(FAMILIES)} are, such as gpt2 and llama"
        )
    if strange := [name for name in values if not (isinstance(name, str) and name.isprintable())]:
        raise ValueError(f"{source} has a field {shown(strange[0])}: give a config.json of Hugging Face")
    fields = Fields(values, model_type)
    try:
        ours = FAMILIES[model_type](fields)
        fields.check_rest()
        named = "" if isinstance(config, (str, Path)) and source != "config.json" else own_name(values)
        if fields.left_out and not abridged:
            fields.notes.append(f"sizes that are not given have transformers' defaults: {', '.join(fields.left_out)}")
        said: dict[str, Any] = {"source": f"config.json of {named}" if named else source, "model_type": model_type}
        result = TransformerConfig(**ours, **said, notes=(*notes, *fields.notes))
        stored = storage(values.get("quantization_config"), result)
        result = replace(result, stored=stored.stored, stored_apart=stored.apart, notes=(*result.notes, *stored.notes))
        return result, {name for name in values if fields.aliases.get(name, name) in fields.read}
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{source} has a field of a type or size that a {model_type} cannot have: {error}") from None


def own_name(values: Mapping[str, Any]) -> str:
    """The name that a config.json gives its model, "" if it gives none."""
    return _line(values.get("_name_or_path") or values.get("name_or_path"))


def _line(text: object) -> str:
    """A text without control characters of a terminal, and "" for anything else."""
    return "".join(filter(str.isprintable, text)) if isinstance(text, str) else ""
