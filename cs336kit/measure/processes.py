"""Real ranks, one process each on this machine, and the bytes that they send."""

import io
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from cs336kit._torch import operation_name
from cs336kit.measure.device import device as _device
from cs336kit.predict.checks import positive_int, positive_number

LAUNCHER = Path(__file__).with_name("_launch.py")
#: Seconds within which all ranks must have joined: they import torch meanwhile, and the machine may be busy.
START = 180


def run_ranks(
    function: Callable[..., Any], *arguments: Any, ranks: int = 2, timeout: float = 300, device: str | None = None
) -> list[Any]:
    """Run `function(*arguments)` on `ranks` real ranks, one process each, and return their results by rank.

    They have joined a process group of torch.distributed (gloo on a CPU; NCCL on CUDA, one GPU per rank), and each computes
    with one thread; the environment is that of torchrun (without its address and port where ranks are not forked, as on macOS
    and Windows). The function may come from a notebook cell. The output of the ranks is printed at the end, in their order.
    `device`: "cpu", "cuda", or None for CUDA if there are enough GPUs.
    Errors: if a rank fails, all are ended, and RuntimeError has its traceback; ranks that have not returned `timeout`
    seconds after all have joined are ended, and TimeoutError names them; ValueError for an invalid count or device.
    """
    count, limit = positive_int("ranks", ranks), positive_number("timeout", timeout)
    if not callable(function):
        raise TypeError(f"run_ranks runs a function on every rank, but got {function!r}.")
    call = {
        "function": pickled(function, arguments), "ranks": count, "timeout": limit, "start": START,
        "path": sys.path, "device": _backend(device, count),
    }  # fmt: skip
    # Windows removes no file that a process has open, and of a killed one that may be for a moment longer.
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "call").write_bytes(pickle.dumps(call))
        in_time = _launch(folder, limit)
        for rank in range(count):
            if (said := folder / f"out-{rank}").exists():
                sys.stdout.write(said.read_text(encoding="utf-8", errors="replace"))
        _raise_first(folder, count)
        back = {rank: folder / f"result-{rank}" for rank in range(count)}
        missing = [str(rank) for rank, path in back.items() if not path.exists()]
        if missing and not in_time:
            names = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
            raise TimeoutError(
                f"{names} of {count} did not return within {limit} s, and all were ended: does every rank call the same "
                "collectives in the same order? If the work takes longer, give timeout."
            )
        if missing:
            why = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip()
            raise RuntimeError(f"ranks {', '.join(missing)} of {count} ended without a result. {why}".strip())
        return [pickle.loads(path.read_bytes()) for path in back.values()]


def pickled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Pickle by value what a rank cannot import: a function from a notebook, or from a file that is not a module."""
    name = getattr(function, "__name__", "the function")
    try:
        import cloudpickle
    except ImportError:
        # Without cloudpickle, a rank has to import the function.
        if getattr(function, "__module__", "__main__") == "__main__":
            raise RuntimeError(
                f"{name} is defined in a notebook or a script, and only cloudpickle can send it to other processes: pip install "
                "cloudpickle, or put the function into a module."
            ) from None
        return pickle.dumps((function, arguments))
    home = sys.modules.get(getattr(function, "__module__", None) or "")
    own = home is not None and home.__name__ != "__main__" and not _importable(home)
    if own:
        cloudpickle.register_pickle_by_value(home)

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            # Operations hold pointers, and are found by their names.
            if name := operation_name(value):
                return attrgetter(name), (torch,)
            return super().reducer_override(value)

    content = io.BytesIO()
    try:
        Pickler(content).dump((function, arguments))
        return content.getvalue()
    except (TypeError, RuntimeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{name} cannot be sent to other processes with what it uses: {error}. Open files and locks inside it."
        ) from None
    finally:
        if own:
            cloudpickle.unregister_pickle_by_value(home)


def _importable(module: Any) -> bool:
    """Whether a rank finds this module on its path, which equals ours; that it is loaded here proves nothing."""
    folders, origin = None, None
    for name in accumulate(module.__name__.split("."), "{}.{}".format):
        if (found := PathFinder.find_spec(name, folders)) is None:
            return False
        folders, origin = found.submodule_search_locations, found.origin
    return origin == getattr(module, "__file__", None)


def _backend(device: str | None, count: int) -> str:
    """ "cuda" or "cpu"."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device is None:
        return "cuda" if there >= count else "cpu"
    kind = _device(device).type
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"ranks run on 'cpu' or 'cuda', not on {device!r}.")
    if kind == "cuda" and there < count:
        raise ValueError(f"ranks={count} need a GPU each, and this machine has {there}: give fewer, or device='cpu'.")
    return kind


def _launch(folder: Path, limit: float) -> bool:
    """Run the launcher and its ranks; return False if they had to be ended because time was up."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if loopback := {"linux": "lo", "darwin": "lo0"}.get(sys.platform):
        environment["GLOO_SOCKET_IFNAME"] = loopback
    with open(folder / "stderr", "wb") as stderr:
        launcher = subprocess.Popen(
            [sys.executable, str(LAUNCHER), str(folder)], stdin=subprocess.PIPE, stdout=stderr, stderr=stderr,
            env=environment, start_new_session=True,
        )  # fmt: skip
    end = time.monotonic() + START
    started = False
    try:
        while time.monotonic() < end:
            if not started and (started := (folder / "started").exists()):
                end = time.monotonic() + limit
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(0.05)
                return True
        return False
    finally:
        # The launcher leads a process group of its own, which contains every rank. Windows has no groups: there the launcher
        # ends its ranks because its input ends.
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
        if launcher.stdin is not None:
            launcher.stdin.close()
        launcher.wait()


def _raise_first(folder: Path, count: int) -> None:
    """Raise what ended the ranks: a rank that was killed, or the first error, from which later ones only follow."""
    for path in sorted(folder.glob("exit-*")):
        code = int(path.read_text())
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise RuntimeError(
            f"{path.name.replace('exit-', 'rank ')} of {count} was ended by {how}: it left no traceback."
        )
    errors = sorted((*pickle.loads(path.read_bytes()), path.name) for path in folder.glob("error-*"))
    if errors:
        _, text, file = errors[0]
        raise RuntimeError(f"{file.replace('error-', 'rank ')} of {count} failed, and all were ended.\n\n{text}")


# --- bytes that a rank really sends --------------------------------------------------------------------------------------

#: Offset of the bytes that a connection has sent, followed by those that were retransmitted: tcpi_bytes_sent and
#: tcpi_bytes_retrans of struct tcp_info (Linux 4.19 and later).
_BYTES_SENT = 200


def sent_bytes(function: Callable[[], object]) -> int:
    """Run a function and return the bytes that this rank sends meanwhile over its TCP connections, as the kernel counts them.

    For real ranks with gloo, whose messages have headers of 48 bytes each, which are counted, too. NCCL uses other
    transports. There is a barrier before and after. Errors: RuntimeError if the kernel does not report these bytes
    (Linux does).
    """
    torch.distributed.barrier()
    _settle()
    before = _connections()
    function()
    _settle()
    after = _connections()
    torch.distributed.barrier()
    return sum(count - before.get(name, 0) for name, count in after.items())


def _settle() -> None:
    """Wait until nothing more is being sent: gloo sends in a thread of its own."""
    last, now = None, _connections()
    while now != last:
        time.sleep(0.02)
        last, now = now, _connections()


def _connections() -> dict[str, int]:
    """Bytes sent by each connection of this process."""
    found = {}
    try:
        names = os.listdir("/proc/self/fd")
    except FileNotFoundError:
        raise RuntimeError("only Linux reports how many bytes a connection has sent.") from None
    for name in names:
        try:
            link = os.readlink(f"/proc/self/fd/{name}")
            if not link.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                    facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    sent, again = struct.unpack_from("<QQ", facts, _BYTES_SENT)
                    found[link] = sent - again
        except struct.error:
            raise RuntimeError(
                "this kernel does not report how many bytes a connection has sent (Linux 4.19 does)."
            ) from None
        except OSError:  # closed meanwhile
            continue
    return found
