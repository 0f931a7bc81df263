"""Measurements on GPUs: records that only `make gpu` writes, checked against a schema, shown where there is no GPU."""

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

#: Data of the package, so that an installed kit has them, too; in a clone, `make gpu` writes there.
RECORDS = Path(__file__).parents[1] / "records"
SCHEMA = Path(__file__).with_name("schema.json")


@dataclass(frozen=True)
class Row:
    """One measured number: `measured` in `unit`, the `predicted` one or None, and the raw `repeats`."""

    label: str
    setting: dict[str, str | float | bool]
    predicted: float | None
    measured: float
    unit: str
    repeats: tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """One stage of a record: its rows, what was skipped and why, on which device and when."""

    name: str
    gpu: str
    torch: str
    date: str
    skipped: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def where(self) -> str:
        """On which device, with which torch, and when."""
        return f"recorded on {self.gpu} with torch {self.torch} on {self.date}"

    def named(self, label: str, **setting: Any) -> tuple[Row, ...]:
        """The rows with this label whose setting has these values."""
        return tuple(r for r in self.rows if r.label == label and setting.items() <= r.setting.items())

    def __repr__(self) -> str:
        lines = [f"{self.name}, {self.where}"]
        for row in self.rows:
            setting = " ".join(f"{key}={value}" for key, value in row.setting.items())
            beside = f", predicted {row.predicted:.6g}" if row.predicted is not None else ""
            lines.append(f"  {row.label} {setting}: {row.measured:.6g} {row.unit}{beside}")
        return "\n".join([*lines, *(f"  skipped: {reason}" for reason in self.skipped)])


@dataclass(frozen=True)
class NoRecord:
    """Takes the place of a missing record: false, empty, and says so when shown."""

    name: str
    rows: tuple[Row, ...] = ()

    @property
    def where(self) -> str:
        """That it was recorded nowhere."""
        return "not recorded"

    def named(self, label: str, **setting: Any) -> tuple[Row, ...]:
        return ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"There is no record of {self.name!r} yet: `make gpu` on a machine with a CUDA device writes one."


def records(folder: Path | None = None) -> dict[str, dict]:
    """Every record in the folder (the kit's own for None), by the name of its GPU, each checked against the schema.

    ValueError, with the file's name, for one that is damaged.
    """
    found = {}
    for path in sorted((folder or RECORDS).glob("*.json")):
        try:
            text = path.read_bytes()
            _check(text)
            data = json.loads(text)
            found[data["gpu"]] = data
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(
                f"{path} is no record of a GPU ({error}). Was it saved or installed only in part? In a clone, git checkout "
                "restores it; else install the kit again."
            ) from None
    return found


def recorded(stage: str, *, gpu: str | None = None, folder: Path | None = None) -> Stage | NoRecord:
    """The newest record of a stage ("products", "bandwidths", …), of one GPU if named; without one, a NoRecord.

    ValueError for a GPU of which there is no record at all, and for a damaged record.
    """
    if not isinstance(stage, str):
        raise ValueError(f"the name of a stage must be a string such as 'products', got {stage!r}.")
    known = records(folder)
    if gpu is not None and gpu not in known:
        raise ValueError(
            f"there is no record of {gpu!r} in {folder or RECORDS}; there are {', '.join(map(repr, known)) or 'none'}. "
            "In a clone, `make gpu` on a machine with that GPU writes one; if the kit's own are missing, install it again."
        )
    candidates = [
        (data["stages"][stage]["date"], name, data)
        for name, data in known.items()
        if stage in data["stages"] and gpu in (None, name) and not data["dry_run"]
    ]
    if not candidates:
        return NoRecord(stage)
    date, name, data = max(candidates, key=lambda candidate: candidate[:2])
    entry = data["stages"][stage]
    rows = tuple(Row(**{**row, "repeats": tuple(row["repeats"])}) for row in entry["rows"])
    return Stage(stage, name, data["torch"], date, tuple(entry["skipped"]), rows)


@lru_cache(maxsize=8)
def _check(text: bytes) -> None:
    """Check the text of a record. That takes longer than reading it, so the same text is checked once."""
    check_record(json.loads(text))


def check_record(data: object) -> None:
    """Raise ValueError, naming the place, if `data` does not fit schema.json or contains NaN or infinity.

    A machine that only measures may lack jsonschema: there only the numbers are checked, and the schema is checked
    wherever the record is read with jsonschema.
    """
    _finite(data, "record")
    # Only where there is a record to read or to write.
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match
    except ModuleNotFoundError:
        return
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    error = best_match(Draft202012Validator(schema).iter_errors(data))
    if error is not None:
        raise ValueError(f"record{error.json_path[1:]}: {error.message}")


def _finite(data: object, place: str) -> None:
    if isinstance(data, float) and not math.isfinite(data):
        raise ValueError(f"{place}: {data} is not JSON compliant")
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, (list, tuple)) else ()
    for key, part in parts:
        _finite(part, f"{place}[{key}]" if isinstance(key, int) else f"{place}.{key}")
