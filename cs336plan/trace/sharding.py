"""What one rank holds where ranks share gradients (ZeRO 2) or parameters, too (ZeRO 3, torch's fully_shard).

ZeRO 3 is torch's own `fully_shard` around each layer and around the whole, beside a process group that answers at once without
sending: what it gathers, copies, reduces and keeps for a while is what it does on real ranks (`benchmarks.sharded`). With the
`fsdp_plan` of transformers, embeddings and head are groups of their own, which is not counted. ZeRO 2 has no such function in
torch: as `predict` counts it, whole gradients of a layer exist until its backward pass ends, those outside the layers until the
end of the step's, and then this rank's rows of them. The rank is the first one, which has most where rows do not divide.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from cs336kit.measure.ranks import fake_ranks
from cs336kit.predict.layouts import Layout, shard_shape
from cs336plan.trace import counting
from cs336plan.trace.build import CASTS


def axis(shape: Sequence[int], ranks: int) -> int:
    """The axis along which ranks divide a parameter: the rows, or for experts in one tensor that of the smaller shard.

    torch divides other axes than the first one evenly or not at all.
    """
    within = len(shape) == 3 and shape[1] % ranks == 0
    return int(within and prod(shard_shape(tuple(shape), ranks)) < -(-shape[0] // ranks) * prod(shape[1:]))


def held(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """What a rank has of a parameter's gradient and of its optimizer state; with ZeRO 3 of the parameter, too."""
    ranks = layout.shards
    if layout.zero_stage < 3 or axis(shape, ranks):
        return shard_shape(tuple(shape), ranks)
    return (-(-shape[0] // ranks), *shape[1:]) if shape else ()


@contextmanager
def mesh_of(layout: Layout) -> Iterator[DeviceMesh | None]:
    """Replicas × ranks that share parameters, of which this process is the first; None where nobody does. Not on fake tensors."""
    if layout.zero_stage < 3:
        yield None
        return
    if torch.distributed.is_initialized():
        raise ValueError(
            f"this process belongs to a process group, beside which {layout} cannot be counted: use another process"
        )
    sizes = (layout.dp, layout.shards) if layout.dp > 1 else (layout.shards,)
    with fake_ranks(prod(sizes)):
        yield init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])


def passes(
    model: nn.Module, layers: Sequence[nn.Module], layout: Layout, mesh: DeviceMesh | None, **options: Any
) -> counting.Passes:
    """`counting.passes` of one rank: beyond what it has of the parameters."""
    if layout.zero_stage < 2:
        return counting.passes(model, layers, **options)
    if mesh is None:
        with _scattered(model, layers, layout) as ends:
            return counting.passes(model, layers, ends=ends, **options)
    # What is sharded once cannot be whole again, and other numbers of layers are to be counted.
    model, layers = _copied(model, layers)
    shard(model, layers, mesh, options["precision"])
    return counting.passes(model, layers, sharded=True, **options)


def _copied(model: nn.Module, layers: Sequence[nn.Module]) -> tuple[nn.Module, list[nn.Module]]:
    """A module with parameters of its own. Only modules are copied: the copy of a fake tensor would have a mode of its own."""
    known: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for p in model.parameters():
        known[id(p)] = nn.Parameter(torch.empty_like(p), requires_grad=p.requires_grad)
    return copy.deepcopy((model, list(layers)), known)


def shard(model: nn.Module, layers: Iterable[nn.Module], mesh: DeviceMesh, precision: str) -> None:
    """fully_shard, in place: each layer is a group of parameters, and so is all else.

    With autocast, parameters are gathered in the type of products, and gradients reduced in fp32.
    """
    mixed = {"param_dtype": CASTS[precision], "reduce_dtype": torch.float32} if precision in CASTS else {}
    how: dict[str, Any] = {
        "mesh": mesh, "mp_policy": MixedPrecisionPolicy(**mixed),
        "shard_placement_fn": lambda parameter: Shard(axis(parameter.shape, mesh.size(-1))),
    }  # fmt: skip
    for part in (*layers, model):
        fully_shard(part, **how)


@contextmanager
def _scattered(model: nn.Module, layers: Sequence[nn.Module], layout: Layout) -> Iterator[Callable[[], None]]:
    """ZeRO 2: a rank keeps its rows of a layer's gradients when its backward pass ends; of all others when the caller says so."""
    rows: dict[nn.Parameter, Tensor] = {}

    def scatter(parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = None
                if parameter not in rows:
                    rows[parameter] = parameter.new_empty(held(parameter.shape, layout))

    def before(layer: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        first = next((t for t in (*inputs, *named.values()) if isinstance(t, Tensor) and t.requires_grad), None)
        if first is not None:
            first.register_hook(lambda _: scatter(layer.parameters()))

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in layers]
    try:
        yield lambda: scatter(model.parameters())
    finally:
        for hook in hooks:
            hook.remove()
