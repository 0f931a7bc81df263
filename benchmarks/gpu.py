"""Measure a GPU for the record: `python -m benchmarks.gpu [STAGE …]`, or a rehearsal on a CPU with --tiny --out.

Each stage runs alone, and its rows are in the record as soon as it ends; what it could not do is in there too.
"""

import argparse
import datetime
import json
import os
import re
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu_stages import STAGES, Run
from cs336kit import measure
from cs336kit.measure.recorded import RECORDS, check_record
from cs336kit.predict._common.checks import known


def run_stage(name: str, *, device: torch.device, tiny: bool, folder: Path) -> tuple[Path, int, list[str], bool]:
    """Run one stage and write what it measured; returns the file, the rows, what was skipped, and whether it went well.

    A stage that fails keeps the rows that it had, and its error is among the skipped.
    """
    run, rows, well = Run(device, tiny), [], True
    start = time.perf_counter()
    try:
        rows.extend(STAGES[name](run))
    except Exception as error:  # the other stages are still worth measuring
        run.skip(f"the rest of {name!r} failed", f"{type(error).__name__}: {error}")
        well = False
    wall = time.perf_counter() - start
    run.free()
    path = write_stage(
        folder, name, rows=rows, skipped=run.skipped, wall_seconds=wall, dry_run=tiny or device.type != "cuda"
    )
    return path, len(rows), run.skipped, well


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


def main(arguments: list[str] | None = None) -> int:
    """Run the stages named on the command line, all of them for none; 1 if one of them failed, 2 for a wrong question."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"some of: {', '.join(name.replace(' ', '-') for name in STAGES)}"
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: every size shrunk to a second's work")
    parser.add_argument(
        "--out", type=Path, default=RECORDS, help="folder of the record (default: the course's records)"
    )
    parser.add_argument("--minutes", type=float, help="start no further stage after this long, and say which are left")
    options = parser.parse_args(arguments)
    # "training-step" saves the quotes that "training step" needs in a shell.
    wanted = [name.replace("-", " ") for name in options.stages]
    try:
        for name in wanted:
            known("stage", name, STAGES)
        device = measure.device(options.device)
        if options.out.resolve() == RECORDS.resolve() and (options.tiny or device.type != "cuda"):
            raise RuntimeError("a rehearsal may not write among the records: give --out and another folder.")
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    started, failed, left = time.monotonic(), [], []
    for name in wanted or list(STAGES):
        if options.minutes is not None and time.monotonic() - started > 60 * options.minutes:
            left.append(name)
            continue
        begun = time.monotonic()
        path, rows, skipped, well = run_stage(name, device=device, tiny=options.tiny, folder=options.out)
        print(f"{name}: {rows} rows in {time.monotonic() - begun:.0f} s → {path.name}", flush=True)
        for reason in skipped:
            print(f"  skipped {reason}")
        if not well:
            failed.append(name)
    if left:
        print(f"not started, time is up: {' '.join(repr(name) for name in left)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
