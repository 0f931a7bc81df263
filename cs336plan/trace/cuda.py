"""CUDA's rules without a GPU: fake tensors on "cuda", with what torch would ask a driver said here.

Torch's CUDA build chooses operations, types and what autograd saves by the tensors' device. It asks a driver which attention
kernel to take and whether autocast may cast, which is answered here as for a data center's GPU with the kernels that every
generation has, and it runs the backward pass on a stream, for which `cs336plan.trace.engine` stands in. What kernels need for
a moment is added from their sources (`cs336kit.predict.devices`). Left out: workspaces of cuBLAS, cuDNN and grouped products.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from cs336kit.predict.devices import DEVICES, Kernel
from cs336kit.predict.engine.operations import Storage
from cs336kit.predict.engine.operations import Tensor as Described

aten = torch.ops.aten
_SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_FLASH, _EFFICIENT = DEVICES["cuda"].kernels


def lacking() -> str | None:
    """Why nothing can be counted by CUDA's rules here, in a sentence; None where it can."""
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is a build without CUDA, on which its rules cannot be seen: "
            "with PyTorch's CUDA build they are counted, also without a GPU"
        )
    return None


def on_cuda(model: nn.Module) -> bool:
    """Whether this is a module on fake CUDA tensors."""
    first = next(model.parameters(), None)
    return first is not None and isinstance(first.data, FakeTensor) and first.device.type == "cuda"


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """The kernel that torch chooses, which asks the driver for it.

    Which kernel takes what: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, can_use_flash_attention and
    can_use_mem_efficient_attention; what is done before: ATen/native/transformers/attention.cpp.
    """
    h, value = q.shape[-1], v.shape[-1]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, torch.full((), -torch.inf, dtype=q.dtype, device=q.device))
    scale = h**-0.5 if scale is None else scale
    half, alike = q.dtype != torch.float32, k.shape[1] == q.shape[1]
    if half and (alike or enable_gqa) and attn_mask is None and value == h <= 256:
        q, k, v = (F.pad(t, (0, -h % 8)) if h % 8 else t for t in (q, k, v))
        found: Tensor = aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0]
        return found[..., :h]
    if alike and not any(width % (8 if half else 4) for width in (h, value)):
        if attn_mask is not None:
            S = attn_mask.shape[-1]
            attn_mask = F.pad(attn_mask, (0, 8 - S % 8))[..., :S] if S % 8 else attn_mask
            attn_mask = attn_mask.expand(*q.shape[:3], S)
        given = q, k, v, attn_mask, True, dropout_p, is_causal
        found = aten._scaled_dot_product_efficient_attention(*given, scale=scale)[0]
        return found
    rest = {"scale": scale, "enable_gqa": enable_gqa}
    found = aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal, **rest)[0]
    return found


def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """scaled_dot_product_attention as on CUDA."""
    enabled, kind = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", False)  # as inside of torch's own function, once the inputs are cast
    try:
        given = [t.to(kind) if enabled else t for t in (query, key, value)]
        return _kernel(*given, *args, **kwargs)
    finally:
        torch.set_autocast_enabled("cuda", enabled)


@contextlib.contextmanager
def rules() -> Iterator[None]:
    """What torch and transformers ask a driver is answered as for an H100, and attention takes the kernel that it would take."""
    from torch.amp import autocast_mode

    with contextlib.ExitStack() as stack:
        for where, name, answer in (
            (F, "scaled_dot_product_attention", attention),
            (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
            (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (autocast_mode, "is_autocast_available", lambda device: True),
        ):
            stack.enter_context(mock.patch.object(where, name, answer))
        yield


def _described(t: Tensor) -> Described:
    return Described(tuple(t.shape), _SHORT[t.dtype], Storage("", t.numel() * t.element_size()), False)


def _of_kernel(kernel: Kernel, backward: bool) -> Callable[..., tuple[int, ...]]:
    def needed(*args: Any, **kwargs: Any) -> tuple[int, ...]:
        q, k = args[1:3] if backward else args[:2]
        if backward:
            return kernel.backward(_described(q), _described(k))
        dropout = args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
        return () if dropout else kernel.forward(_described(q), _described(k))

    return needed


def _of_softmax(gradient: Tensor, output: Tensor, *args: Any, **kwargs: Any) -> tuple[int, ...]:
    return (output.numel() * output.element_size(),)


def _of_safe_softmax(scores: Tensor, *args: Any, **kwargs: Any) -> tuple[int, ...]:
    return scores.numel(), scores.numel() // scores.shape[-1], 4


def _of_embedding(gradient: Tensor, indices: Tensor, rows: int, *args: Any, **kwargs: Any) -> tuple[int, ...]:
    needed = DEVICES["cuda"].embedding
    return needed(indices.numel(), rows, gradient.shape[-1]) if needed is not None else ()


#: Operation → bytes of each tensor that its kernel has for a moment.
_NEEDED: dict[Any, Callable[..., tuple[int, ...]]] = {
    aten._scaled_dot_product_flash_attention.default: _of_kernel(_FLASH, False),
    aten._scaled_dot_product_flash_attention_backward.default: _of_kernel(_FLASH, True),
    aten._scaled_dot_product_efficient_attention_backward.default: _of_kernel(_EFFICIENT, True),
    aten._softmax_backward_data.default: _of_softmax,
    aten._safe_softmax.default: _of_safe_softmax,
    aten.embedding_dense_backward.default: _of_embedding,
}


class Workspaces(TorchDispatchMode):
    """Makes what a kernel has for a moment beside its results, so that a timeline sees it."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        needed = _NEEDED.get(operator)
        held = [] if needed is None else [
            torch.empty(size, dtype=torch.uint8, device=args[0].device) for size in needed(*args, **kwargs)
        ]  # fmt: skip
        result = operator(*args, **kwargs)
        held.clear()
        return result
