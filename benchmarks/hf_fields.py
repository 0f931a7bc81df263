"""Write cs336kit/predict/hf_fields.json: for each model_type that `from_hf` reads, transformers' fields and their defaults.

A config.json leaves out what has its default. Run with the pinned transformers: python -m benchmarks.hf_fields
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from cs336kit import predict
from cs336kit.command.arguments import Parser
from cs336kit.predict.families import FAMILIES
from cs336kit.predict.families.fields import IRRELEVANT

FILE = Path(predict.__file__).with_name("hf_fields.json")


def fields_of(model_type: str) -> dict[str, Any]:
    """Defaults and other names of the fields, those left out that change nothing."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise SystemExit(f"the installed transformers has no {model_type}: its defaults cannot be read from there.")
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


def main(words: list[str], path: Path = FILE) -> int:
    """Write the table anew, and print which model types are new or changed."""
    Parser(prog="python -m benchmarks.hf_fields", description=__doc__).parse_args(words)
    before, new = json.loads(path.read_text(encoding="utf-8")), text()
    path.write_text(new, encoding="utf-8")
    now = json.loads(new)
    changed = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    print(f"{path.name}: {'new, changed or gone are ' + ', '.join(changed) if changed else 'unchanged'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
