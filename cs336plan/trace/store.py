"""Results that have been counted before, one file each. Needs the standard library alone."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cs336kit.files import write_whole
from cs336plan.trace.result import Traced

#: Names the folder; as the value, an empty text: nothing is kept.
VARIABLE = "CS336KIT_TRACED"


def folder() -> Path | None:
    """Where results are kept: the folder that CS336KIT_TRACED names, else ``.cs336kit/traced`` in the home folder."""
    if (named := os.environ.get(VARIABLE)) is not None:
        return Path(named) if named else None
    try:
        return Path.home() / ".cs336kit" / "traced"
    except RuntimeError:
        return None


def key(question: Mapping[str, Any]) -> str:
    """The name of a question's file: configuration, options, versions, and the code that counts."""
    code = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        code.update(file.read_bytes())
    text = json.dumps({**question, "code": code.hexdigest()}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(where: Path | None, name: str) -> Traced | None:
    """The kept result, None if there is none that can be read."""
    if where is None:
        return None
    try:
        return Traced.from_json(json.loads((where / f"{name}.json").read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(where: Path | None, name: str, result: Traced) -> None:
    """Keep a result, whole; where nothing can be written, nothing is kept."""
    if where is None:
        return
    try:
        where.mkdir(parents=True, exist_ok=True)
        write_whole(where / f"{name}.json", json.dumps(result.as_json()))
    except OSError:
        return
