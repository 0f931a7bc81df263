"""Ranks in one process beside real ranks: the same lines give the same tensors, and what they send is what was predicted."""

import datetime
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.tensor import Shard, distribute_tensor

from cs336kit import measure
from cs336kit._torch import tensors
from cs336kit.measure import _launch, processes
from cs336kit.measure.ranks import fake_ranks
from cs336kit.predict import ring_bytes

pytestmark = pytest.mark.torch

SIZE = 8


def own(rank):
    """What a rank starts from: 8 numbers of its own."""
    return torch.arange(float(SIZE)) + 10 * rank


def every_collective(x):
    """Name → what the ranks have after it, from a tensor of which each has its own values; plain torch throughout."""
    n, found = dist.get_world_size(), {}

    def named(name, tensor):
        found[name] = tensor
        return tensor

    dist.all_reduce(named("all-reduce", x.clone()))
    dist.all_reduce(named("greatest", x.clone()), op=dist.ReduceOp.MAX)
    dist.broadcast(named("broadcast", x.clone()), src=1)
    dist.reduce(named("reduce", x.clone()), dst=1)
    dist.all_gather_into_tensor(named("all-gather", torch.zeros(n * SIZE)), x)
    several = [torch.zeros(SIZE) for _ in range(n)]
    dist.all_gather(several, x)
    named("list", torch.cat(several))
    dist.reduce_scatter_tensor(named("reduce-scatter", torch.zeros(SIZE // n)), x)
    dist.all_to_all_single(named("all-to-all", torch.zeros(SIZE)), x)
    return found


def gather_and_scatter(x, root):
    n = dist.get_world_size()
    parts, mine = [torch.zeros(SIZE) for _ in range(n)], torch.zeros(SIZE // n)
    dist.gather(x, parts if root else None, dst=0)
    dist.scatter(mine, [part.clone() for part in x.chunk(n)] if root else None, src=0)
    return {"gather": torch.cat(parts), "scatter": mine}


def on_a_real_rank():
    x = own(dist.get_rank())
    with measure.collectives() as sent:
        found = every_collective(x) | gather_and_scatter(x, dist.get_rank() == 0)
    n = dist.get_world_size()
    big = torch.ones(n * 2**14)
    counted = {
        "all-reduce": measure.sent_bytes(lambda: dist.all_reduce(big)),
        "all-gather": measure.sent_bytes(lambda: dist.all_gather_into_tensor(big, torch.ones(2**14))),
        "reduce-scatter": measure.sent_bytes(lambda: dist.reduce_scatter_tensor(torch.ones(2**14), big)),
        "all-to-all": measure.sent_bytes(lambda: dist.all_to_all_single(torch.empty_like(big), big)),
    }
    print("rank", dist.get_rank())
    return found, [(each.kind, each.size, each.ranks) for each in sent], counted


def test_ranks_in_one_process_do_what_real_ranks_do(capfd):
    count = 2
    real = measure.run_ranks(on_a_real_rank, ranks=count, device="cpu")
    assert capfd.readouterr().out == "".join(f"rank {rank}\n" for rank in range(count))
    with measure.local_ranks(count) as ranks:
        x = ranks.each(own)
        found = every_collective(x) | gather_and_scatter(x, root=True)
        for name, tensor in found.items():
            for rank, value in enumerate(ranks.values(tensor)):
                # Other ranks leave what a root alone is given as they found it, which gloo does not promise.
                if name != "reduce" or rank == 1:
                    assert torch.equal(value, real[rank][0][name]), (name, rank)
        assert all([(each.kind, each.size, each.ranks) for each in ranks.sent] == sent for _, sent, _ in real)
    size = 4 * count * 2**14
    for _, _, counted in real:
        for kind, predicted in {kind: ring_bytes(kind, size, count) for kind in counted}.items():
            # gloo makes a reduce-scatter of a whole all-reduce, and puts 48 bytes before each of its messages.
            messages, rest = divmod(counted[kind] - predicted * (2 if kind == "reduce-scatter" else 1), 48)
            assert rest == 0 and 0 < messages <= 24 * count


def test_the_whole_of_each_collective_by_hand():
    with measure.local_ranks(2) as ranks:
        x = ranks.each(own)
        every_collective(x) | gather_and_scatter(x, root=True)
        kinds = ("all-reduce", "all-reduce", "broadcast", "reduce", "all-gather", "all-gather", "reduce-scatter")
        sizes = (32, 32, 32, 32, 64, 64, 32)
        assert [(each.kind, each.size, each.ranks) for each in ranks.sent] == [
            *((kind, size, 2) for kind, size in zip(kinds, sizes, strict=True)),
            ("all-to-all", 32, 2), ("gather", 64, 2), ("scatter", 32, 2),
        ]  # fmt: skip
        assert repr(ranks) == "2 local ranks that have run 10 collectives"
        head, *_, total = repr(ranks.sent).splitlines()
        assert head == "collective      ranks  bytes of the whole  bytes each rank sends"
        assert total.split() == ["total", f"{ranks.sent.total:,}"]
        assert ranks.sent._repr_html_().partition("bold")[2].partition(">")[2].startswith("total")


def test_collectives_under_their_other_names():
    """What torch's own layers call; a share is one rank's part of the whole."""
    part, whole = torch.zeros(4), torch.zeros(8)

    def together():
        with _coalescing_manager():
            dist.reduce_scatter_tensor(part, whole)
            dist.reduce_scatter_tensor(part.clone(), whole.clone())

    with fake_ranks(2):
        assert dist.get_rank() == 0
        group, name = dist.group.WORLD, dist.group.WORLD.group_name
        c10d, functional = torch.ops.c10d, torch.ops._c10d_functional
        for kind, size, call in (
            ("all-reduce", 32, lambda: functional.all_reduce(whole, "sum", name)),
            ("all-gather", 32, lambda: functional.all_gather_into_tensor(part, 2, name)),
            ("all-gather", 64, lambda: functional.all_gather_into_tensor_coalesced([part, part], 2, name)),
            ("all-gather", 32, lambda: c10d.allgather_into_tensor_coalesced_([whole], [part], group.boxed())),
            ("reduce-scatter", 32, lambda: functional.reduce_scatter_tensor(whole, "sum", 2, name)),
            ("reduce-scatter", 64, lambda: functional.reduce_scatter_tensor_coalesced([whole, whole], "sum", 2, name)),
            ("all-to-all", 32, lambda: functional.all_to_all_single(whole, [4, 4], [4, 4], name)),
            ("all-to-all", 32, lambda: c10d.alltoall_([part, part], [part, part], group.boxed())),
            ("broadcast", 16, lambda: functional.broadcast(part, 0, name)),
            ("broadcast", 16, lambda: functional.broadcast(part, src=0, group_name=name)),
            ("all-reduce", 32, lambda: functional.all_reduce_(whole, "sum", name)),
            ("all-reduce", 48, lambda: dist.all_reduce_coalesced([whole, part])),
            ("reduce-scatter", 32, lambda: dist.reduce_scatter(part, [part.clone(), part.clone()])),
            ("reduce-scatter", 64, together),
            ("send", 16, lambda: dist.send(part, 1)),
        ):
            with measure.collectives() as sent:
                found = call()
            assert [(each.kind, each.size, each.ranks) for each in sent] == [(kind, size, 2)], kind
            for tensor in tensors(found):
                functional.wait_tensor(tensor)
        with measure.collectives() as sent:
            dist.barrier()  # sends no tensor
            assert torch.zeros(2, dtype=torch.int64).dtype == torch.int64
        assert not sent


def test_what_a_dtensor_sends_is_seen_once():
    with fake_ranks(2):
        mesh = init_device_mesh("cpu", (2,))
        rows, columns = (distribute_tensor(torch.ones(4, 4), mesh, [Shard(dim)]) for dim in (0, 1))
        with measure.collectives() as sent:
            rows + columns
    # One of the two is laid out like the other.
    assert [each.ranks for each in sent] == [2] and sent[0].size in (32, 64)


def test_of_a_dtensor_the_part_of_a_rank_counts():
    with fake_ranks(4):
        whole = distribute_tensor(torch.ones(8, 4), init_device_mesh("cpu", (4,)), [Shard(0)])
        part = 4 * 2 * 4
        assert measure.storage_bytes(whole, whole + 1) == 2 * part
        # The first time torch finds the layout of the result by fake tensors of the whole.
        assert measure.peak_bytes(lambda: whole * 3) == measure.peak_bytes(lambda: whole * 3) == part
        parameter = nn.Parameter(whole)
        kept = measure.saved_activation_bytes(lambda: (parameter.exp() * parameter).sum())
        assert [(t.role, t.shape, t.bytes) for t in kept.tensors] == [
            ("activation", (2, 4), part), ("parameter", (2, 4), part)
        ]  # fmt: skip
        optimizer = torch.optim.Adam([parameter])
        parameter.grad = whole.clone()
        optimizer.step()
        assert dict(measure.state_bytes(optimizer)) == {"step": 4, "exp_avg": part, "exp_avg_sq": part}


def test_gradients_run_on_every_rank():
    with measure.local_ranks(3) as ranks:
        layer = nn.Linear(2, 1, bias=False)
        layer(ranks.each(lambda rank: torch.full((1, 2), float(rank)))).sum().backward()
        assert [value.tolist() for value in ranks.values(layer.weight.grad)] == [[[rank, rank]] for rank in (0, 1, 2)]
        dist.all_reduce(layer.weight.grad)
        assert [value.tolist() for value in ranks.values(layer.weight.grad)] == [[[3, 3]]] * 3
        # 8 bytes in three shares of 3 bytes, as large as the largest; each goes four times.
        assert [each.kind for each in ranks.sent] == ["all-reduce"] and ranks.sent.total == 4 * 3
    assert not dist.is_initialized()


def test_what_one_rank_alone_would_say_is_a_sentence():
    outside = torch.ones(2)
    with measure.local_ranks(2) as ranks:
        x = ranks.each(own)
        for call, says in (
            (lambda: dist.all_reduce(outside), "belongs to no rank"),
            (lambda: dist.send(x, 1), "use measure.run_ranks"),
            (lambda: dist.gather(x, None, dst=1), "write dst=0"),
            (lambda: ranks.each(lambda rank: rank), "needs a tensor"),
            (lambda: measure.local_ranks(2).__enter__(), "the other"),
        ):
            with pytest.raises((ValueError, RuntimeError), match=says):
                call()
        assert [value.tolist() for value in ranks.values(outside)] == [[1, 1]] * 2
    for count in (0, -1, 2.0, True, "2"):
        with pytest.raises(ValueError, match="positive whole number"), measure.local_ranks(count):
            pass


def fails_on_one():
    if dist.get_rank() == 1:
        raise KeyError("rank 1 broke here")
    dist.all_reduce(torch.ones(1))


def waits_for_nobody():
    print(f"rank {dist.get_rank()}", end=" of ")
    print(dist.get_world_size())
    os.write(1, b"and what another language says\n")
    if dist.get_rank() != 1:
        dist.barrier()


@pytest.mark.parametrize(
    ("function", "ranks", "timeout", "kind", "says", "printed"),
    [
        (fails_on_one, 2, 60, RuntimeError,
         r"(?s)^rank 1 of 2 failed.*in fails_on_one.*KeyError: 'rank 1 broke here'", ""),
        (waits_for_nobody, 2, 1.5, TimeoutError, "^rank 0 of 2 did not return within 1.5 s",
         "rank 0 of 2\nand what another language says\nrank 1 of 2\nand what another language says\n"),
    ],
)  # fmt: skip
def test_a_rank_that_does_not_come_back_ends_all_and_leaves_none(function, ranks, timeout, kind, says, printed, capfd):
    with pytest.raises(kind, match=says):
        measure.run_ranks(function, ranks=ranks, timeout=timeout, device="cpu")
    assert capfd.readouterr().out == printed
    psutil = pytest.importorskip("psutil")
    launched = [p for p in psutil.Process().children(recursive=True) if "_launch.py" in " ".join(p.cmdline())]
    assert not launched


OTHER_SYSTEM = Path(__file__).parents[2] / "other_system"


@pytest.fixture
def elsewhere(monkeypatch):
    """Ranks start and end as on Windows: no fork, no process groups, no signal that ends a process at once."""
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setenv("PYTHONPATH", f"{OTHER_SYSTEM}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def sums_up(tensor):
    print("rank", dist.get_rank(), "on", sys.platform)
    dist.all_reduce(tensor)
    return tensor, os.environ["WORLD_SIZE"]


@pytest.mark.proof
def test_ranks_start_and_meet_where_nothing_can_fork(elsewhere, capfd):
    found = measure.run_ranks(sums_up, torch.ones(2), ranks=3, device="cpu")
    assert [(tensor.tolist(), size) for tensor, size in found] == [([3.0, 3.0], "3")] * 3
    assert capfd.readouterr().out == "".join(f"rank {rank} on elsewhere\n" for rank in range(3))


def loops_on_one():
    while dist.get_rank() == 1:
        pass
    dist.barrier()


@pytest.mark.proof
def test_where_nothing_can_fork_a_rank_that_does_not_come_back_is_ended_too(elsewhere):
    with pytest.raises(TimeoutError, match="^ranks 0, 1 of 2 did not return within 0.5 s"):
        measure.run_ranks(loops_on_one, timeout=0.5, device="cpu")
    with pytest.raises(RuntimeError, match="(?s)^rank 1 of 2 failed.*KeyError: 'rank 1 broke here'"):
        measure.run_ranks(fails_on_one, device="cpu")


def test_where_nothing_can_fork_ranks_end_although_their_launcher_is_gone(elsewhere, tmp_path):
    psutil = pytest.importorskip("psutil")
    call = {"function": pickle.dumps((time.sleep, (600,))), "path": sys.path, "device": "cpu", "ranks": 2}
    (tmp_path / "call").write_bytes(pickle.dumps({**call, "start": 180, "timeout": 600}))
    command = [sys.executable, _launch.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as launcher:
        while not (tmp_path / "started").exists():
            assert launcher.poll() is None
            time.sleep(0.05)
        ranks = psutil.Process(launcher.pid).children(recursive=True)
        launcher.kill()
    assert len(ranks) >= 2
    _, left = psutil.wait_procs(ranks, timeout=30)
    assert not left


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "2"])
def test_a_count_that_cannot_be_is_a_sentence(count):
    with pytest.raises(ValueError, match="ranks must be a positive whole number"):
        measure.run_ranks(fails_on_one, ranks=count)


def test_what_cannot_be_run_is_a_sentence(monkeypatch):
    lock = __import__("threading").Lock()
    for call, kind, says in (
        (lambda: measure.run_ranks(3), TypeError, "runs a function"),
        (lambda: measure.run_ranks(lambda: lock), TypeError, "cannot be sent"),
        (lambda: measure.run_ranks(fails_on_one, device="meta"), ValueError, "'cpu' or 'cuda'"),
        (lambda: measure.run_ranks(fails_on_one, timeout=0), ValueError, "above 0"),
    ):
        with pytest.raises(kind, match=says):
            call()
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    alone = lambda: None  # noqa: E731
    alone.__module__ = "__main__"
    with pytest.raises(RuntimeError, match="pip install cloudpickle"):
        measure.run_ranks(alone)


def test_ranks_take_a_gpu_each_where_there_are_enough(monkeypatch):
    backend = processes._backend
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [backend(None, count) for count in (1, 2, 3)] == ["cuda", "cuda", "cpu"] and backend("cpu", 1) == "cpu"
    assert backend("cuda", 2) == "cuda" and backend("cpu", 3) == "cpu"
    with pytest.raises(ValueError, match="ranks=3 need a GPU each, and this machine has 2: give fewer"):
        backend("cuda", 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backend(None, 1) == "cpu"


def test_a_rank_that_has_closed_its_files_is_waited_for_until_it_has_an_exit_code(tmp_path, monkeypatch):
    """The kernel does both one after the other, and on a busy machine much may happen between them."""
    made = []

    class Ending:
        """Rank 0 has closed its files, and has its exit code when it is waited for; rank 1 runs on."""

        def __init__(self, target, args):
            self.exitcode, self.killed = None, False
            self.sentinel, self._end = os.pipe()
            made.append(self)

        def start(self):
            if self is made[0]:
                os.close(self._end)

        def join(self, timeout=None):
            if self is made[0]:
                self.exitcode = 1

        def kill(self):
            self.killed = True

    call = {"path": sys.path, "device": "cpu", "ranks": 2, "function": pickle.dumps((print, ()))}
    (tmp_path / "call").write_bytes(pickle.dumps(call))
    monkeypatch.setattr("torch.multiprocessing.get_context", lambda _: types.SimpleNamespace(Process=Ending))
    silent, _ = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(silent))
    _launch.main(tmp_path)
    assert made[1].killed and (tmp_path / "exit-0").read_text() == "1" and not (tmp_path / "exit-1").exists()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_rank_that_keeps_the_store_is_the_last_to_leave(rank, monkeypatch):
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    done = []
    store = types.SimpleNamespace(set=lambda key, _: done.append(key), wait=done.extend)
    _launch._leave(store, rank, 3)
    assert done[:5] == [f"done-{rank}", "done-0", "done-1", "done-2", f"left-{rank}"]
    assert done[5:] == ([] if rank else ["left-0", "left-1", "left-2"])


@pytest.mark.parametrize(
    ("files", "in_time", "kind", "says"),
    [
        ({"stderr": "no module named torch"}, True, RuntimeError,
         "^ranks 0, 1, 2 of 3 ended without a result. no module named torch$"),
        ({"result-1": 7}, False, TimeoutError, "^ranks 0, 2 of 3 did not return within 9 s"),
        ({"result-0": 7, "result-2": 7}, False, TimeoutError, "^rank 1 of 3 did not return within 9 s"),
        ({"error-0": (5.0, "second"), "error-2": (4.0, "first")}, True, RuntimeError, "(?s)^rank 2 of 3 failed.*first$"),
        ({"exit-2": -11}, True, RuntimeError, "^rank 2 of 3 was ended by SIGSEGV: it left no traceback"),
        # The system ends what takes too much memory; the others fail because of that.
        ({"exit-1": -9, "error-0": (4.0, "first")}, True, RuntimeError, "^rank 1 of 3 was ended by SIGKILL: it left no"),
        ({"exit-1": 3, "error-2": (4.0, "first")}, True, RuntimeError, "^rank 1 of 3 was ended by exit code 3"),
    ],
)  # fmt: skip
def test_what_ranks_leave_says_why_there_is_no_result(monkeypatch, capsys, files, in_time, kind, says):
    def launch(folder, limit):
        for name, content in {"stderr": "", "out-0": "zero\n", "out-2": "two\n", **files}.items():
            pickled = name.startswith(("result", "error"))
            (folder / name).write_bytes(pickle.dumps(content) if pickled else str(content).encode())
        return in_time

    monkeypatch.setattr(processes, "_launch", launch)
    with pytest.raises(kind, match=says):
        measure.run_ranks(own_rank, ranks=3, timeout=9, device="cpu")
    assert capsys.readouterr().out == "zero\ntwo\n"


@pytest.mark.parametrize(
    ("started", "ends", "in_time", "lasts"),
    [
        (True, 3.0, True, 3.0),
        (True, None, False, 9.0),  # seconds since all have met
        (False, 100.0, True, 100.0),
        (False, None, False, 180.0),  # seconds for meeting
    ],
)
@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_ranks_have_their_time_and_are_ended_after_it(monkeypatch, tmp_path, started, ends, in_time, lasts, system):
    clock, seen = [0.0], []

    class Launcher:
        pid = 12345

        def __init__(self, command, stdin, env, start_new_session, **how):
            assert start_new_session  # whose number is the launcher's: all of it is ended below
            self.stdin = types.SimpleNamespace(close=lambda: seen.append("closed"))
            seen.append(env)

        def wait(self, seconds=None):
            if seconds is not None:
                clock[0] += seconds
                if ends is None or clock[0] < ends:
                    raise subprocess.TimeoutExpired("ranks", seconds)

    monkeypatch.setattr(subprocess, "Popen", Launcher)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(os, "killpg", lambda group, signal: seen.append(group))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if started:
        (tmp_path / "started").touch()
    assert processes._launch(tmp_path, 9.0) == in_time
    environment, *ended = seen
    assert lasts <= clock[0] < lasts + 0.1 and ended == [12345, "closed"]
    # What ranks say to each other stays on this machine; on Windows, that is torch's own choice.
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment.get("GLOO_SOCKET_IFNAME") == {"linux": "lo", "darwin": "lo0"}.get(system)


@pytest.fixture
def rank_here(monkeypatch, tmp_path):
    """A rank in this process: `run(rank, call, loaded)` gives its environment and, in order, what it asks for."""
    asked, environment = [], {}
    for module, name in ((torch, "set_num_threads"), (torch.cuda, "set_device")):
        monkeypatch.setattr(module, name, lambda value, name=name: asked.append((name, value)))
    for module, name in ((torch.cuda, "synchronize"), (dist, "barrier"), (dist, "destroy_process_group")):
        monkeypatch.setattr(module, name, lambda name=name: asked.append((name,)))
    system = types.SimpleNamespace(
        environ=environment,
        dup2=lambda old, new: asked.append(("dup2", old == sys.stdout.fileno(), new)),
        _exit=lambda code: asked.append(("_exit", code)),
    )
    monkeypatch.setattr(_launch, "os", system)
    monkeypatch.setattr(sys, "stdout", sys.stdout)

    def store(host, port, ranks, keeps_it, wait, **own):
        asked.append(("store", port, ranks, keeps_it, wait, own))
        return types.SimpleNamespace(set=lambda key, value: None, wait=lambda keys: None)

    def group(way, store, rank, world_size, timeout, device_id):
        asked.append(("group", way, rank, world_size, timeout, device_id))

    monkeypatch.setattr(dist, "TCPStore", store)
    monkeypatch.setattr(dist, "init_process_group", group)
    listener = types.SimpleNamespace(getsockname=lambda: ("127.0.0.1", 4321), detach=lambda: "the open port")

    def run(rank, call, loaded):
        _launch._rank(rank, tmp_path, call, listener, loaded)
        return environment, asked

    return run


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_rank_asks_of_torch(monkeypatch, tmp_path, rank_here, device):
    def function(x):
        print("printed,", end=" ")
        print("too")
        written.append((tmp_path / f"out-{rank}").read_text())
        return x

    written, work, rank = [], (function, (3,)), 0 if device == "cpu" else 1
    monkeypatch.setattr(_launch, "_load", lambda call: work)
    call = {"ranks": 2, "start": 180, "timeout": 60, "device": device}
    environment, asked = rank_here(rank, call, work if device == "cpu" else None)
    # It waits for the others as long as all may take: to meet, and then to work. The first keeps the store.
    wait, gpu = datetime.timedelta(minutes=4), torch.device("cuda:1")
    assert asked == [("dup2", True, 1), ("set_num_threads", 1)] + {
        "cpu": [
            ("store", 4321, 2, True, wait, {"master_listen_fd": "the open port"}), ("group", "gloo", 0, 2, wait, None),
            ("barrier",), ("destroy_process_group",),
        ],
        "cuda": [
            ("store", 4321, 2, False, wait, {}), ("set_device", gpu), ("group", "nccl", 1, 2, wait, gpu), ("barrier",),
            ("synchronize",), ("destroy_process_group",),
        ],
    }[device]  # fmt: skip
    assert environment == {
        "RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4321",
    }  # fmt: skip
    # Line by line, as what a rank writes without Python.
    assert written == ["printed, too\n"] and pickle.loads((tmp_path / f"result-{rank}").read_bytes()) == 3
    assert (tmp_path / "started").exists() == (rank == 0)


def test_a_rank_that_fails_leaves_its_error_and_ends_as_python_does(tmp_path, rank_here):
    assert rank_here(1, {}, None) == ({}, [("dup2", True, 1), ("_exit", 1)])
    assert "KeyError: 'ranks'" in pickle.loads((tmp_path / "error-1").read_bytes())[1]


def test_a_result_that_cannot_be_sent_back_is_an_error_that_names_it(tmp_path, rank_here):
    call = {"ranks": 2, "start": 180, "timeout": 60, "device": "cpu"}
    _, asked = rank_here(0, call, (__import__("threading").Lock, ()))
    assert asked[-1] == ("_exit", 1) and not (tmp_path / "result-0").exists()
    said = pickle.loads((tmp_path / "error-0").read_bytes())[1]
    assert "the lock that the function returned cannot be sent back" in said


def ends_well(rank, folder):
    time.sleep(0.6 * rank)  # one after the other, longer than a launcher waits for those that fail together
    return 0


def fails_early(rank, folder):
    if rank == 1:
        (folder / "error-1").touch()
    return [3, 1][rank] if rank < 2 else takes_ten_seconds(rank, folder)


def takes_ten_seconds(rank, folder):
    time.sleep(10)
    return 0


def is_killed(rank, folder):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return takes_ten_seconds(rank, folder)


@pytest.mark.parametrize(
    ("work", "caller", "device", "left"),
    [
        (ends_well, "there", "cpu", {}),
        # Those that the launcher itself ends leave nothing: they are no reason.
        (fails_early, "there", "cpu", {"exit-0": "3", "error-1": ""}),
        (is_killed, "there", "cpu", {"exit-1": "-9"}),
        (takes_ten_seconds, "gone", "cuda", {}),
    ],
)
def test_the_launcher_ends_all_ranks_when_one_fails_or_its_caller_is_gone(
    monkeypatch, tmp_path, work, caller, device, left
):
    """What is to run is loaded once for all ranks, but for those that have a GPU."""

    def rank(number, folder, call, listener, loaded):
        assert (loaded is None) == (call["device"] == "cuda")
        assert listener.getsockname()[1] >= 1024  # one that the system has found free
        os._exit(work(number, folder))  # it leaves what pytest has open as it is

    call = {"function": pickle.dumps((work, ())), "path": sys.path, "device": device, "ranks": 3}
    (tmp_path / "call").write_bytes(pickle.dumps(call))

    class Listener(socket.socket):
        def close(self):
            time.sleep(0.3)  # the first rank may end before the launcher looks at any
            super().close()

    monkeypatch.setattr(socket, "socket", Listener)
    monkeypatch.setattr(_launch, "_rank", rank)
    reads, writes = os.pipe()
    with open(reads) as stdin, open(writes, "w") as stdout:
        monkeypatch.setattr(sys, "stdin", stdin)
        if caller == "gone":
            stdout.close()
        _launch.main(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "call"} == left


def test_what_a_module_imports_at_first_sight_is_imported_before_the_ranks_split():
    lazy, seen = types.ModuleType("lazy"), []
    lazy.__getattr__ = lambda name: seen.append(name) or 7
    scope = {"lazy": lazy, "other": object()}
    exec("def function(x): return lazy.parallel(other.thing, x)", scope)
    _launch._look_up(scope["function"])
    assert {"parallel", "thing"} <= {*seen} and "x" not in seen
    for without_code in (print, dist.ReduceOp, 7):
        _launch._look_up(without_code)


def test_torch_s_operators_are_sent_by_their_names():
    aten = torch.ops.aten
    several = (torch.ops, aten, aten.mm, aten.mm.default)
    found, _ = pickle.loads(processes.pickled(lambda: several, ()))
    assert all(one is other for one, other in zip(found(), several, strict=True))


def own_rank():
    return dist.get_rank()


def test_without_cloudpickle_a_function_is_found_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert processes.pickled(own_rank, (3,)) == pickle.dumps((own_rank, (3,)))


def test_what_a_rank_can_import_is_sent_by_its_name():
    for function in (measure.run_ranks, dist.get_rank, json.dumps):
        assert pickle.loads(processes.pickled(function, ()))[0] is function
    assert measure.run_ranks(dist.get_rank, device="cpu") == [0, 1]
    # What no path leads to is sent with its source.
    elsewhere = types.ModuleType("elsewhere")
    exec("def doubled(x): return 2 * x", vars(elsewhere))
    sys.modules["elsewhere"] = elsewhere
    try:
        data = processes.pickled(elsewhere.doubled, ())
    finally:
        del sys.modules["elsewhere"]
    assert pickle.loads(data)[0](21) == 42


def test_what_is_sent_is_counted_when_nothing_more_is_on_its_way(monkeypatch):
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    looks = iter([{"a": 1}, {"a": 2}, {"a": 2, "b": 1}, {"a": 2, "b": 1}])
    monkeypatch.setattr(processes, "_connections", lambda: next(looks))
    processes._settle()
    assert len(naps) == 3 and not [*looks]


def test_a_connection_that_is_new_has_sent_all_of_its_bytes_meanwhile(monkeypatch):
    looks = iter([{"old": 5, "closed": 9}, {"old": 8, "new": 4}])
    monkeypatch.setattr(dist, "barrier", lambda: None)
    monkeypatch.setattr(processes, "_settle", lambda: None)
    monkeypatch.setattr(processes, "_connections", lambda: next(looks))
    assert measure.sent_bytes(lambda: None) == (8 - 5) + 4


def test_what_was_sent_again_counts_once(monkeypatch):
    """The kernel's struct tcp_info has both numbers behind its first 200 bytes."""
    facts = bytes(200) + struct.pack("=QQ", 1000, 48)
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *which: facts)
    with socket.create_server(("127.0.0.1", 0)):
        assert {*processes._connections().values()} == {1000 - 48}


def test_sent_bytes_of_a_kernel_that_does_not_tell(monkeypatch):
    monkeypatch.setattr(processes, "_BYTES_SENT", 10_000)
    first, second = socket.socketpair(socket.AF_UNIX)
    with socket.create_server(("127.0.0.1", 0)), first, second:
        with pytest.raises(RuntimeError, match="this kernel does not report"):
            processes._connections()
        monkeypatch.setattr(os, "listdir", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
        with pytest.raises(RuntimeError, match="only Linux reports"):
            processes._connections()
