"""Starts the ranks of `measure.run_ranks`: a separate process that imports torch once and then forks into the ranks.

Only Linux forks safely with torch imported; elsewhere each rank is a new process ("spawn") that imports torch for itself.

It is run by its path, so that it imports no package of the kit: FOLDER holds the function to run (`call`), and each rank
writes there its result (`result-0`), its error (`error-0`) and its output (`out-0`). It ends when its standard input ends.
"""

import gc
import multiprocessing
import os
import pickle
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any


def _forks() -> bool:
    """Whether ranks are forked: macOS can, but its own libraries may crash afterwards, and Windows cannot."""
    return sys.platform == "linux" and hasattr(os, "fork")


def _rank(rank: int, folder: Path, call: dict, listener: socket.socket | None, loaded: tuple | None) -> None:
    """One rank: joins the others, runs the function, and writes its result or its error into the folder.

    `listener`: the open port at which the ranks meet; without one, they meet in a file.
    """
    import torch
    import torch.distributed as dist

    # Capture both what Python prints and what other libraries write to file descriptor 1.
    sys.stdout = open(folder / f"out-{rank}", "a", buffering=1, encoding="utf-8")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)
    try:
        # The variables that torchrun sets, so that a function finds the same environment here.
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": call["ranks"], "LOCAL_WORLD_SIZE": call["ranks"]}
        os.environ |= {name: str(value) for name, value in names.items()}
        torch.set_num_threads(1)
        wait = timedelta(seconds=call["start"] + call["timeout"])
        store = _store(rank, folder, call["ranks"], listener, wait)
        backend, device = "gloo", None
        if call["device"] == "cuda":
            backend, device = "nccl", torch.device("cuda", rank)
            torch.cuda.set_device(device)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=call["ranks"], timeout=wait, device_id=device
        )
        dist.barrier()
        if rank == 0:
            _write(folder / "started", b"")
        function, arguments = loaded or _load(call)
        result = function(*arguments)
        if call["device"] == "cuda":
            torch.cuda.synchronize()
        _write(folder / f"result-{rank}", _dump(result))
        _leave(store, rank, call["ranks"])
    except BaseException:
        _write(folder / f"error-{rank}", pickle.dumps((time.time(), traceback.format_exc())))
        sys.stdout.flush()
        os._exit(1)
    sys.stdout.flush()


def _store(rank: int, folder: Path, count: int, listener: socket.socket | None, wait: timedelta) -> Any:
    """Where the ranks meet; the variables of torchrun name the port, if it is one."""
    import torch.distributed as dist

    if listener is None:
        # torch for Windows has no store that takes a port which is open already.
        store = dist.FileStore(str(folder / "store"), count)
        store.set_timeout(wait)
        return store
    port = listener.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # The port is open already, so that nobody else can take it.
    own = {"master_listen_fd": listener.detach()} if rank == 0 else {}
    return dist.TCPStore("127.0.0.1", port, count, rank == 0, wait, **own)


def _new_rank(rank: int, folder: Path, call: dict) -> None:
    """One rank in a process that was not forked: it ends as soon as the launcher has."""
    launcher = multiprocessing.parent_process()
    assert launcher is not None

    def watch() -> None:
        launcher.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _rank(rank, folder, call, None, None)


def _leave(store: Any, rank: int, count: int) -> None:
    """Wait until all are done, since a rank that exits breaks its connections; rank 0 keeps the store until the end."""
    import torch.distributed as dist

    store.set(f"done-{rank}", "")
    store.wait([f"done-{other}" for other in range(count)])
    dist.destroy_process_group()
    store.set(f"left-{rank}", "")
    if rank == 0:
        store.wait([f"left-{other}" for other in range(count)])


def _load(call: dict) -> tuple:
    return pickle.loads(call["function"])


def _look_up(function: object) -> None:
    """Look up the module attributes that a function names, so that lazy imports happen once and not in each rank."""
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    names = code.co_names if isinstance(code, CodeType) else ()
    for module in (known[name] for name in names if isinstance(known.get(name), ModuleType)):
        for name in names:
            # An error here occurs again in a rank, which reports it.
            with suppress(Exception):
                getattr(module, name)


def _dump(result: object) -> bytes:
    try:
        import cloudpickle as way
    except ImportError:
        way = pickle
    try:
        return way.dumps(result)
    except Exception as error:
        kind = type(result).__name__
        raise TypeError(f"the {kind} that the function returned cannot be sent back: {error}") from None


def _write(path: Path, content: bytes) -> None:
    """Write atomically, so that nobody reads an incomplete file."""
    unfinished = path.with_name(f"unfinished-{path.name}")
    unfinished.write_bytes(content)
    unfinished.rename(path)


def _forked(folder: Path, call: dict) -> list[Any]:
    """Start the ranks as copies of this process, which has imported torch for all of them."""
    # Imported objects stay: collecting garbage among them takes a sixth of the time, and copies their pages in each rank.
    gc.disable()
    import torch.multiprocessing

    gc.freeze()
    gc.enable()
    # Once for all ranks; with a GPU each rank loads for itself, since CUDA does not survive a fork.
    loaded = _load(call) if call["device"] == "cpu" else None
    if loaded:
        _look_up(loaded[0])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(i, folder, call, listener, loaded)) for i in range(call["ranks"])]
    for rank in ranks:
        rank.start()
    listener.close()
    return ranks


def _spawned(folder: Path, call: dict) -> list[Any]:
    """Start the ranks as new processes."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_new_rank, args=(i, folder, call)) for i in range(call["ranks"])]
    for rank in ranks:
        rank.start()
    return ranks


def _caller() -> Any:
    """A connection that is ready as soon as standard input has ended: the caller is gone, or wants the ranks to end."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    stdin = sys.stdin.fileno()

    def watch() -> None:
        with suppress(OSError):
            os.read(stdin, 1)
        writing.close()

    threading.Thread(target=watch, daemon=True).start()
    return reading


def main(folder: Path) -> None:
    call = pickle.loads((folder / "call").read_bytes())
    sys.path[:] = call["path"]
    ranks = running = _forked(folder, call) if _forks() else _spawned(folder, call)
    caller = _caller()
    while running:
        ready = connection.wait([caller, *(rank.sentinel for rank in running)])
        for rank in running:
            if rank.sentinel in ready:
                # A process closes its files shortly before it has an exit code.
                rank.join()
        running = [rank for rank in running if rank.sentinel not in ready]
        if caller in ready or any(rank.exitcode not in (None, 0) for rank in ranks):
            # Others may be failing, too: wait a moment for the first error to be written.
            for rank in ranks:
                rank.join(0.2)
            break
    # Before the others are killed: a rank that the system has killed, for lack of memory, must be told from them.
    for number, rank in enumerate(ranks):
        if rank.exitcode and not (folder / f"error-{number}").exists():
            _write(folder / f"exit-{number}", str(rank.exitcode).encode())
    for rank in ranks:
        rank.kill()
        rank.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
