import os
import pickle
import signal
import struct
import zlib

import numpy as np
import pytest
import torch
from a_full_disk import full_disk
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit.lm import TokenFile, TokenFileError, token_dtype

pytestmark = pytest.mark.torch


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data.tokens"


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32"), (2**32, "uint32")],
)
def test_dtype_follows_the_vocabulary(path, vocab, dtype):
    assert token_dtype(vocab).name == dtype
    file = TokenFile.write(path, [0, vocab - 1], vocab=vocab)
    assert file.dtype.name == dtype and file[:].tolist() == [0, vocab - 1]
    assert file.nbytes == os.path.getsize(path) == 64 + 2 * np.dtype(dtype).itemsize


def test_a_vocabulary_beyond_32_bits_is_refused():
    with pytest.raises(ValueError, match=r"at most 2\*\*32 = 4294967296, got 4294967297"):
        token_dtype(2**32 + 1)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 999), max_size=20), max_size=5))
def test_chunks_come_back_as_one_row(tmp_path_factory, chunks):
    path = tmp_path_factory.mktemp("chunks") / "data.tokens"
    TokenFile.write(path, [np.array(c, dtype=np.int64) for c in chunks[:2]], vocab=1000)
    file = TokenFile.append(path, (np.array(c, dtype=np.int32) for c in chunks[2:]))
    assert file[:].tolist() == [token for chunk in chunks for token in chunk]
    assert len(file) == len(file[:])
    file.verify()


def test_pieces_that_have_a_length_are_pieces(path):
    assert TokenFile.write(path, {"a": [1, 2], "b": [3]}.values(), vocab=10)[:].tolist() == [1, 2, 3]


def test_tensors_token_files_and_long_arrays(path, monkeypatch):
    monkeypatch.setattr("cs336kit.lm.tokens.CHUNK", 7)
    data = torch.arange(100) % 50
    file = TokenFile.write(path, data, vocab=50)
    copy = TokenFile.write(path.with_name("copy"), file, vocab=50)
    copy.verify()
    assert copy[:].tolist() == data.tolist() and "100 tokens" in repr(copy)


def test_writing_over_is_all_or_nothing(path):
    TokenFile.write(path, [1, 2, 3], vocab=10)
    with pytest.raises(
        ValueError, match="token 10 at position 4 is outside the vocabulary: with vocab=10 .* from 0 to 9"
    ):
        TokenFile.write(path, [np.array([1, 2]), np.array([3, 4, 10])], vocab=10)
    assert TokenFile(path)[:].tolist() == [1, 2, 3]
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(ValueError, match="token -1 at position 0"):
        TokenFile.write(path, np.array([-1]), vocab=10)


@pytest.mark.parametrize("tokens", [np.zeros(3), np.zeros((2, 2), int), [1.5, 2]])
def test_what_is_no_row_of_tokens_is_refused(path, tokens):
    with pytest.raises(ValueError, match="tokens must"):
        TokenFile.write(path, tokens, vocab=10)


def test_foreign_files(path):
    path.write_bytes(b"")
    with pytest.raises(TokenFileError, match="is not a token file"):
        TokenFile(path)
    np.save(path.with_suffix(".npy"), np.arange(4))
    with pytest.raises(TokenFileError, match=r"starts with b'\\x93NUMPY"):
        TokenFile(path.with_suffix(".npy"))
    with pytest.raises(FileNotFoundError):
        TokenFile(path.with_name("absent"))


def test_truncated_files_at_every_length(path):
    TokenFile.write(path, list(range(9)), vocab=1000)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(TokenFileError, match="truncated" if size >= 8 else "not a token file"):
            TokenFile(path)


def test_every_flipped_bit_is_found(path):
    TokenFile.write(path, list(range(9)), vocab=1000)
    whole = bytearray(path.read_bytes())
    meaningful = [*range(40), *range(64, len(whole))]
    for position in meaningful:
        for bit in range(8):
            harmed = bytearray(whole)
            harmed[position] ^= 1 << bit
            path.write_bytes(harmed)
            with pytest.raises(TokenFileError):
                TokenFile(path).verify()


def test_one_token_is_a_vocabulary(path):
    TokenFile.write(path, [0, 0], vocab=1).verify()


@pytest.mark.parametrize("token", [7, 9])
def test_verify_knows_the_vocabulary(path, token):
    TokenFile.write(path, [5, 6], vocab=7)
    data = bytearray(path.read_bytes())
    data[64] = token
    struct.pack_into("<I", data, 32, zlib.adler32(data[64:]))
    struct.pack_into("<I", data, 36, zlib.adler32(data[:36]))
    path.write_bytes(data)
    with pytest.raises(TokenFileError, match=f"token {token}, outside its vocabulary of 7"):
        TokenFile(path).verify()


def test_another_version_is_named(path):
    TokenFile.write(path, [1], vocab=7)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, 2)
    path.write_bytes(data)
    with pytest.raises(TokenFileError, match="version 2"):
        TokenFile(path)


def test_an_append_that_died_is_reported_and_cut_off(path):
    TokenFile.write(path, [1, 2], vocab=1000)
    with open(path, "ab") as file:
        file.write(b"\3\0\4")
    with pytest.raises(TokenFileError, match="3 bytes after its 2 tokens"):
        TokenFile(path)
    assert TokenFile.append(path, [])[:].tolist() == [1, 2]
    with pytest.raises(ValueError, match="position 3"):
        TokenFile.append(path, [3, 1000])
    assert TokenFile.append(path, [3])[:].tolist() == [1, 2, 3]


def test_the_map_cannot_be_written(path):
    file = TokenFile.write(path, [1, 2], vocab=10)
    with pytest.raises(ValueError, match="read-only"):
        file.tokens[0] = 5


def test_of_two_that_write_at_once_one_is_whole_and_neither_fails(tmp_path):
    path = tmp_path / "t.tokens"

    def other():  # begins and ends while the first one is at work
        yield np.ones(10, int)
        TokenFile.write(path, np.full(5, 2), vocab=3)
        assert path.exists() and TokenFile(path)[:].tolist() == [2] * 5
        yield np.ones(10, int)

    assert TokenFile.write(path, other(), vocab=3)[:].tolist() == [1] * 20
    TokenFile(path).verify()
    assert os.listdir(tmp_path) == ["t.tokens"]


@pytest.mark.parametrize("length", [2**61, 2**63, 2**64])
def test_zeros_that_fit_nowhere_leave_the_file_as_it_was(tmp_path, length):
    TokenFile.write(tmp_path / "t", np.arange(5), vocab=300)
    with pytest.raises(ValueError, match="length must be at most"):
        TokenFile.zeros(tmp_path / "t", vocab=300, length=length)
    assert TokenFile(tmp_path / "t")[:].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limit for the size of files")
def test_zeros_on_a_full_disk_leave_the_file_as_it_was(tmp_path):
    TokenFile.write(tmp_path / "t", np.arange(5), vocab=300)
    with full_disk(1000), pytest.raises(OSError):
        TokenFile.zeros(tmp_path / "t", vocab=300, length=10**6)
    assert TokenFile(tmp_path / "t")[:].tolist() == [0, 1, 2, 3, 4] and os.listdir(tmp_path) == ["t"]


def test_zeros_are_what_writing_zeros_makes(tmp_path):
    for length in (0, 1, 70_000):
        sparse = TokenFile.zeros(tmp_path / "sparse", vocab=300, length=length)
        TokenFile.write(tmp_path / "full", np.zeros(length, int), vocab=300)
        assert (tmp_path / "sparse").read_bytes() == (tmp_path / "full").read_bytes()
        sparse.verify()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
def test_ten_gigabytes_open_without_memory(path):
    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    TokenFile.zeros(path, vocab=256, length=10**10)
    before = resident()
    file = TokenFile(path)
    assert len(file) == 10**10 and int(file[10**10 - 1]) == 0
    assert resident() - before < 2**20


def test_progress_goes_to_the_log(path, capsys, monkeypatch):
    monkeypatch.setattr("cs336kit.lm.tokens.CHUNK", 5)
    TokenFile.write(path, list(range(10)), vocab=10, progress=True)
    assert capsys.readouterr().err.splitlines()[-1] == "writing data.tokens 10/10 tokens (100 %)"


def test_pickled_it_is_a_path(path, monkeypatch, tmp_path):
    TokenFile.write(path, list(range(1000)), vocab=1000)
    monkeypatch.chdir(path.parent)
    pickled = pickle.dumps(TokenFile(path.name))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(pickled) < 500 and pickle.loads(pickled)[7:9].tolist() == [7, 8]
