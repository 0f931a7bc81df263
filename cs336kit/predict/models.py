"""Well-known decoder-only models as configurations, each with the paper or published configuration that it follows.

models.toml has those of the course. models_hf.json has other popular models, as the fields of their config.json.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from cs336kit.predict.hugging_face import read_hf
from cs336kit.predict.names import found, of_course, published, unknown
from cs336kit.predict.packed import EXPERTS
from cs336kit.predict.transformer import TransformerConfig


@cache
def _built(name: str, **changes: Any) -> TransformerConfig:
    if name in of_course():
        config = TransformerConfig(**of_course()[name])
    else:
        config = read_hf(published()[name], abridged=True)[0]
    if changes.get("stored") and config.stored.startswith(changes["stored"]):  # the file says more than the id
        del changes["stored"]
    if "stored" in changes:
        changes = {"stored_apart": ()} | changes
    if (stored := changes.get("stored")) and not changes["stored_apart"] and not stored.endswith(EXPERTS):
        whole = "all matrices of the blocks are, also those that its file may leave as they are"
        note = f"stored in {stored}, as its id says: {whole}"
        changes |= {"notes": (*config.notes, note)}
    return replace(config, **changes) if changes else config


class _Models(Mapping[str, TransformerConfig]):
    """Read-only; "Llama-3 8B" finds "llama-3-8b", and an unknown name raises a ValueError that suggests the nearest.

    Iteration lists the models of the course; those of models_hf.json are found by name or hub id ("Qwen/Qwen3-8B"), too, and
    the end of an id ("-FP8", "-BF16") sets how the model is `stored`. A model that no TransformerConfig can express
    raises the ValueError of from_hf.
    """

    def __getitem__(self, name: str) -> TransformerConfig:
        known_as, changes = found(name)
        if not known_as:
            unknown(name, otherwise="predict.from_hf reads a config.json")
        return _built(known_as, **changes)

    def __contains__(self, name: object) -> bool:
        return bool(found(name)[0])

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[str]:
        return iter(of_course())

    def __len__(self) -> int:
        return len(of_course())

    def __repr__(self) -> str:
        return f"MODELS({', '.join(self)})"


#: name → configuration, read from models.toml, and by name also from models_hf.json
MODELS = _Models()


def model(name: str) -> TransformerConfig:
    """The configuration of a known model; an unknown name raises a ValueError that suggests the nearest."""
    return MODELS[name]
