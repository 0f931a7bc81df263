"""Measure a GPU for the record: `python -m benchmarks.gpu [STAGE …]`, or a rehearsal on a CPU with --tiny --out.

Torch, numpy and this clone are enough. Each stage is a process of its own with a limit of seconds: one that fails, hangs or
leaves the GPU in a bad state takes no other with it. Its rows are in the record as it goes; what it could not do is in there
too. `--half 1` and `--half 2` are calls of at most nine minutes each.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks.gpu_rows import Run
from benchmarks.gpu_stages import STAGES
from cs336kit import measure
from cs336kit.files import replacing
from cs336kit.measure.recorded import RECORDS, check_record
from cs336kit.predict.checks import known

#: A rehearsal shrinks the work, and a busy machine takes long to start a process.
TINY_SECONDS = 120


def run_stage(name: str, run: Run, folder: Path) -> tuple[Path, int, list[str], bool]:
    """Run one stage and write what it measured; returns the file, the rows, what was skipped, and whether it went well.

    A stage that fails or is stopped keeps the rows that it had; an error is among the skipped.
    """
    rows, well = [], True
    start = time.perf_counter()

    def write(*unfinished: str) -> Path:
        return write_stage(
            folder, name, rows=rows, skipped=[*run.skipped, *unfinished], wall_seconds=time.perf_counter() - start,
            dry_run=run.tiny or run.device.type != "cuda",
        )  # fmt: skip

    try:
        for row in STAGES[name].measure(run):
            rows.append(row)
            print(f"  {said(row)}", flush=True)
            write(f"the rest of {name!r}: it was stopped")
    except Exception as error:  # what it has measured so far is worth keeping
        run.skip(f"the rest of {name!r} failed", f"{type(error).__name__}: {error}")
        well = False
    path = write()
    # Once: a stage that writes after every row would wait for it.
    check_record(json.loads(path.read_text(encoding="utf-8")))
    return path, len(rows), run.skipped, well


def said(row: dict) -> str:
    """A row in a line."""
    setting = " ".join(f"{key}={value}" for key, value in row["setting"].items())
    beside = f", {row['measured'] / row['predicted']:.4g} × predicted" if row["predicted"] else ""
    return f"{row['label']} {setting}: {row['measured']:.6g} {row['unit']}{beside}"


def run_apart(name: str, options: argparse.Namespace) -> bool:
    """Run one stage in a process of its own, which is stopped when its seconds are over; whether it went well."""
    limit = TINY_SECONDS if options.tiny else STAGES[name].seconds
    command = [sys.executable, "-m", "benchmarks.gpu", name.replace(" ", "-"), "--here", "--device", options.device]
    command += ["--out", str(options.out.resolve()), "--seed", str(options.seed), *["--tiny"] * options.tiny]
    try:
        return subprocess.run(command, cwd=Path(__file__).parents[1], timeout=limit, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"  stopped: {name!r} took more than its {limit} s; the rows above are in the record", flush=True)
        return False


def write_stage(
    folder: Path, stage: str, *, rows: list[dict], skipped: list[str], wall_seconds: float, dry_run: bool
) -> Path:
    """Add one stage to the record of the device in this machine; the other stages of the file stay.

    A file among the course's own records can only come from a CUDA device and a full run: anything else raises
    RuntimeError, so that no number there was made up. The file is replaced in one step; one of another set-up stays beside
    it as `.before`.
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
    same = {key: old.get(key) for key in head} == head
    stages = old["stages"] if same else {}
    today = datetime.date.today().isoformat()
    stages[stage] = {"date": today, "wall_seconds": round(wall_seconds, 3), "skipped": skipped, "rows": rows}
    data = {**head, "stages": stages}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        if old and not same:
            os.replace(path, path.with_suffix(".json.before"))
    return path


def _driver() -> str:
    version = Path("/proc/driver/nvidia/version")
    match = re.search(r"(\d+\.\d+(\.\d+)?)\s", version.read_text()) if version.exists() else None
    if match:
        return match.group(1)
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True, timeout=20).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


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
    parser.add_argument("--half", type=int, choices=(1, 2), help="the first or the second half of the stages")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of the random decoders")
    parser.add_argument("--here", action="store_true", help="in this process, one after the other, without limits")
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
    chosen = wanted or [name for name, stage in STAGES.items() if options.half in (None, stage.half)]
    return _run_all(chosen, device, options)


def _run_all(chosen: list[str], device: torch.device, options: argparse.Namespace) -> int:
    started, failed = time.monotonic(), []
    for place, name in enumerate(chosen, start=1):
        begun = time.monotonic()
        if options.here:
            path, rows, skipped, well = run_stage(name, Run(device, options.tiny, options.seed), options.out)
            print(f"{name}: {rows} rows in {time.monotonic() - begun:.0f} s → {path.name}", flush=True)
            for reason in skipped:
                print(f"  skipped {reason}", flush=True)
        else:
            print(f"[{place} of {len(chosen)}] {name}, after {time.monotonic() - started:.0f} s", flush=True)
            well = run_apart(name, options)
        if not well:
            failed.append(name)
    if not options.here:
        went = f", failed or stopped: {' '.join(map(repr, failed))}" if failed else ""
        print(f"{len(chosen)} stages in {time.monotonic() - started:.0f} s{went}; records in {options.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
