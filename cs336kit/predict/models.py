"""Well-known decoder-only models as configurations, each with the paper or published configuration it follows."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from cs336kit.predict._common.checks import known
from cs336kit.predict.transformer import TransformerConfig


@cache
def _table() -> dict[str, TransformerConfig]:
    # Read on first use, so that importing predict stays fast.
    import tomllib
    from pathlib import Path

    raw = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
    table = {}
    for source in raw["source"]:
        common = raw["families"].get(source.get("family"), {})
        for name, values in source["models"].items():
            table[name] = TransformerConfig(**{**common, **values}, source=source["title"])
    return table


@cache
def _folded() -> dict[str, str]:
    return {_fold(name): name for name in _table()} | {"gpt3": "gpt3-175b", "gpt2small": "gpt2"}


def _fold(name: object) -> str:
    return "".join(filter(str.isalnum, name.lower())) if isinstance(name, str) else ""


class _Models(Mapping[str, TransformerConfig]):
    """Read-only; "Llama-3 8B" finds "llama-3-8b", and an unknown name raises a ValueError that lists the known ones."""

    def __getitem__(self, name: str) -> TransformerConfig:
        return known("model", _folded().get(_fold(name), name), _table())

    def __contains__(self, name: object) -> bool:
        return _fold(name) in _folded()

    def get(self, name: str, default: Any = None) -> Any:
        return _table().get(_folded().get(_fold(name), ""), default)

    def __iter__(self) -> Iterator[str]:
        return iter(_table())

    def __len__(self) -> int:
        return len(_table())

    def __repr__(self) -> str:
        return f"MODELS({', '.join(self)})"


#: name → configuration, read from models.toml
MODELS = _Models()


def model(name: str) -> TransformerConfig:
    """The configuration of a known model; an unknown name raises a ValueError that lists the known ones."""
    return MODELS[name]
