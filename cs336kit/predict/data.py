"""The files of numbers and names that stand beside the code."""

from typing import Any


def data(file: str) -> dict[str, Any]:
    """What a TOML or JSON file of `predict` holds; whoever reads one keeps it."""
    # Imported on first use, so that importing predict stays fast.
    import json
    import tomllib
    from pathlib import Path

    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    values: dict[str, Any] = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    return values
