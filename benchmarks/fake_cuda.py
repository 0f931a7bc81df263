"""CUDA tensors without a GPU: a CUDA build of torch runs a forward pass on fake ones, and the hooks of autograd see it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from cs336plan.trace.cuda import attention

#: Why there is nothing to see, or None where there is.
UNSEEN = (
    "torch is a CPU build here, on which CUDA tensors cannot even be faked: make cuda-rules brings a CUDA build"
    if torch.version.cuda is None
    else None
)


class WithoutDriver(TorchFunctionMode):
    """Torch asks the driver which attention kernel to take, and the data how many tokens an expert gets: say both."""

    def __init__(self, experts: int):
        super().__init__()
        self.experts = experts

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            return attention(*args, **kwargs)
        if function is torch.Tensor.nonzero and kwargs.get("as_tuple"):
            (chosen,) = args
            visits = torch.zeros(chosen.numel() // self.experts, dtype=torch.long, device=chosen.device)
            return visits, visits
        if function is torch.Tensor.__bool__:
            return True  # what transformers asks the data: is this one sequence per row?
        return function(*args, **kwargs)


@contextlib.contextmanager
def autocast(dtype: torch.dtype) -> Iterator[None]:
    """torch.autocast("cuda"), which switches itself off where there is no driver."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)


@contextlib.contextmanager
def cuda(experts: int = 0) -> Iterator[None]:
    """Fake tensors and torch's choices made for it, or a GPU with the kernels that every generation has."""
    if not torch.cuda.is_available():
        with FakeTensorMode(), WithoutDriver(max(1, experts)):
            yield
    else:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            yield
