"""Two writers of one checkpoint, links, permissions, and what a killed writer leaves."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from cs336kit.files import replacing, write_whole
from cs336kit.lm import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.torch

posix = pytest.mark.skipif(os.name == "nt", reason="needs locks and permissions of POSIX")


def python(script, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def saved(path, step):
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(step)
    save_checkpoint(path, model=model, step=step)


def step_of(path):
    model = nn.Linear(2, 2)
    step = load_checkpoint(path, model=model, restore_rng=False)["step"]
    assert bool((model.weight == step).all())
    return step


@pytest.mark.proof
@posix
def test_at_every_moment_there_is_a_complete_checkpoint_also_with_two_writers(tmp_path):
    """Two processes save to one path as fast as they can; what a third reads is always whole, and each save is one or none."""
    writer = """
        import sys
        import torch
        from torch import nn
        from cs336kit.lm import save_checkpoint
        path, mine, model, done, refused = sys.argv[1], int(sys.argv[2]), nn.Linear(300, 300), 0, 0
        print("ready", flush=True)
        sys.stdin.readline()
        for step in range(mine, mine + 100):
            with torch.no_grad():
                model.weight.fill_(step)
            try:
                save_checkpoint(path, model=model, step=step, keep=2)
                done += 1
            except BlockingIOError as error:
                assert "another process is writing this file" in str(error)
                refused += 1
        print(done, refused, flush=True)
    """
    path = tmp_path / "c.pt"
    model = nn.Linear(300, 300)
    save_checkpoint(path, model=model, step=0)
    writers = [python(writer, path, 1000 * number) for number in (1, 2)]
    assert all(process.stdout.readline() == "ready\n" for process in writers)
    for process in writers:
        process.stdin.write("go\n")
        process.stdin.flush()
    read = 0
    while any(process.poll() is None for process in writers):
        step = load_checkpoint(path, model=model, restore_rng=False)["step"]
        assert not step or bool((model.weight == step).all())
        read += 1
    counts = [tuple(map(int, process.stdout.readline().split())) for process in writers]
    assert read > 0 and all(sum(each) == 100 and each[0] > 0 for each in counts), counts
    assert {each.name for each in tmp_path.iterdir()} == {"c.pt", "c.pt.1"}


@posix
def test_while_one_process_saves_a_second_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "c.pt"
    saved(path, 1)
    with replacing(path, ".saving") as beside:
        beside.write_bytes(b"half")
        with pytest.raises(BlockingIOError, match="another process is writing this file at the moment.*Wait"):
            saved(path, 2)
        assert beside.read_bytes() == b"half" and step_of(path) == 1
        saved(tmp_path / "d.pt", 3)  # another file in the same folder
        torch.save({}, beside)
    saved(path, 4)
    assert step_of(path) == 4 and {each.name for each in tmp_path.iterdir()} == {"c.pt", "d.pt"}


@posix
def test_what_a_killed_writer_left_is_written_over(tmp_path):
    path = tmp_path / "c.pt"
    script = """
        import sys, time
        from pathlib import Path
        from cs336kit.files import replacing
        with replacing(Path(sys.argv[1]), ".saving") as beside:
            beside.write_bytes(b"half")
            print("half", flush=True)
            time.sleep(600)
    """
    process = python(script, path)
    assert process.stdout.readline() == "half\n"
    with pytest.raises(BlockingIOError):
        saved(path, 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "c.pt.saving").read_bytes() == b"half"
    saved(path, 2)
    assert step_of(path) == 2 and os.listdir(tmp_path) == ["c.pt"]


@posix
def test_a_link_that_stands_where_the_new_file_is_written_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "c.pt.saving").symlink_to(other)
    saved(tmp_path / "c.pt", 1)
    assert other.read_text() == "precious" and step_of(tmp_path / "c.pt") == 1
    assert not (tmp_path / "c.pt").is_symlink()


@posix
def test_a_path_that_is_a_link_stays_one_and_its_file_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    link, file = tmp_path / "latest.pt", tmp_path / "disk" / "run.pt"
    link.symlink_to(Path("disk") / "run.pt")
    for step in (1, 2):
        model = nn.Linear(2, 2)
        assert save_checkpoint(link, model=model, step=step, keep=2) == link
        assert link.is_symlink() and not file.is_symlink()
        assert [load_checkpoint(each, restore_rng=False)["step"] for each in (link, file)] == [step, step]
    assert load_checkpoint(file.with_name("run.pt.1"), restore_rng=False)["step"] == 1
    assert {each.name for each in tmp_path.iterdir()} == {"latest.pt", "disk"}


@posix
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_permissions_stay_while_it_is_written_and_afterward(tmp_path, mode):
    path = tmp_path / "c.pt"
    saved(path, 1)
    path.chmod(mode)
    with replacing(path, ".saving") as beside:
        assert stat.S_IMODE(beside.stat().st_mode) == mode | stat.S_IWUSR
        beside.write_bytes(path.read_bytes())
    assert stat.S_IMODE(path.stat().st_mode) == mode and step_of(path) == 1
    write_whole(path, "text")
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "text"


def test_without_locks_of_posix_everything_else_is_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("cs336kit.files.fcntl", None)
    path = tmp_path / "c.pt"
    (tmp_path / "c.pt.saving").write_text("left by a killed process")
    for step in (1, 2):
        saved(path, step)
    assert step_of(path) == 2 and os.listdir(tmp_path) == ["c.pt"]
