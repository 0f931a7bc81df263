"""The page of symbols and words that have one meaning in all lessons, written in `words.toml`."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

#: How the page is folded below the map.
SUMMARY = "What they mean, and which lesson explains them"
FILE = Path(__file__).with_suffix(".toml")
HEADING = "## Symbols and words"


def load() -> dict[str, dict[str, tuple[str, str]]]:
    """By kind, ``symbols`` and ``words``: each with the number of the lesson that explains it, and its meaning."""
    found = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return {kind: {word: (lesson, means) for word, (lesson, means) in table.items()} for kind, table in found.items()}


def page(names: Mapping[str, str], folder: str = "") -> str:
    """All symbols and words as Markdown tables; names: a lesson's number → its file. A missing lesson is not linked."""
    parts = []
    for kind, table in load().items():
        lines = [f"| {kind[:-1]} | means | explained in |", "|---|---|---|"]
        for word, (lesson, means) in table.items():
            where = f"[{lesson}]({folder}{names[lesson]})" if lesson in names else lesson
            lines.append(f"| {'*' * (kind == 'symbols')}{word}{'*' * (kind == 'symbols')} | {means} | {where} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def folded(names: Mapping[str, str]) -> str:
    """The page as a cell below the map of the course."""
    return f"{HEADING}\n\n<details><summary>{SUMMARY}</summary>\n\n{page(names)}\n\n</details>"


def said(word: str, text: str) -> bool:
    """Whether a lesson's text has the word, or its plural."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?:s|es)?(?![\w-])", text) is not None or (
        word[0].islower() and said(word[0].upper() + word[1:], text)
    )
