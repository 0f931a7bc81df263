"""What the word for a model on the command line names."""

import argparse
import json
import os
from pathlib import Path

from cs336kit.command.arguments import lacks_unit, number
from cs336kit.predict.checks import shown
from cs336kit.predict.models import MODELS
from cs336kit.predict.names import unknown
from cs336kit.predict.transformer import TransformerConfig


def _fields(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object, in which the last of two equal names would win silently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Contradiction(f"the configuration gives {shown(twice)} twice: leave one of them out")
    return values


#: Of the fields of a configuration of the kit.
_NAMES = TransformerConfig.__dataclass_fields__.keys()


class _Contradiction(Exception):
    """Two values for one name."""


def model_of(text: str) -> tuple[str, TransformerConfig | float]:
    """A configuration from a name, a JSON file or a folder with its config.json; or a number of parameters."""
    folder = os.path.isdir(text)  # a name, but no path, goes before a folder that is called so
    if text in MODELS and not (folder and any(sign in text for sign in ("/", os.sep))):
        return text, MODELS[text]
    if folder:
        path = Path(text) / "config.json"
        if not path.is_file():
            raise ValueError(f"the folder {text} has no config.json: give the folder or the file of a model.")
        return _read(path, Path(text).resolve().name)
    if text.lower().endswith(".json"):
        return _read(Path(text), Path(text).stem)
    try:
        parameters = number(text)
    except argparse.ArgumentTypeError:
        unknown(text, otherwise="or give the path of its config.json, or a number of parameters such as 70B")
    if sentence := lacks_unit(text, "parameters", "BM"):
        raise ValueError(sentence)
    return text, parameters


def _read(path: Path, name: str) -> tuple[str, TransformerConfig]:
    """The configuration in a file, Hugging Face's or ours, and what it calls itself or else `name`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_fields)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except _Contradiction as error:
        raise ValueError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f'{path} is not JSON: it must hold an object such as {{"layers": 12, …}}.') from None
    try:
        if isinstance(values, dict) and _of_hugging_face(values):
            from cs336kit.predict.hugging_face import from_hf, own_name

            return own_name(values) or name, from_hf(values)
        return name, TransformerConfig.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _of_hugging_face(values: dict[str, object]) -> bool:
    """Whether a file is Hugging Face's: it says so, or most of its names are none of ours."""
    return "model_type" in values or 2 * len(values.keys() - _NAMES) > len(values)
