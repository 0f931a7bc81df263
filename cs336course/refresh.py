"""Execute lessons and store their outputs: ``cs336kit lessons refresh 02 [--fresh]``.

A cell whose new outputs equal the stored ones keeps the stored bytes, so a second refresh changes nothing. A ``measured``
cell keeps the outputs of its last run as long as its text has not changed; ``--fresh`` measures it again.
"""

import asyncio
import copy
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cs336course import cells as kind
from cs336course import kernel, pages
from cs336course.lessons import METADATA, every, find, read
from cs336course.outputs import WIDGET, difference
from cs336kit import journal as _journal
from cs336kit.files import write_whole

_SKIP = "skip-on-this-machine"


def refresh(path: Path, fresh: bool = False) -> bool:
    """Execute one notebook and store it; returns whether the file changed.

    Raises nbclient's CellExecutionError, and ValueError for a file that is not a notebook or was saved in the meantime.
    """
    before, stored = _read(path)
    new = normalize(copy.deepcopy(stored))
    _execute(new, path.parent)
    count = 0
    for old, cell in zip(_filled(stored), new.cells, strict=True):
        if cell.cell_type != "code":
            continue
        # A GPU's outputs are only shown live: the stored notebook is from a machine without one.
        keep = kind.unmet_need(cell) or kind.live(cell)
        if not keep and old.get("id") == cell.id and old.execution_count:
            if kind.measured(cell):
                keep = kind.from_a_run(old) and not fresh
            else:
                keep = difference(old.outputs, cell.outputs, kind.tolerance(cell)) is None
        if keep:
            cell.outputs = old.outputs
        if kind.measured(cell) and not keep:
            cell.metadata[kind.RUN] = kind.run_digest(cell)
        elif kind.measured(cell) and kind.RUN in old.metadata:
            cell.metadata[kind.RUN] = old.metadata[kind.RUN]
        count += 1
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
    pages.write(new, path, every(path.parent))
    return _replace(path, new, before)


def _filled(notebook: Any) -> list[Any]:
    """The cells that are not empty: JupyterLab leaves an empty one at the end."""
    return [cell for cell in notebook.cells if cell.source.strip()]


def normalize(notebook: Any) -> Any:
    """Make the metadata independent of who wrote the notebook and where: kernel, ids, tags."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = copy.deepcopy(METADATA)
    notebook.cells = _filled(notebook)
    kind.identify(notebook.cells)
    for cell in notebook.cells:
        told = kind.for_slide(cell)
        cell.metadata = ({"tags": kind.tags(cell)} if kind.tags(cell) else {}) | ({"slideshow": told} if told else {})
    return notebook


def _execute(notebook: Any, folder: Path) -> None:
    from nbclient import NotebookClient
    from traitlets.config import Config

    # One thread: sums over many elements depend on how many threads share them.
    # No journal: the stored outputs are those for a reader who has made no guess.
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", _journal.VARIABLE: _journal.OFF}
    environment = {**kernel.environment(), **alone, "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8"}
    # Progress is shown where JupyterLab says that somebody is watching, and is never stored.
    environment.pop("JPY_SESSION_NAME", None)
    for cell in notebook.cells:
        if cell.cell_type == "code" and kind.unmet_need(cell):
            cell.metadata.setdefault("tags", []).append(_SKIP)
    settings: dict[str, Any] = {"record_timing": False, "store_widget_state": False, "coalesce_streams": True}
    # The kernel talks only to this process, but would warn that others on this machine could listen.
    settings["extra_arguments"] = ["--log-level=ERROR"]
    settings |= {"kernel_name": "python3", "timeout": kind.HANGING, "skip_cells_with_tag": _SKIP}
    settings["config"] = Config(KernelManager=kernel.address())
    # All outputs are here by then, so do not wait for the kernel's own shutdown, which takes a second with torch.
    settings["shutdown_kernel"] = "immediate"
    stopped: list[int] = []

    class Stoppable(NotebookClient):
        """Let Ctrl-C stop everything: nbclient would only stop this kernel, and the next lesson would begin."""

        async def async_start_new_kernel(self, **kwargs: Any) -> None:  # nbclient has just set its own handler
            task: Any = asyncio.current_task()

            with suppress(RuntimeError):  # not in the main thread, or on Windows, where Ctrl-C stops everything anyway
                task.get_loop().add_signal_handler(signal.SIGINT, lambda: stopped.append(task.cancel()))
            await super().async_start_new_kernel(**kwargs)

    try:
        Stoppable(notebook, resources={"metadata": {"path": str(folder)}}, **settings).execute(env=environment)
    except (Exception, asyncio.CancelledError):
        if stopped:
            raise KeyboardInterrupt from None
        raise
    # The kernel has reported its own version into the metadata.
    notebook.metadata = copy.deepcopy(METADATA)
    for cell in notebook.cells:
        if _SKIP in kind.tags(cell):
            cell.metadata["tags"].remove(_SKIP)
        for output in cell.get("outputs", []):
            # A stored widget would refer to a model that is gone; its still picture stays.
            output.get("data", {}).pop(WIDGET, None)
            output.pop("transient", None)


def store(names: list[str], fresh: bool = False) -> int:
    """Refresh the lessons with these numbers (all for none) and print what happened.

    Returns 1 if one is not stored, or is stored and breaks rules of the course, else 0.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError

    from cs336course.structure import problems

    failed, breaking = set(), []
    for path in find(names):
        start = time.perf_counter()
        try:
            changed = refresh(path, fresh)
        except Exception as error:
            failed.add(path)
            why = ", because a cell failed\n" if isinstance(error, CellExecutionError) else ": "
            print(f"{path.name}: not stored{why}{error}")
            continue
        print(f"{path.name}: {'stored' if changed else 'unchanged'} ({time.perf_counter() - start:.0f} s)")
        broken = problems(nbformat.read(path, as_version=4), path)
        breaking += [path.name] * bool(broken)
        for problem in broken:
            print(f"  {problem}")
    for path, _ in every():
        if path not in failed and rewrite(path):
            print(f"{path.name}: times and links were updated")
    if breaking:
        print(f"rules that are listed above are broken in {', '.join(breaking)}: mend the lesson, and refresh it again")
    return int(bool(failed or breaking))


def rewrite(path: Path) -> bool:
    """Write a lesson's generated parts (times, links, map, slides, folds) anew, without running it; whether it changed."""
    before, notebook = _read(path)
    pages.write(notebook, path, every(path.parent))
    return _replace(path, notebook, before)


def retitle(path: Path, told: dict[str, dict[str, str]]) -> bool:
    """Store titles and notes of slides in the cells with these ids, an empty one to remove it; whether the file changed."""
    before, notebook = _read(path)
    for cell in notebook.cells:
        cell.metadata.setdefault("slideshow", {}).update(told.get(cell.id, {}))
    pages.write(notebook, path, every(path.parent))
    return _replace(path, notebook, before)


def _read(path: Path) -> tuple[bytes, Any]:
    """The file and the notebook in it."""
    import nbformat

    read(path)
    before = path.read_bytes()
    return before, nbformat.reads(before.decode("utf-8-sig"), as_version=4)


def _replace(path: Path, notebook: Any, before: bytes) -> bool:
    """Store a notebook; returns whether the file changed. ValueError if it is no longer as it was `before`."""
    import nbformat

    data: bytes = (nbformat.writes(notebook).rstrip("\n") + "\n").encode()
    if path.read_bytes() != before:
        raise ValueError(f"{path} was saved by somebody else in the meantime, and was left as it is: run this again")
    if data != before:
        write_whole(path, data)
    return data != before
