"""What autograd saves, where devices differ: a device is a table that the builder of a program reads.

Each row is a rule of torch 2.13. What is saved was observed with saved-tensor hooks, on CUDA with fake tensors (which need
no GPU). No hook shows the temporary tensors of CUDA's kernels (`forward`, `backward`, `embedding`): they are computed
from the kernels' sources, and with them an H100 and an H200 requested what `predict.step_allocation` says, to the byte,
in 192 steps (tests/benchmarks/test_records.py). Partial sums of columns (gradients of biases and norms) and cuDNN's workspaces
are left out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cs336kit.predict.checks import boolean, known

if TYPE_CHECKING:
    from cs336kit.predict.engine.operations import Tensor


def _nothing(q: "Tensor", k: "Tensor") -> tuple[int, ...]:
    return ()


def _flash_backward(q: "Tensor", k: "Tensor") -> tuple[int, ...]:
    """The queries' gradient in fp32, one number for each row, and gradients of keys and values for every query head."""
    B, A, S, h = q.shape
    rows = -(-S // 128) * 128
    wide = 256 if h > 192 else -(-h // 32) * 32
    workspace = (4 * B * A * rows, 4 * B * A * rows * wide)
    expanded = k.bytes // k.shape[1] * A
    return workspace + ((expanded, expanded) if k.shape[1] < A else ())


#: Multiprocessors of the device whose rules these are (H100, H200).
MULTIPROCESSORS = 132


def _flash_forward(q: "Tensor", k: "Tensor") -> tuple[int, ...]:
    """Few rows of queries leave the device idle: keys are divided among parts, each with sums and an output in fp32."""
    B, A, S, h = q.shape
    rows, blocks = B * A * -(-S // 64), -(-k.shape[2] // (256 if h <= 64 else 128 if h <= 128 else 64))
    at_once = 2 * MULTIPROCESSORS
    if rows >= 0.8 * at_once:
        return ()
    # Another part is no use where the longest has as many blocks as before.
    counts = [n for n in range(1, min(128, at_once, blocks) + 1) if n == 1 or -(-blocks // n) != -(-blocks // (n - 1))]
    filled = {n: rows * n / at_once / -(-rows * n // at_once) for n in counts}
    parts = next(n for n in counts if filled[n] >= 0.85 * max(filled.values()))
    return (4 * parts * B * A * S, 4 * parts * B * A * S * -(-h // 32) * 32) if parts > 1 else ()


def _efficient_backward(q: "Tensor", k: "Tensor") -> tuple[int, ...]:
    """In fp32, gradient times output and its sums over rows; in half precision, the sums and the queries' gradient in fp32."""
    B, A, S, h = q.shape
    sums = 4 * B * A * S
    return (sums * h, sums, sums) if q.dtype == "fp32" else (sums * h, sums)


def _embedding_backward(tokens: int, rows: int, width: int) -> tuple[int, ...]:
    """Few tokens are added in place; more are sorted, and added up in parts of ten in fp32."""
    if tokens <= 3072:
        return ()
    parts = tokens // 10 + min(tokens, rows)
    return (8 * tokens, 8 * tokens, 8 * parts, 4 * parts * (-(-width // 32) * 32))


@dataclass(frozen=True, eq=False)
class Kernel:
    """A fused attention kernel: which inputs it takes, and what it saves besides queries, keys, values and its output."""

    name: str
    #: element type of its inputs → the head's width must be a multiple of this
    types: dict[str, int]
    dropout: bool = False
    mask: bool = False
    #: whether it takes fewer key/value heads than query heads without repeating them
    grouped: bool = False
    #: whether it takes values of another width than keys
    value_widths: bool = False
    #: the widest head that it takes
    widest: int | None = None
    #: whether torch pads heads of another width for it, instead of taking another kernel
    pads: bool = False
    #: rows of its logsumexp (fp32) are rounded up to a multiple of this
    logsumexp_rows: int = 1
    #: a mask is padded until its rows are a multiple of this
    mask_columns: int = 1
    #: whether its output has the memory layout of the queries; else the heads come after the sequence
    follows: bool = True
    #: bytes of each tensor of its random state, and whether these are signed integers, which count as indices and lie in the
    #: host's memory
    random_state: tuple[tuple[int, ...], bool] = ((), False)
    #: queries and keys → bytes of each temporary tensor of its forward pass, without dropout
    forward: Callable[["Tensor", "Tensor"], tuple[int, ...]] = _nothing
    #: queries and keys → bytes of each temporary tensor of its backward pass
    backward: Callable[["Tensor", "Tensor"], tuple[int, ...]] = _nothing


@dataclass(frozen=True, eq=False)
class Device:
    """What operations save on a device."""

    name: str
    #: element type of a dropout mask; None: that of what is dropped
    dropout_mask: str | None
    #: element type of the input → that of a norm's mean and 1/deviation, if it is another one
    statistics: dict[str, str] = field(default_factory=dict)
    #: operations that autocast runs in fp32
    autocast_fp32: frozenset[str] = frozenset()
    #: operations that read fp16 and write fp32, without a copy in fp32
    widening: frozenset[str] = frozenset()
    #: whether the backward pass of a softmax first makes a tensor of its gradient times its output
    softmax_product: bool = False
    #: fused attention kernels in the order in which torch prefers them; if none takes the inputs, attention is written out
    kernels: tuple[Kernel, ...] = ()
    #: tokens, rows of the table, width → bytes of each temporary tensor in the backward pass of a look-up
    embedding: Callable[[int, int, int], tuple[int, ...]] | None = None
    #: whether torch's optimizers work on all tensors at once by default
    foreach: bool = False

    def __post_init__(self) -> None:
        boolean("foreach", self.foreach)
        boolean("softmax_product", self.softmax_product)

    def kernel(
        self,
        dtype: str,
        *,
        width: int,
        dropout: bool,
        mask: bool,
        grouped: bool,
        value_width: int | None = None,
    ) -> Kernel | None:
        """The kernel that scaled_dot_product_attention takes, or None if it writes attention out.

        Fewer key/value heads are `grouped`: the function is told so (enable_gqa).
        """
        other = value_width is not None and value_width != width
        for kernel in self.kernels:
            if (
                dtype in kernel.types
                and (kernel.pads or not any(w % kernel.types[dtype] for w in (width, value_width or width)))
                and (kernel.widest is None or width <= kernel.widest)
                and dropout <= kernel.dropout
                and mask <= kernel.mask
                and grouped <= kernel.grouped
                and other <= kernel.value_widths
            ):
                return kernel
        return None


#: Source: torch 2.13, aten/src/ATen/native/transformers/sdp_utils_cpp.cpp and cuda/sdp_utils.cpp (which kernel takes what),
#: cuda/flash_attn/flash_api.cpp (num_splits_heuristic, mha_bwd) and cuda/attention_backward.cu there; ATen/autocast_mode.h;
#: in ATen/native: Dropout.cpp, cuda/SoftMax.cu (softmax_backward_cuda_out), cuda/Embedding.cu and EmbeddingBackwardKernel.cu.
#: On Hopper and Blackwell torch may take cuDNN's kernel, which keeps as much as flash attention does.
DEVICES = {
    device.name: device
    for device in (
        Device(
            "cpu",
            dropout_mask=None,
            kernels=(Kernel("flash for CPU", {"fp32": 1, "bf16": 1, "fp16": 1}, mask=True, grouped=True),),
        ),
        Device(
            "cuda",
            dropout_mask="bool",
            statistics={"bf16": "fp32", "fp16": "fp32"},
            autocast_fp32=frozenset({"layer_norm", "pow", "softmax"}),
            widening=frozenset({"softmax"}),
            softmax_product=True,
            embedding=_embedding_backward,
            foreach=True,
            kernels=(
                Kernel(
                    "flash", {"bf16": 8, "fp16": 8}, dropout=True, grouped=True, widest=256, pads=True,
                    random_state=((16, 8), False), forward=_flash_forward, backward=_flash_backward,
                ),
                Kernel(
                    "memory-efficient", {"fp32": 4, "bf16": 8, "fp16": 8}, dropout=True, mask=True, logsumexp_rows=32,
                    value_widths=True, mask_columns=8, follows=False, random_state=((16,), True), backward=_efficient_backward,
                ),
            ),
        ),
    )
}  # fmt: skip

#: The kernel of the FlashAttention library and of serving engines, which torch's function does not call: it supports windows,
#: capped scores, slopes and sinks without a mask in memory. Source: Dao-AILab/flash-attention, flash_attn_interface.py
#: (window_size, softcap, alibi_slopes); sinks: vLLM. What it saves is taken from torch's copy of it, and not measured.
FLASH = replace(DEVICES["cuda"].kernels[0], mask=True, value_widths=True, follows=False)


def device(name: "str | Device") -> Device:
    """The device called `name`; a device of your own is returned as it is, and an unknown name raises ValueError."""
    return name if isinstance(name, Device) else known("device", name, DEVICES)
