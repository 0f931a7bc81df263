"""Decide whether a stored output and a new one are the same, for verification and for refresh alike."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from html import unescape
from itertools import zip_longest
from typing import Any
from urllib.parse import unquote

from cs336course.columns import side_by_side

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
#: The address of an object, as Python writes it; any other hexadecimal number is compared.
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}(?=>)")
_KERNEL_FILE = re.compile(r"(?:[A-Za-z]:)?[\w/\\.~+-]{0,200}[/\\]ipykernel_\d+[/\\]\d+\.py")
#: matplotlib names clip paths and markers by a digest of their exact coordinates, which the last bit of a float changes.
_DIGEST = re.compile(r"\b[mp][0-9a-f]{10}\b")
#: A widget has a new random id in every run, so its still picture is compared instead. A stored one would be dead.
WIDGET = "application/vnd.jupyter.widget-view+json"
_NOTHING: dict[str, str] = {}
#: How far (in points) a coordinate of a figure may move: processors round differently, and readers cannot see it.
FIGURE_TOLERANCE = 0.05
#: The SVG attributes that hold coordinates. A factor of `scale` is not one, nor is text, a title or a comment.
_COORDINATES = re.compile(
    r"""(?<![\w-])(?:d|points|viewBox|[xy][12]?|c[xy]|r[xy]?|d[xy]|width|height|stroke-dashoffset)="[^"]*\""""
    r"""|\b(?:translate|matrix|rotate)\([^()]*\)"""
)
#: Marks the kind of an output as a figure, or as HTML with a figure in it.
_FIGURE = " (figure)"


def difference(
    stored: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]], tolerance: float | None = None
) -> str | None:
    """None when two lists of notebook outputs are the same, else what differs, stored and new side by side in 100 columns.

    Of a figure only its name is told, because nobody reads a drawing as text: `redrawn` has both to look at.

    Text, HTML, errors, images and the metadata of an output must be equal; addresses of objects and names of kernel
    files are masked; figures (SVG, also in HTML) may differ by FIGURE_TOLERANCE in a coordinate, and in nothing else.
    tolerance: relative, for the numbers in text and HTML of cells tagged ``approx``.
    """
    for old, now in zip_longest(_shown(stored), _shown(new, ignored=(WIDGET,)), fillvalue=_NOTHING):
        if not now:
            return f"an output is missing: {', '.join(old)}" + _beside(old, now)
        if not old:
            return f"there is one more output: {', '.join(now)}" + _beside(old, now)
        if list(old) != list(now):
            return f"the kind of output changed from {', '.join(old)} to {', '.join(now)}" + _beside(old, now)
        differing = [kind for kind in old if not _same(kind, old[kind], now[kind], tolerance)]
        if differing:
            kind = min(differing, key=_rank)
            return f"{kind} differs" + _beside({kind: old[kind]}, {kind: now[kind]})
    return None


def redrawn(stored: Sequence[dict[str, Any]], new: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """The figures that differ, in order: the ending of a file that a browser shows, and its text, stored and new ("": none)."""
    for (kind, old), (what, now) in zip_longest(_drawings(stored), _drawings(new), fillvalue=("", "")):
        if kind != what or not _same(_FIGURE, _masked(_numbered(old)), _masked(_numbered(now)), None):
            yield kind or what, old, now


def _drawings(outputs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for output in outputs:
        for mime, ending in (("image/svg+xml", "svg"), ("text/html", "html")):
            text = text_of(output.get("data", {}).get(mime, ""))
            if _kind(mime, text)[0].endswith(_FIGURE):
                yield ending, text
                break


def _shown(outputs: Sequence[dict[str, Any]], ignored: Sequence[str] = ()) -> list[dict[str, str]]:
    """Text by kind of each output: streams first and whole, because the kernel may cut them anywhere, then the rest in order."""
    streams: dict[str, str] = {}
    rest: list[dict[str, str]] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            streams[output["name"]] = streams.get(output["name"], "") + text_of(output["text"])
        elif kind == "error":
            rest.append({"error": f"{output['ename']}: {output['evalue']}"})
        else:
            data = sorted(output.get("data", {}).items())
            shown = dict(_kind(mime, text_of(value)) for mime, value in data if mime not in ignored)
            if about := output.get("metadata"):
                shown["metadata"] = text_of(about)
            rest.append(shown)
    ordered = [{name: text} for name, text in sorted(streams.items(), reverse=True)]
    return [{kind: _masked(text) for kind, text in data.items()} for data in [*ordered, *rest] if data]


def _kind(mime: str, text: str) -> tuple[str, str]:
    """The kind of an output and its text: of a figure, also one in HTML, with its digests numbered."""
    drawn = mime.startswith(("text/html", "image/svg")) and re.search("<svg|data:image/svg", text)
    return (f"{mime}{_FIGURE}", _numbered(text)) if drawn else (mime, text)


def _rank(kind: str) -> int:
    """Which of several kinds is most readable at a terminal: plain text, then HTML, then drawings."""
    return 2 if kind.endswith(_FIGURE) else 1 if "html" in kind else 0


def _readable(data: dict[str, str]) -> str:
    kind = min(data, key=_rank, default="")
    return "" if kind.endswith(_FIGURE) else data.get(kind, "")


def _beside(old: dict[str, str], new: dict[str, str]) -> str:
    """A line break, and the most readable kind of both side by side; "" if that is a drawing."""
    before, after = map(_readable, (old, new))
    if before == after:
        return ""
    # Styles and tags are left out, unless nothing else differs.
    said, says = (unstyled(text) if text.startswith("<") else text for text in (before, after))
    return "\n" + (side_by_side(said, says) if said != says else side_by_side(before, after))


@lru_cache(maxsize=64)  # the sizes of a slide are needed several times
def unstyled(html: str) -> str:
    """The text of a page: one line for each row or block, with cells apart and without tags."""
    html = re.sub(r"<(style|script)\b.*?</\1>", "", html, flags=re.S)
    html = re.sub(r"\s*(</(tr|p|div|li|h\d|caption)>|<br ?/?>)\s*", "\n", html)
    text = re.sub(r"<[^>\n]*>", "", unescape(re.sub(r"</t[dh]>", "  ", html)))
    lines = map(str.strip, text.splitlines())
    return "\n".join(line for line in lines if line)


def opened(html: str) -> str:
    """The HTML of an output without its folds: what they hold stays, and the lines that open them go."""
    return re.sub(r"<details[^>]*><summary[^>]*>.*?</summary>\n?|\n?</details>", "", html, flags=re.S)


def text_of(value: Any) -> str:
    """The text of an output: a string, lines, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return json.dumps(value, sort_keys=True, indent=1)


@lru_cache(maxsize=8)  # mostly what is stored and what is new are the same
def _numbered(svg: str) -> str:
    """The figure with its digests numbered in order of appearance, so that references are still compared."""
    places: dict[str, str] = {}
    return _DIGEST.sub(lambda found: places.setdefault(found[0], f"id-{len(places)}"), unquote(svg))


def _masked(text: str) -> str:
    if "ipykernel_" in text:  # looking for a whole path everywhere would take long
        text = _KERNEL_FILE.sub("<cell>", text)
    return _ADDRESS.sub(" at 0x…", text).strip()


def _same(kind: str, old: str, new: str, tolerance: float | None) -> bool:
    if old == new:
        return True
    if kind.endswith(_FIGURE):
        moved = zip_longest(_COORDINATES.findall(old), _COORDINATES.findall(new), fillvalue="")
        if not all(a == b or _close(a, b, absolute=FIGURE_TOLERANCE) for a, b in moved):
            return False
        old, new = _COORDINATES.sub("#", old), _COORDINATES.sub("#", new)
    relative = tolerance if kind.startswith(("text/", "stdout")) else None
    return old == new or (relative is not None and _close(old, new, relative=relative))


def _close(old: str, new: str, absolute: float = 0, relative: float = 0) -> bool:
    """Whether two texts differ only in numbers, and in those by no more than this."""
    if _NUMBER.sub("#", old) != _NUMBER.sub("#", new):
        return False
    pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(math.isclose(float(a), float(b), abs_tol=absolute, rel_tol=relative) for a, b in pairs if a != b)
