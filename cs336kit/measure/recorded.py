"""What GPUs did: records written by `make gpu` alone, checked against a schema, shown where there is no GPU."""

import datetime
import json
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

#: Beside the package in a clone of the course; an installed kit has none.
RECORDS = Path(__file__).parents[2] / "benchmarks" / "records"


@dataclass(frozen=True)
class Row:
    """One measured number: `measured` in `unit`, the `predicted` one or None, and the raw `repeats` behind it."""

    label: str
    setting: dict[str, str | float | bool]
    predicted: float | None
    measured: float
    unit: str
    repeats: tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """One stage of a record: its rows, what it skipped and why, on which device and when."""

    name: str
    gpu: str
    torch: str
    date: str
    skipped: tuple[str, ...]
    rows: tuple[Row, ...]

    def named(self, label: str, **setting) -> tuple[Row, ...]:
        """The rows with this label whose setting holds these values."""
        return tuple(r for r in self.rows if r.label == label and setting.items() <= r.setting.items())

    def __repr__(self) -> str:
        lines = [f"{self.name}, recorded on {self.gpu} with torch {self.torch} on {self.date}"]
        for row in self.rows:
            setting = " ".join(f"{key}={value}" for key, value in row.setting.items())
            beside = f", predicted {row.predicted:.6g}" if row.predicted is not None else ""
            lines.append(f"  {row.label} {setting}: {row.measured:.6g} {row.unit}{beside}")
        return "\n".join([*lines, *(f"  skipped: {reason}" for reason in self.skipped)])


@dataclass(frozen=True)
class NoRecord:
    """Stands where a record would: false, empty, and it says so when shown."""

    name: str
    rows: tuple[Row, ...] = ()

    def named(self, label: str, **setting) -> tuple[Row, ...]:
        return ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"There is no record of {self.name!r} yet: `make gpu` on a machine with a CUDA device writes one."


def records(folder: Path | None = None) -> dict[str, dict]:
    """Every record that lies in the folder, by the name of its GPU, each checked against the schema."""
    found = {}
    for path in sorted((folder or RECORDS).glob("*.json")):
        if path.name != "schema.json":
            data = json.loads(path.read_text(encoding="utf-8"))
            check_record(data)
            found[data["gpu"]] = data
    return found


def recorded(stage: str, *, gpu: str | None = None, folder: Path | None = None) -> Stage | NoRecord:
    """The newest record of a stage ("products", "bandwidths", …), of one GPU if named; without one, a NoRecord."""
    if not isinstance(stage, str):
        raise ValueError(f"the name of a stage is a text such as 'products', got {stage!r}.")
    candidates = [
        (data["stages"][stage]["date"], name, data)
        for name, data in records(folder).items()
        if stage in data["stages"] and gpu in (None, name) and not data["dry_run"]
    ]
    if not candidates:
        return NoRecord(stage)
    date, name, data = max(candidates, key=lambda candidate: candidate[:2])
    entry = data["stages"][stage]
    rows = tuple(Row(**{**row, "repeats": tuple(row["repeats"])}) for row in entry["rows"])
    return Stage(stage, name, data["torch"], date, tuple(entry["skipped"]), rows)


def write_stage(
    folder: Path, stage: str, *, rows: list[dict], skipped: list[str], wall_seconds: float, dry_run: bool
) -> Path:
    """Add one stage to the record of the device in this machine; the other stages of the file stay.

    A file among the course's own records can only come from a CUDA device and a full run: anything else raises
    RuntimeError, so that no number there was made up. The file is replaced in one step.
    """
    on_gpu = torch.cuda.is_available()
    if folder.resolve() == RECORDS.resolve() and (dry_run or not on_gpu):
        raise RuntimeError(
            "only a full run on a CUDA device may write among the records: give another folder for a rehearsal."
        )
    gpu = torch.cuda.get_device_name() if on_gpu else "cpu"
    path = folder / f"{re.sub('[^a-z0-9]+', '-', gpu.lower()).strip('-')}.json"
    head = {
        "gpu": gpu,
        "driver": _driver() if on_gpu else "none",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "python": sys.version.split()[0],
        "dry_run": dry_run,
    }
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # A record describes one set-up: stages of another torch or driver are not mixed with this one's.
    stages = old["stages"] if old and {k: old[k] for k in head} == head else {}
    today = datetime.date.today().isoformat()
    stages[stage] = {"date": today, "wall_seconds": round(wall_seconds, 3), "skipped": skipped, "rows": rows}
    data = {**head, "stages": stages}
    check_record(data)
    folder.mkdir(parents=True, exist_ok=True)
    waiting = path.with_suffix(".json.part")
    waiting.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    os.replace(waiting, path)
    return path


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    match = re.search(r"(\d+\.\d+(\.\d+)?)\s", version.read_text()) if version.exists() else None
    return match.group(1) if match else "unknown"


# --- the schema -------------------------------------------------------------------------------------------------------

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "number": (int, float), "null": type(None)}


@cache
def _schema() -> dict:
    return json.loads((RECORDS / "schema.json").read_text(encoding="utf-8"))


def check_record(data: object) -> None:
    """Raise ValueError, naming the place, if `data` does not fit records/schema.json (the part of JSON Schema used there)."""
    _check(data, _schema(), "record")


def _check(value, schema: dict, place: str):
    kinds = schema.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    # True is an int in Python, but no number in JSON.
    if not any(isinstance(value, TYPES[k]) and not (k == "number" and isinstance(value, bool)) for k in kinds):
        raise ValueError(f"{place} must be {' or '.join(kinds)}, got {value!r}.")
    if isinstance(value, float) and value - value != 0:
        raise ValueError(f"{place} must be finite, got {value!r}.")
    if "enum" in schema and value not in schema["enum"]:
        raise ValueError(f"{place} must be one of {', '.join(schema['enum'])}, got {value!r}.")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        raise ValueError(f"{place} must match {schema['pattern']}, got {value!r}.")
    if "minimum" in schema and value < schema["minimum"]:
        raise ValueError(f"{place} must be at least {schema['minimum']}, got {value!r}.")
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            _check(item, schema["items"], f"{place}[{index}]")
    if isinstance(value, dict):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        missing = [key for key in schema.get("required", ()) if key not in value]
        unknown = [key for key in value if key not in properties and others is False]
        if missing or unknown:
            raise ValueError(f"{place}: missing {missing or 'nothing'}, not allowed {unknown or 'nothing'}.")
        for key, item in value.items():
            rule = properties.get(key, others)
            if isinstance(rule, dict):
                _check(item, rule, f"{place}.{key}")
