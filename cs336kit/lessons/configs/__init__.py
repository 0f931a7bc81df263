"""Published configurations for the lessons: the fields of config.json files of Hugging Face that determine sizes."""

from pathlib import Path

#: Name → file, such as gpt2.json; `_name_or_path` in it says which repository of Hugging Face it is from.
_FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.json"))}


def config_file(name: str) -> Path:
    """The path of the config.json of a model, by the name of its file; an unknown name raises ValueError."""
    if name not in _FILES:
        raise ValueError(f"there is no config.json of {name!r} here; there are those of {', '.join(_FILES)}")
    return _FILES[name]
