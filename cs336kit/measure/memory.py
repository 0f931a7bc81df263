"""Bytes that are alive while a function or a training step runs, and in an optimizer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cs336kit import _torch
from cs336kit.measure._trace import LiveStorages
from cs336kit.measure.device import device as _device
from cs336kit.measure.device import runnable
from cs336kit.predict import Breakdown
from cs336kit.predict.checks import positive_int


@dataclass(frozen=True)
class MemoryPoint:
    """The bytes of tensors made since the start that are alive after `operator` returned."""

    operator: str
    live_bytes: int


class _Timeline(LiveStorages):
    """Records the live bytes after every operator."""

    def __init__(self, round_to: int = 1):
        super().__init__(round_to, ran=lambda operator, made: self.note(str(operator)))
        self.points: list[MemoryPoint] = []

    def note(self, name: str) -> None:
        self.points.append(MemoryPoint(name, self.live))


def memory_timeline(function: Callable[[], object], *, round_to: int = 1) -> list[MemoryPoint]:
    """Run `function()` and list the live bytes after every operator and at the end, on any device, also meta and fake.

    Counts the storages that the function makes, each once however many views it has, from the operator that makes it
    until its last reference is gone. `round_to=512` rounds each storage up as the CUDA allocator does. For a DTensor,
    only this rank's part counts. Left out: what existed before, and scratch memory inside a kernel.
    Errors: TypeError if `function` cannot be called.
    """
    runnable("measure.memory_timeline", function)
    timeline = _Timeline(positive_int("round_to", round_to))
    with timeline:
        function()
    timeline.note("end")
    return timeline.points


def peak_bytes(function: Callable[[], object], *, device: torch.device | str | None = None, round_to: int = 1) -> int:
    """The peak of the bytes that `function()` has alive at once, beyond those that existed before.

    This is the peak of `memory_timeline`: exact bytes of storages, on every device that the function uses. Only with
    `device="cuda"` it is `max_memory_allocated` less what was allocated before: every tensor on that GPU rounded up to
    512 bytes, including scratch memory of kernels. Errors: TypeError if `function` cannot be called; ValueError for
    `round_to` with CUDA, whose allocator rounds by itself.
    """
    runnable("measure.peak_bytes", function)
    where = None if device is None else _device(device)
    if where is None or where.type != "cuda":
        return max(point.live_bytes for point in memory_timeline(function, round_to=round_to))
    if round_to != 1:
        raise ValueError(f"CUDA's allocator rounds by itself: leave out device or round_to={round_to!r}.")
    torch.cuda.synchronize(where)
    torch.cuda.reset_peak_memory_stats(where)
    before = torch.cuda.memory_allocated(where)
    function()
    torch.cuda.synchronize(where)
    return torch.cuda.max_memory_allocated(where) - before


@dataclass(frozen=True)
class StepMemory:
    """`points`: live bytes after every operator; `stages`: (stage, live bytes, index of the point) at the end of each stage."""

    points: tuple[MemoryPoint, ...]
    stages: tuple[tuple[str, int, int], ...]

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once."""
        return max(point.live_bytes for point in self.points)

    @property
    def peak_operator(self) -> str:
        """The operator at the peak."""
        return max(self.points, key=lambda point: point.live_bytes).operator


def step_memory(model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> StepMemory:
    """Run one step (loss, backward, optimizer, gradients freed) and track the live bytes of everything it makes.

    `model.blocks` are its blocks; stages are named as in `predict.step_timeline`. A block begins at its first input tensor
    and ends at its first output tensor. Parameters and optimizer state that exist before do not count, so run one step
    first, and start without gradients. Works on any device, also fake. Left out: scratch memory inside kernels, rounding.
    Errors: ValueError for gradients left over from before, and for a model without blocks.
    """
    if not hasattr(model, "blocks"):
        raise ValueError(
            "step_memory needs the blocks of the model as model.blocks, and there are none: use measure.memory_timeline."
        )
    no_gradients(model)
    timeline = _Timeline()
    hooks: list[torch.utils.hooks.RemovableHandle] = []
    stages: dict[str, tuple[int, int]] = {}

    def mark(stage: str) -> None:
        stages.setdefault(stage, (timeline.live, len(timeline.points) - 1))

    def mark_gradient(values: object, stage: str) -> None:
        # Not when checkpointing recomputes the block, after the loss.
        first = next(iter(_torch.tensors(values)), None)
        if first is not None and first.requires_grad and "loss" not in stages:
            first.register_hook(lambda _: mark(stage))

    def watch(index: int, block: nn.Module) -> None:
        def before(block: nn.Module, inputs: object, named: object) -> None:
            if index == 1:
                mark("embedding")
            mark_gradient((inputs, named), f"block {index} backward")

        def after(block: nn.Module, inputs: object, output: object) -> None:
            mark(f"block {index} forward")
            if index == len(model.blocks):
                mark_gradient(output, "head backward")

        hooks.extend((block.register_forward_pre_hook(before, with_kwargs=True), block.register_forward_hook(after)))

    for index, block in enumerate(model.blocks, start=1):
        watch(index, block)
    try:
        with timeline:
            value = loss()
            mark("loss")
            value.backward()
            mark("backward")
            optimizer.step()
            optimizer.zero_grad()
            del value
            mark("step")
    finally:
        for hook in hooks:
            hook.remove()
    return StepMemory(tuple(timeline.points), tuple((stage, *at) for stage, at in stages.items()))


def no_gradients(model: nn.Module) -> None:
    """Refuse a model with old gradients, which a measured step would free."""
    if any(parameter.grad is not None for parameter in model.parameters()):
        raise ValueError("the model has gradients from before, which the step would free: call model.zero_grad() first")


def state_bytes(optimizer: torch.optim.Optimizer) -> Breakdown:
    """Bytes of the tensors in `optimizer.state`, summed over the parameters, by torch's name of the state.

    Call it after a step: before the first one, most optimizers have no state. Tensors inside lists (LBFGS), tuples and
    dicts count, too, and this rank's part of a DTensor; Python numbers do not count. Convention: elements × element
    size; a storage that two entries share is counted twice. Errors: ValueError for anything but a torch optimizer.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    parts: dict[str, int] = {}
    for state in optimizer.state.values():
        for name, value in state.items():
            tensors = [_torch.local(tensor) for tensor in _torch.tensors(value)]
            if tensors:
                parts[name] = parts.get(name, 0) + sum(t.numel() * t.element_size() for t in tensors)
    return Breakdown(parts, unit="bytes")
