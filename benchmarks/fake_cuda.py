"""CUDA tensors without a GPU: a CUDA build of torch runs a forward pass on fake ones, and the hooks of autograd see it."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
#: Why there is nothing to see, or None where there is.
UNSEEN = (
    "torch is a CPU build here, on which CUDA tensors cannot even be faked: make cuda-rules brings a CUDA build"
    if torch.version.cuda is None
    else None
)


class WithoutDriver(TorchFunctionMode):
    """Torch asks the driver which attention kernel to take, and the data how many tokens an expert gets: say both.

    Which kernel takes what: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, can_use_flash_attention and
    can_use_mem_efficient_attention; what is done before: ATen/native/transformers/attention.cpp.
    """

    def __init__(self, experts: int):
        super().__init__()
        self.experts = experts

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            enabled, kind = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
            torch.set_autocast_enabled("cuda", False)  # as inside of torch's own function, once the inputs are cast
            try:
                if enabled:
                    args = [t.to(kind) for t in args]
                return self.attention(*args, **kwargs)
            finally:
                torch.set_autocast_enabled("cuda", enabled)
        if function is torch.Tensor.nonzero and kwargs.get("as_tuple"):
            (chosen,) = args
            visits = torch.zeros(chosen.numel() // self.experts, dtype=torch.long, device=chosen.device)
            return visits, visits
        if function is torch.Tensor.__bool__:
            return True  # what transformers asks the data: is this one sequence per row?
        return function(*args, **kwargs)

    @staticmethod
    def attention(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        h, value = q.shape[-1], v.shape[-1]
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, torch.full((), -torch.inf, dtype=q.dtype, device=q.device))
        scale = h**-0.5 if scale is None else scale
        half, alike = q.dtype != torch.float32, k.shape[1] == q.shape[1]
        if half and (alike or enable_gqa) and attn_mask is None and value == h <= 256:
            q, k, v = (F.pad(t, (0, -h % 8)) if h % 8 else t for t in (q, k, v))
            return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)[0][..., :h]
        if alike and not any(width % (8 if half else 4) for width in (h, value)):
            if attn_mask is not None:
                S = attn_mask.shape[-1]
                attn_mask = F.pad(attn_mask, (0, 8 - S % 8))[..., :S] if S % 8 else attn_mask
                attn_mask = attn_mask.expand(*q.shape[:3], S)
            given = q, k, v, attn_mask, True, dropout_p, is_causal
            return aten._scaled_dot_product_efficient_attention(*given, scale=scale)[0]
        rest = {"scale": scale, "enable_gqa": enable_gqa}
        return aten._scaled_dot_product_attention_math(q, k, v, attn_mask, dropout_p, is_causal, **rest)[0]


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
