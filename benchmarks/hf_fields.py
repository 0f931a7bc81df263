"""Write cs336kit/predict/hf_fields.json: for each model_type that `from_hf` reads, transformers' fields and their defaults.

A config.json leaves out what has its default. Run with the pinned transformers: python -m benchmarks.hf_fields
"""

import dataclasses
import json
from importlib.resources import files
from typing import Any

from cs336kit.predict._families import FAMILIES
from cs336kit.predict._families.fields import IRRELEVANT


def fields_of(model_type: str) -> dict[str, Any]:
    """Defaults and other names of the fields, those left out that change nothing."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    cls = CONFIG_MAPPING[model_type]
    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        made = field.default_factory
        value = field.default if made is dataclasses.MISSING else made()
        if value is dataclasses.MISSING or (IRRELEVANT.search(field.name) and field.name not in _READ):
            continue
        try:
            found[cls.attribute_map.get(field.name, field.name)] = json.loads(json.dumps(value))
        except TypeError:
            continue
    return {"fields": found} | ({"aliases": cls.attribute_map} if cls.attribute_map else {})


#: Irrelevant for most, but read for some.
_READ = {
    "hidden_act", "rotary_dim", "rope_parameters", "word_embed_proj_dim", "logit_scale", "_remove_final_layer_norm",
}  # fmt: skip


def table() -> dict[str, Any]:
    return {model_type: fields_of(model_type) for model_type in sorted(FAMILIES)}


def text() -> str:
    rows = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in table().items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    path = files("cs336kit.predict") / "hf_fields.json"
    path.write_text(text(), encoding="utf-8")  # type: ignore[attr-defined]
