"""The functions that the pages of the site call in the browser; they need only the standard library."""

import contextlib
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cs336kit.teach.explorers.bits import bits
from cs336kit.teach.explorers.decoding import decoding
from cs336kit.teach.explorers.explorer import Explorer, kind, marks
from cs336kit.teach.explorers.memory import memory
from cs336kit.teach.explorers.roofline import roofline
from cs336kit.teach.explorers.strides import strides
from cs336plan.commands.plan import answered
from cs336plan.commands.refusals import in_options

EXPLORERS: Mapping[str, Callable[[], Explorer]] = {
    "bits": bits, "strides": strides, "roofline": roofline, "memory": memory, "decoding": decoding,
}  # fmt: skip
#: The name of the reader's own configuration, in the page's Python and in the command that it shows.
CONFIG = Path("config.json")
_seen: dict[str, Explorer] = {}


def call(name: str, arguments: str) -> str:
    """One of the functions below, by name; arguments and answer are JSON."""
    functions: dict[str, Callable[..., dict[str, object]]] = {"plan": plan, "explore": explore}
    return json.dumps(functions[name](**json.loads(arguments)))


def plan(line: list[str], config: str = "") -> dict[str, object]:
    """What `cs336kit plan` answers to the words of `line`: `values` as with --json and `text`, or the sentence `error`.

    config: the text of CONFIG, if the line names that file.
    """
    if config:
        CONFIG.write_text(config, encoding="utf-8")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            answer = answered(line)
        return {"values": answer.values(), "text": answer.text()}
    except ValueError as error:
        return {"error": in_options(str(error))}
    except SystemExit:  # the command's parser refuses the words
        return {"error": said.getvalue().strip()}


def explore(name: str, choices: Mapping[str, Any]) -> dict[str, object]:
    """Change some choices of an explorer, which begins as in its lesson; returns its picture, its controls, and an error."""
    seen = _seen.setdefault(name, EXPLORERS[name]())
    error = ""
    try:
        seen.choose(**choices)
    except (ValueError, LookupError, OverflowError) as refused:
        error = str(refused)
    return {"html": seen._repr_html_(), "controls": _controls(seen), "error": error}


def _controls(seen: Explorer) -> list[dict[str, object]]:
    found = []
    for name, (label, options) in seen.offers().items():
        value = seen.choices.get(name)
        listed = isinstance(options, Mapping) and [(text, each, said) for each, (text, said, *_) in options.items()]
        offered = listed or marks(options, value)
        found.append({"name": name, "label": label, "kind": kind(options), "value": value, "marks": offered})
    return found
