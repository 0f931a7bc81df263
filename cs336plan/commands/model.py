"""What the word for a model on the command line names."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from cs336kit.command.arguments import lacks_unit, number
from cs336kit.predict.models import MODELS
from cs336kit.predict.names import unknown
from cs336kit.predict.transformer import TransformerConfig
from cs336plan.traced_answers.counted import File

#: Whose modules the option --modules names; without it those of the kit, which its rules describe.
MODULES = ("transformers",)
#: Of the fields of a configuration of the kit.
_NAMES = TransformerConfig.__dataclass_fields__.keys()


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


def to_trace(text: str, modules: str | None) -> File | None:
    """The file that this word names, if its modules are counted by tracing; None for everything that the rules read.

    What is wrong with a file otherwise, `model_of` says. ValueError if modules are asked for, and there is no such file.
    """
    from cs336kit.predict.families.fields import NotRead
    from cs336kit.predict.hugging_face import from_hf, read_file

    path = Path(text)
    named = text in MODELS and not any(sign in text for sign in ("/", os.sep))
    if named or not (text.lower().endswith(".json") or os.path.isdir(text)):
        if modules:
            raise ValueError(
                f"--modules counts the model of a file, and {text} is none: give the path of its config.json"
            )
        return None
    try:
        values, found = read_file(path)
    except ValueError:
        if modules:
            raise
        return None
    if not _of_hugging_face(values):
        if modules:
            raise ValueError(
                f"{text}: --modules counts a config.json of Hugging Face, and this is a configuration of the kit"
            )
        return None
    name = path.resolve().name if path.is_dir() else path.stem
    file = File(path.parent.name or name if name == "config" else name, Path(found), values, None)
    try:
        from_hf(values)
    except NotRead as error:
        return replace(file, why=error)
    except ValueError:
        if not modules:
            return None
    return file if modules else None


def _read(path: Path, name: str) -> tuple[str, TransformerConfig]:
    """The configuration in a file, Hugging Face's or ours, and its name: `name`, or of a config.json in a folder the folder's."""
    from cs336kit.predict.hugging_face import from_hf, read_file

    values, _ = read_file(path)
    theirs = _of_hugging_face(values)
    if theirs and name == "config":
        name = path.parent.name or name
    try:
        return name, from_hf(values) if theirs else TransformerConfig.from_dict(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _of_hugging_face(values: dict[str, object]) -> bool:
    """Whether a file is Hugging Face's: it says so, or most of its names are none of ours."""
    return "model_type" in values or 2 * len(values.keys() - _NAMES) > len(values)
