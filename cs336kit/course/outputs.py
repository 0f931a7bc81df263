"""Are a stored output and a new one the same? One answer for verification and for storing anew."""

import difflib
import json
import math
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any
from urllib.parse import unquote

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_KERNEL_FILE = re.compile(r"/tmp/ipykernel_\d+/\d+\.py")
#: matplotlib names clip paths and markers by a digest of their exact coordinates, which the last bit of a float changes.
_DIGEST = re.compile(r"\b[mp][0-9a-f]{10}\b")
#: Widgets carry a new random id in every run; their static twin is compared instead.
_IGNORED = ("application/vnd.jupyter.widget-view+json",)
#: How far (in points) a coordinate of a figure may move: other processors round differently, readers cannot see it.
FIGURE_TOLERANCE = 0.05
#: Ends the kind of an output that is a figure, or HTML with a figure in it.
_FIGURE = " (figure)"


def difference(
    stored: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], tolerance: float | None = None
) -> str | None:
    """None when two lists of notebook outputs are the same, else a diff for a maintainer.

    Text, HTML, errors and images must be equal; object addresses and kernel file names are masked; figures (SVG, also in
    HTML) may differ by FIGURE_TOLERANCE in a coordinate. tolerance: relative, for the numbers in text and HTML of cells
    tagged ``approx``.
    """
    for (old_kind, old), (new_kind, now) in zip_longest(_flatten(stored), _flatten(new), fillvalue=("", "")):
        if not new_kind:
            return f"an output is missing: {old_kind}\n" + _diff(old, now)
        if not old_kind:
            return f"there is one output more: {new_kind}\n" + _diff(old, now)
        if old_kind != new_kind:
            return f"the kind of output changed from {old_kind} to {new_kind}\n" + _diff(old, now)
        close = FIGURE_TOLERANCE if old_kind.endswith(_FIGURE) else None
        relative = tolerance if old_kind.startswith(("text/", "stdout")) else None
        if not _same_text(old, now, close, relative):
            return f"{old_kind} differs (- stored, + new)\n" + _diff(old, now)
    return None


def _flatten(outputs: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """(kind, text) pairs: streams first and whole, because the kernel may cut them anywhere, then the rest in order."""
    streams: dict[str, str] = {}
    rest: list[tuple[str, str]] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            streams[output["name"]] = streams.get(output["name"], "") + _text(output["text"])
        elif kind == "error":
            rest.append(("error", f"{output['ename']}: {output['evalue']}"))
        else:
            for mime in sorted(output.get("data", {})):
                if mime not in _IGNORED:
                    text = _text(output["data"][mime])
                    drawn = mime.startswith(("text/html", "image/svg")) and re.search("<svg|data:image/svg", text)
                    rest.append((f"{mime}{_FIGURE}", _numbered(unquote(text))) if drawn else (mime, text))
    return [(name, _masked(text)) for name, text in [*sorted(streams.items(), reverse=True), *rest]]


def _text(value: Any) -> str:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(line, str) for line in value)):
        return "".join(value)
    return json.dumps(value, sort_keys=True, indent=1)


def _numbered(svg: str) -> str:
    """The figure with its digests replaced by their order of appearance, so that what refers to what is still compared."""
    places: dict[str, str] = {}
    return _DIGEST.sub(lambda found: places.setdefault(found[0], f"id-{len(places)}"), svg)


def _masked(text: str) -> str:
    return _ADDRESS.sub("0x…", _KERNEL_FILE.sub("<cell>", text)).strip()


def _same_text(old: str, new: str, absolute: float | None, relative: float | None) -> bool:
    if old == new:
        return True
    if (absolute is None and relative is None) or _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return False
    pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(
        math.isclose(float(a), float(b), abs_tol=absolute or 0, rel_tol=relative or 0) for a, b in pairs if a != b
    )


def _diff(old: str, new: str, most: int = 40) -> str:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "stored", "new", lineterm="", n=1))[2:]
    cut = [line[:300] for line in lines[:most]]
    return "\n".join(cut + ([f"… and {len(lines) - most} more lines"] if len(lines) > most else []))
