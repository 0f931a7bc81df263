"""What autograd keeps where devices differ: a device is a table, and the builder of a program asks it.

Each row is a rule of torch 2.13, seen by the hooks of saved tensors, on CUDA under fake tensors (no GPU is needed for that).
"""

from dataclasses import dataclass, field

from cs336kit.predict._common.checks import known


@dataclass(frozen=True, eq=False)
class Kernel:
    """A fused attention kernel: which inputs it takes, and what it keeps beside queries, keys, values and its output."""

    name: str
    #: element type of its inputs → what the head's width must be a multiple of
    types: dict[str, int]
    dropout: bool = False
    mask: bool = False
    #: whether it takes fewer key/value heads than query heads as they are
    grouped: bool = False
    #: whether it takes values of another width than keys
    value_widths: bool = False
    #: the widest head that it takes
    widest: int | None = None
    #: whether torch pads heads of another width for it, instead of leaving it
    pads: bool = False
    #: rows of its logsumexp (fp32) are rounded up to a multiple of this
    logsumexp_rows: int = 1
    #: a mask whose rows are no multiple of this is padded
    mask_columns: int = 1
    #: whether its output lies in memory as the queries do, else with the heads behind the sequence
    follows: bool = True
    #: bytes of its random state, and whether they are signed integers, which count as indices
    random_state: tuple[int, bool] = (0, False)


@dataclass(frozen=True, eq=False)
class Device:
    """What operations keep there."""

    name: str
    #: element type of a dropout mask; None: as wide as what is dropped
    dropout_mask: str | None
    #: element type of the input → that of a norm's mean and 1/deviation, where it is another one
    statistics: dict[str, str] = field(default_factory=dict)
    #: operations that autocast runs in fp32
    autocast_fp32: frozenset[str] = frozenset()
    #: operations that read fp16 and write fp32, without a copy in fp32
    widening: frozenset[str] = frozenset()
    #: fused attention in the order in which torch prefers it; where none takes the inputs, it is written out
    kernels: tuple[Kernel, ...] = ()

    def kernel(
        self, dtype: str, *, width: int, dropout: bool, mask: bool, grouped: bool, value_width: int | None = None
    ) -> Kernel | None:
        """The kernel that scaled_dot_product_attention takes, or None for the written-out one."""
        other = value_width is not None and value_width != width
        for kernel in self.kernels:
            if (
                dtype in kernel.types
                and (kernel.pads or width % kernel.types[dtype] == 0)
                and (kernel.widest is None or width <= kernel.widest)
                and dropout <= kernel.dropout
                and mask <= kernel.mask
                and grouped <= kernel.grouped
                and other <= kernel.value_widths
            ):
                return kernel
        return None


#: Source: torch 2.13, aten/src/ATen/native/transformers/sdp_utils_cpp.cpp and cuda/sdp_utils.cpp (which kernel takes what),
#: ATen/native/Dropout.cpp, ATen/autocast_mode.h. On Hopper and Blackwell torch may take cuDNN's kernel, which keeps as much
#: as flash attention does.
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
            autocast_fp32=frozenset({"softmax", "pow"}),
            widening=frozenset({"softmax"}),
            kernels=(
                Kernel(
                    "flash", {"bf16": 8, "fp16": 8}, dropout=True, grouped=True, widest=256, pads=True,
                    random_state=(24, False),
                ),
                Kernel(
                    "memory-efficient", {"fp32": 4, "bf16": 8, "fp16": 8}, dropout=True, mask=True, logsumexp_rows=32,
                    value_widths=True, mask_columns=8, follows=False, random_state=(16, True),
                ),
            ),
        ),
    )
}  # fmt: skip


def device(name: "str | Device") -> Device:
    """The device of a name, or a device of your own as it is; an unknown name raises ValueError."""
    return name if isinstance(name, Device) else known("device", name, DEVICES)
