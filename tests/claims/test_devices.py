"""Claims about devices and what crosses between them. Nothing here needs a GPU: meta and fake tensors stand for it."""

import math

import torch
from claims.settled import settles
from torch._subclasses.fake_tensor import FakeTensorMode

from cs336kit import predict


@settles("default-device-cpu")
def test_default_device_cpu():
    return "cpu", torch.ones(2).device.type


@settles("move-to-gpu")
def test_move_to_gpu():
    # A fake tensor has a device like a real one and no memory behind it.
    with FakeTensorMode(allow_non_fake_inputs=True):
        moved, made = torch.ones(2).to("cuda:0"), torch.ones(2, device="cuda:0")
    return ("cuda:0", "cuda:0"), (str(moved.device), str(made.device))


@settles("cuda-memory-allocated-8192")
def test_cuda_memory_allocated_8192():
    # The allocator's blocks of 512 bytes; `make gpu` compares the kit's rule with memory_allocated on a GPU.
    def two_tensors(*shape):
        return 2 * predict.allocated_bytes(torch.empty(shape, device="meta").nbytes)

    def formula(*shape):
        return 2 * math.prod(shape) * 4

    return True, two_tensors(32, 32) == formula(32, 32) == 8192, two_tensors(1) == formula(1)


@settles("pcie-transfer-cost")
def test_pcie_transfer_cost():
    # Expensive: fifty times slower than the chip reads its own memory. PCIe 5.0 has 16 lanes of 32 GT/s in a code of
    # 128 bits in 130. NVLink-C2C, beside a GB200, has 900 GB/s in both ways together (NVIDIA, GB200 datasheet).
    pcie, c2c = 32e9 * 16 * 128 / 130 / 8, 900e9 / 2
    return (
        True,
        predict.accelerator("h100-sxm").bandwidth / pcie > 50,
        predict.accelerator("gb200").bandwidth / c2c > 50,
    )


@settles("cuda-availability-api")
def test_cuda_availability_api():
    count = torch.cuda.device_count()
    names = [torch.cuda.get_device_properties(i).name for i in range(count)]
    return (torch.cuda.is_available(), True), (count > 0, all(names))
