"""Claims about token files, and about batches on their way to the device."""

import tempfile
import warnings
from pathlib import Path
from unittest import mock

import numpy
import psutil
import torch
from claims.settled import Cited, outcome_of, settles

from cs336kit import lm

TOKENS = numpy.array([1, 2, 3, 4], dtype=numpy.int32)
PINNING = "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"


def with_file(write, read):
    """What `read(path)` returns of a new file that `write(path)` wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npy"
        write(path)
        return read(path)


@settles("tofile-npy")
def test_tofile_npy():
    return "runs", with_file(TOKENS.tofile, lambda path: outcome_of(lambda: numpy.load(path)))


@settles("memmap-read")
def test_memmap_read():
    def read(path):
        return numpy.memmap(path, dtype=numpy.int32, mode="r").tolist()

    return TOKENS.tolist(), with_file(TOKENS.tofile, read), with_file(lambda path: numpy.save(path, TOKENS), read)


@settles("memmap-lazy")
def test_memmap_lazy():
    # A file of 10 GB of holes, which no disk has to store; memory may grow by a thousandth of it.
    size = 10 * 10**9

    def holes(path):
        with open(path, "wb") as file:
            file.truncate(size)

    def growth(path):
        before = psutil.Process().memory_info().rss
        int(numpy.memmap(path, dtype=numpy.uint8, mode="r")[-1])
        return psutil.Process().memory_info().rss - before

    return True, with_file(holes, growth) < size / 1000


@settles("llama-2.8tb")
def test_llama():
    # 1.4e12 tokens in the smallest dtype that holds the vocabulary: LLaMA's of 32,000, and Llama 3's of 128,256.
    llama, llama3 = (1.4e12 * numpy.dtype(lm.token_dtype(vocab)).itemsize for vocab in (32_000, 128_256))
    return 2.8e12, llama, llama3


@settles("cpu-tensors-pageable")
def test_cpu_tensors_pageable():
    return False, torch.ones(3).is_pinned()


@settles("pinned-async-copy")
def test_pinned_async_copy():
    return Cited(
        PINNING, "From pinned memory the copy runs beside the GPU's work; pageable memory is staged by the driver."
    )


@settles("pinned-two-copies")
def test_pinned_two_copies():
    return Cited(
        PINNING, "Pageable data is copied to a pinned buffer on the CPU's side first, and crosses the link once."
    )


@settles("dataloader-pin-memory")
def test_dataloader_pin_memory():
    # How many of two batches the loader asks to pin, with and without an accelerator in torch's eyes.
    def pinned(accelerator):
        pin = mock.Mock(return_value=torch.zeros(1))
        there = mock.patch("torch.accelerator.is_available", return_value=accelerator)
        with there, mock.patch.object(torch.Tensor, "pin_memory", pin), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without an accelerator the loader says that it pins nothing
            list(torch.utils.data.DataLoader([1.0, 2.0], pin_memory=True))
        return pin.call_count

    return 2, pinned(accelerator=True), pinned(accelerator=False)


@settles("iter-next-method")
def test_iter_next_method():
    return "runs", outcome_of(lambda: iter(torch.utils.data.DataLoader([1.0])).next())


@settles("cuda-async-true")
def test_cuda_async_true():
    return "runs", outcome_of(lambda: compile("x.cuda(async=True)", "notes", "exec"))


@settles("prefetch-condition")
def test_prefetch_condition():
    loader = [0, 1, 2, 3]
    batches, used = iter(loader), []
    ahead = next(batches)
    for i in range(len(loader)):
        used.append(ahead)
        if i + 2 != len(loader):
            ahead = next(batches, ahead)
    return loader, used
