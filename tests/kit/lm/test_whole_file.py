import errno
import os
from types import SimpleNamespace

import pytest
import torch

from cs336kit import files as _replacing
from cs336kit.files import replacing, write_whole
from cs336kit.lm.whole_file import keep_older, save_beside

pytestmark = pytest.mark.torch


def save(content, path):
    with replacing(path) as beside:
        save_beside(content, beside, path)


def test_saving_beside_leaves_the_path_alone(tmp_path):
    path = tmp_path / "c.pt"
    path.write_bytes(b"old")
    with replacing(path) as beside:
        save_beside({"x": torch.arange(3)}, beside, path)
        assert path.read_bytes() == b"old" and beside.parent == tmp_path
    assert torch.load(path)["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_write_is_explained_and_cleaned_up(tmp_path, monkeypatch, number):
    monkeypatch.setattr("cs336kit.lm.whole_file.open", _failing_open(number), raising=False)
    with pytest.raises(OSError, match="could not be written: .* after [0-9,]+ bytes") as caught:
        save({"x": torch.zeros(100_000)}, tmp_path / "c.pt")
    assert caught.value.errno == number
    assert ("Free space" in str(caught.value)) == (number != errno.EIO)
    assert os.listdir(tmp_path) == []


def test_all_is_in_the_file_when_it_is_flushed(tmp_path, monkeypatch):
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: sizes.append(os.fstat(descriptor).st_size))
    save({"x": torch.zeros(3)}, tmp_path / "c.pt")
    assert [os.path.getsize(tmp_path / "c.pt")] == sizes


def test_a_disk_that_reports_late_is_explained_too(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="could not be written: No space left .* Free space"):
        save({"x": torch.zeros(3)}, tmp_path / "c.pt")
    assert os.listdir(tmp_path) == []


def _failing_open(number):
    class Full:
        def __init__(self, path, *args, **options):
            self.file = open(path, *args, **options)  # noqa: SIM115 (closed in __exit__)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.file.close()

        def write(self, data):
            if self.file.tell() + len(data) > 50_000:
                raise OSError(number, os.strerror(number))
            return self.file.write(data)

        def flush(self):
            self.file.flush()

    return Full


def test_short_writes_are_continued(tmp_path, monkeypatch):
    class Short(_failing_open(errno.ENOSPC)):
        def write(self, data):
            return self.file.write(data[:1000])

        def fileno(self):
            return self.file.fileno()

    monkeypatch.setattr("cs336kit.lm.whole_file.open", Short, raising=False)
    save(torch.arange(10_000), tmp_path / "c.pt")
    assert torch.equal(torch.load(tmp_path / "c.pt"), torch.arange(10_000))


def test_the_last_k_keep_their_order(tmp_path):
    path = tmp_path / "c.pt"
    for number in range(5):
        keep_older(path, keep=3)
        (tmp_path / "new").write_text(str(number))
        os.replace(tmp_path / "new", path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"c.pt": "4", "c.pt.1": "3", "c.pt.2": "2"}


def test_a_text_is_written_whole_and_its_name_is_flushed(tmp_path, flushed):
    write_whole(tmp_path / "a.json", "new", flush=True)
    assert flushed == ["file", "rename", "folder"] and (tmp_path / "a.json").read_text() == "new"


def test_a_text_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "a.json").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a.json", "new", flush=True)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.json", "old")]


def test_where_there_are_no_hard_links_older_files_are_copies(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "c.pt"
    for content in ("1", "2", "3"):
        path.write_text(content)
        keep_older(path, keep=3)
    assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == {
        "c.pt": "3", "c.pt.1": "3", "c.pt.2": "2",
    }  # fmt: skip


def test_what_is_not_asked_for_is_not_flushed(tmp_path, flushed):
    write_whole(tmp_path / "a.json", b"new")
    assert flushed == ["rename"] and (tmp_path / "a.json").read_bytes() == b"new"


def test_windows_is_not_asked_to_open_a_folder(tmp_path, monkeypatch):
    def files_only(path, *more):
        if os.path.isdir(path):
            raise PermissionError("no folder")
        return os.open(path, *more)

    # An os of another name here alone: its true name would change what pathlib makes of paths.
    monkeypatch.setattr(_replacing, "fcntl", None)
    monkeypatch.setattr(_replacing, "os", SimpleNamespace(**{**vars(os), "name": "nt", "open": files_only}))
    with replacing(tmp_path / "a", flush=True) as beside:
        beside.touch()
    monkeypatch.setattr(_replacing.os, "name", "posix")
    with pytest.raises(PermissionError, match="no folder"), replacing(tmp_path / "a", flush=True) as beside:
        beside.touch()
    assert os.listdir(tmp_path) == ["a"]
