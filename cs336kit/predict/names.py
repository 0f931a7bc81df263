"""The names under which models are known: what is meant by one that is written otherwise, and what is near one that is none."""

import re
from functools import cache
from typing import Any, NoReturn

from cs336kit.predict.checks import shown
from cs336kit.predict.data import data


@cache
def variants() -> dict[str, dict[str, Any]]:
    """Later models of the same shape: words of the hub id → `of`, the name of that shape, and what differs."""
    return dict(data("models.toml")["variants"])


@cache
def of_course() -> dict[str, dict[str, Any]]:
    """Name → fields of a TransformerConfig, of models.toml."""
    raw = data("models.toml")
    return {
        name: {**raw["families"].get(source.get("family"), {}), **values, "source": source["title"]}
        for source in raw["source"]
        for name, values in source["models"].items()
    }


@cache
def published() -> dict[str, dict[str, Any]]:
    """Name → fields of its config.json that change a count, of models_hf.json."""
    return {name: values for name, values in data("models_hf.json").items() if name not in of_course()}


def found(name: object) -> tuple[str, dict[str, Any]]:
    """The name under which a model is known, "" if it is not, and what differs in the variant that was asked for."""
    if not isinstance(name, str):
        return "", {}
    words = _words(name)
    changes = dict(variants().get("".join(words)) or {})
    if changes.get("stored_apart"):  # a variant as it is stored by its publisher
        changes["stored_apart"] = tuple(map(tuple, changes["stored_apart"]))
        return changes.pop("of"), changes
    changes = dict(variants().get("".join(word for word in words if word not in _STORED), {}))
    known_as = changes.pop("of", "") or _folded().get(_fold(name), "")
    if said := [_STORED[word] for word in words if word in _STORED]:
        changes["stored"] = said[-1]
    return known_as, changes


def known_as(name: object) -> str:
    """The name under which a model is listed, "" where it is not known."""
    return found(name)[0]


#: What the end of a hub id says about how that checkpoint is stored.
_STORED = {
    "fp8": "fp8",
    "bf16": "",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "awq": "int4",
    "w4a16": "int4-g128",
    "w8a8": "int8",
}


@cache
def _folded() -> dict[str, str]:
    """Simplified name → name. Hub ids count as names; those of the course take precedence."""
    from_hub = {_fold(values["_name_or_path"]): name for name, values in published().items()}
    names = {_fold(name): name for name in (*published(), *of_course())}
    return from_hub | names | {"gpt3": "gpt3-175b", "gpt2small": "gpt2", "bloom": "bloom-176b", "gptj": "gpt-j-6b"}


#: Parts of a name about further training, storage or date, which do not change a size. Later versions, longer contexts
#: ("32k") and "2507" are not among them: such models have other vocabularies, windows or contexts.
_IGNORED = re.compile(
    r"^(hf|base|pt|it|instruct|chat|pretrain|preview|mono|thinking|fp8|bf16|mxfp4|nvfp4|fp4|awq|w4a16|w8a8|v0\.1|v1\.0|v01|4k|1t|4e1t"
    r"|0924|1025|1124|2024|2407|2409|2410|2501|2503|2506|2509|2512)$"
)


def _words(name: str) -> list[str]:
    return re.split(r"[\s-]+", name.lower().rpartition("/")[2].removeprefix("meta-").removeprefix("c4ai-"))


def _fold(name: object) -> str:
    if not isinstance(name, str):
        return ""
    words = _words(name)
    return "".join(filter(str.isalnum, "".join([*words[:1], *(w for w in words[1:] if not _IGNORED.match(w))])))


def names(part: str = "") -> tuple[str, ...]:
    """Every known name that contains `part`, or whose hub id does: those of the course, then those of models_hf.json.

    Upper or lower case and blanks do not matter.
    """

    def letters(text: str) -> str:
        return "".join(text.lower().split()).replace("-", "")

    hub_ids = {name: f"{name} {values['_name_or_path']}" for name, values in published().items()}
    every = {name: name for name in of_course()} | hub_ids
    return tuple(name for name, known_as in every.items() if letters(part) in letters(known_as))


def unknown(name: object, *, otherwise: str) -> NoReturn:
    """Raise the ValueError for an unknown name, with the nearest known ones and what can be given besides names."""
    import difflib  # only needed for an error

    words = {_fold(known): known for known in (*published(), *of_course())}
    near = [words[close] for close in difflib.get_close_matches(_fold(name), words, n=3)]
    listed = " or ".join(filter(None, (", ".join(map(repr, near[:-1])), *map(repr, near[-1:]))))
    suggestion = f" Did you mean {listed}? (Any name of the same shape will do.)" if near else ""
    family = f" {near[0].split('-')[0]}" if near else ""
    raise ValueError(
        f"no model is called {shown(name)}.{suggestion} `cs336kit models{family}` lists "
        f"{'more' if near else f'the {len(words)} that are known'}; {otherwise}."
    )
