"""Tokens in a file that is larger than memory: written in chunks, read through a memory map."""

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cs336kit.files import replacing
from cs336kit.lm.runs import ProgressBar
from cs336kit.predict.checks import at_most, boolean, non_negative_int, positive_int

MAGIC = b"CS336TOK"
VERSION = 1
#: magic, version, bytes per token, vocabulary, number of tokens, Adler-32 of the tokens; then Adler-32 of all these.
FIELDS = struct.Struct("<8sIIQQI")
HEADER_BYTES = 64  # fixed, and a multiple of every token size, so that the mapped tokens are aligned
CHUNK = 1 << 20


class TokenFileError(ValueError):
    """The file is not a complete, undamaged token file."""


def token_dtype(vocab: int) -> np.dtype:
    """Return the smallest unsigned dtype for a vocabulary: uint8, uint16 or uint32, little-endian."""
    positive_int("vocab", vocab)
    for dtype in ("<u1", "<u2", "<u4"):
        if vocab <= 2 ** (8 * np.dtype(dtype).itemsize):
            return np.dtype(dtype)
    raise ValueError(f"vocab must be at most 2**32 = {2**32}, got {vocab}.")


class TokenFile:
    """A read-only view of a token file: `len(f)` tokens, `f[i:j]` reads only the pages that hold them.

    Layout: a header of 64 bytes (magic, version, bytes per token, vocabulary, length, checksum of the tokens,
    checksum of the header), then the tokens, little-endian, in the smallest dtype that holds the vocabulary.
    Opening checks only the header and the file's size, which costs the same for 1 kB and 10 TB; `verify()` reads all
    tokens and also finds a flipped bit among them. Raises TokenFileError (a ValueError) for a file that is truncated,
    damaged, or not a token file.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.vocab, self.length, self.checksum = _read_header(self.path)
        self.dtype = token_dtype(self.vocab)
        self.tokens: np.ndarray = np.zeros(0, self.dtype)  # an empty file cannot be mapped
        if self.length:
            self.tokens = np.memmap(self.path, dtype=self.dtype, mode="r", offset=HEADER_BYTES, shape=(self.length,))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the path, for example for a DataLoader worker: a memory map would be copied whole."""
        return TokenFile, (self.path.absolute(),)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> np.ndarray:
        return self.tokens[index]

    def __repr__(self) -> str:
        return f"TokenFile({self.path.name!r}: {self.length:,} tokens, vocabulary {self.vocab:,}, {self.dtype.name})"

    @property
    def nbytes(self) -> int:
        """Bytes of the file: 64 + tokens · bytes per token."""
        return HEADER_BYTES + self.length * self.dtype.itemsize

    def verify(self) -> None:
        """Read every token once and check checksum and vocabulary; TokenFileError says what is wrong."""
        checksum, largest = zlib.adler32(b""), 0
        with open(self.path, "rb") as file:  # plain reads: pages of a memory map would count as this process's memory
            file.seek(HEADER_BYTES)
            while chunk := file.read(CHUNK):
                checksum = zlib.adler32(chunk, checksum)
                largest = max(largest, int(np.frombuffer(chunk, self.dtype).max()))
        if checksum != self.checksum:
            raise TokenFileError(
                f"{self.path} is corrupt: its tokens have checksum {checksum:#010x}, its header says "
                f"{self.checksum:#010x}. Copy or write the file again."
            )
        if largest >= self.vocab:
            raise TokenFileError(
                f"{self.path} holds token {largest}, outside its vocabulary of {self.vocab}. Write it again."
            )

    @classmethod
    def write(cls, path: str | os.PathLike[str], tokens: Any, *, vocab: int, progress: bool = False) -> "TokenFile":
        """Write `tokens` (one array, or an iterable of arrays) and open the file.

        The file is written under another name, then renamed: a failure leaves `path` as it was, and if several processes
        write at once, the last one wins. A kill may leave path.writing-… behind.
        A token outside 0 … vocab - 1 raises ValueError and names its position.
        """
        path = Path(path)
        boolean("progress", progress)
        with replacing(path) as beside:
            _write_header(beside, vocab=vocab, length=0, checksum=zlib.adler32(b""), create=True)
            cls.append(beside, tokens, progress=progress)
        return cls(path)

    @classmethod
    def append(cls, path: str | os.PathLike[str], tokens: Any, *, progress: bool = False) -> "TokenFile":
        """Add `tokens` (one array, or an iterable of arrays, which is never held whole) and open the longer file.

        The tokens are flushed to disk before the header counts them, so an append that dies leaves a valid header and
        extra bytes at the end, which opening reports and the next append cuts off. One process at a time may append to a
        file.
        """
        path = Path(path)
        boolean("progress", progress)
        vocab, length, checksum = _read_header(path, unfinished=True)
        dtype = token_dtype(vocab)
        total, label = len(tokens) if _is_one_array(tokens) else 0, f"writing {path.name.partition('.writing-')[0]}"
        with open(path, "r+b") as file, ProgressBar(total, unit="tokens", label=label, shown=progress) as bar:
            file.truncate(HEADER_BYTES + length * dtype.itemsize)
            file.seek(0, os.SEEK_END)
            for piece in _pieces(tokens):
                outside = np.flatnonzero((piece < 0) | (piece >= vocab))
                if outside.size:
                    raise ValueError(
                        f"token {int(piece[outside[0]])} at position {length + int(outside[0])} is outside the vocabulary: "
                        f"with vocab={vocab} tokens run from 0 to {vocab - 1}."
                    )
                data = piece.astype(dtype, copy=False).tobytes()
                file.write(data)
                checksum = zlib.adler32(data, checksum)
                length += len(piece)
                bar.update(len(piece))
            file.flush()
            os.fsync(file.fileno())
        _write_header(path, vocab=vocab, length=length, checksum=checksum)
        return cls(path)

    @classmethod
    def zeros(cls, path: str | os.PathLike[str], *, vocab: int, length: int) -> "TokenFile":
        """Make a file of `length` zero tokens without writing them: a sparse file, which takes almost no disk space.

        Written under another name and renamed, like any other.
        """
        size = at_most("length", non_negative_int("length", length), 2**60) * token_dtype(vocab).itemsize
        checksum = size % 65521 << 16 | 1  # Adler-32 of zeros: low half 1, high half the number of bytes
        with replacing(Path(path)) as beside:
            _write_header(beside, vocab=vocab, length=length, checksum=checksum, create=True)
            os.truncate(beside, HEADER_BYTES + size)
        return cls(path)


def _is_one_array(tokens: Any) -> bool:
    """True for an array, a tensor, a TokenFile or a list of whole numbers; False for an iterable of those."""
    if isinstance(tokens, list | tuple | range):
        return bool(tokens) and isinstance(tokens[0], int | np.integer)
    return hasattr(tokens, "__len__") and hasattr(tokens, "dtype")


def _pieces(tokens: Any) -> Iterator[np.ndarray]:
    """Yield the tokens as one-dimensional arrays of at most CHUNK tokens."""
    for source in [tokens] if _is_one_array(tokens) else tokens:
        array = np.asarray(source.tokens if isinstance(source, TokenFile) else source)
        if array.ndim != 1:
            raise ValueError(
                f"tokens must come as one-dimensional arrays, got shape {array.shape}. Flatten them first."
            )
        if array.size and array.dtype.kind not in "iu":
            raise ValueError(f"tokens must be whole numbers, got {array.dtype}.")
        for start in range(0, len(array), CHUNK):
            yield array[start : start + CHUNK]


def _write_header(path: Path, *, vocab: int, length: int, checksum: int, create: bool = False) -> None:
    fields = FIELDS.pack(MAGIC, VERSION, token_dtype(vocab).itemsize, vocab, length, checksum)
    header = fields + struct.pack("<I", zlib.adler32(fields))
    with open(path, "wb" if create else "r+b") as file:
        file.write(header.ljust(HEADER_BYTES, b"\0"))
        file.flush()
        os.fsync(file.fileno())


def _read_header(path: Path, *, unfinished: bool = False) -> tuple[int, int, int]:
    """Return vocabulary, length and checksum after checking all that can be checked without reading the tokens."""
    with open(path, "rb") as file:
        header = file.read(HEADER_BYTES)
        size = os.fstat(file.fileno()).st_size
    if not header.startswith(MAGIC):
        raise TokenFileError(
            f"{path} is not a token file: it starts with {header[:8]!r}, a token file with {MAGIC!r}. "
            "Make one with TokenFile.write(path, tokens, vocab=…)."
        )
    if len(header) < HEADER_BYTES:
        raise TokenFileError(f"{path} is truncated: {size} bytes, and the header alone takes {HEADER_BYTES}.")
    fields = header[: FIELDS.size]
    _, version, itemsize, vocab, length, checksum = FIELDS.unpack(fields)
    if version != VERSION:
        raise TokenFileError(f"{path} has version {version} of the format; this kit reads version {VERSION}.")
    (header_checksum,) = struct.unpack_from("<I", header, FIELDS.size)
    if header_checksum != zlib.adler32(fields) or vocab < 1 or itemsize != token_dtype(vocab).itemsize:
        raise TokenFileError(f"{path} is corrupt: its header does not match its own checksum. Copy or write it again.")
    expected = HEADER_BYTES + length * itemsize
    if size < expected:
        raise TokenFileError(
            f"{path} is truncated: its header promises {length} tokens, {expected} bytes, and it has {size}. "
            "Copy or write the file again."
        )
    if size > expected and not unfinished:
        raise TokenFileError(
            f"{path} has {size - expected} bytes after its {length} tokens: a write was not finished. "
            "TokenFile.append(path, []) cuts them off."
        )
    return vocab, length, checksum
