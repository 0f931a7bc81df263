"""Memory in the course of one training step of a decoder, with the borders between its blocks marked."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cs336kit.measure.memory import MemoryPoint, _LiveStorages


@dataclass(frozen=True)
class StepMemory:
    """`points`: live bytes after every operator; `stages`: (stage, live bytes, index of the point) at the borders."""

    points: tuple[MemoryPoint, ...]
    stages: tuple[tuple[str, int, int], ...]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were alive at once."""
        return max(point.live_bytes for point in self.points)

    @property
    def peak_operator(self) -> str:
        """The operator after which they were."""
        return max(self.points, key=lambda point: point.live_bytes).operator


def step_memory(model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> StepMemory:
    """Run one step (loss, backward, optimizer, gradients freed) and follow the live bytes of everything it makes.

    `model.blocks` are its blocks; stages are named as in `predict.step_timeline`. Parameters and optimizer state that
    are there before do not count, so run one step first, and start with no gradients. Works on any device, also fake.
    Left out: scratch memory inside kernels, rounding. Errors: ValueError for gradients left over from before.
    """
    if any(parameter.grad is not None for parameter in model.parameters()):
        raise ValueError(
            "the model has gradients from before, which the step would free: call optimizer.zero_grad() first"
        )
    tracker = _LiveStorages(1)
    stages = []

    def mark(stage):
        if stage not in {name for name, _, _ in stages}:
            stages.append((stage, tracker.live, len(tracker.points) - 1))

    def before(index):
        def hook(module, arguments):
            x = arguments[0]
            if index == 1:
                mark("embedding")
            if x.requires_grad and not any(stage == "loss" for stage, _, _ in stages):
                x.register_hook(lambda _: mark(f"block {index} backward"))

        return hook

    def after(index):
        def hook(module, arguments, output):
            mark(f"block {index} forward")
            if index == len(model.blocks) and not any(stage == "loss" for stage, _, _ in stages):
                output.register_hook(lambda _: mark("head backward"))

        return hook

    handles = []
    for index, block in enumerate(model.blocks, start=1):
        handles += [block.register_forward_pre_hook(before(index)), block.register_forward_hook(after(index))]
    try:
        with tracker:
            value = loss()
            mark("loss")
            value.backward()
            mark("backward")
            optimizer.step()
            optimizer.zero_grad()
            del value
            mark("step")
    finally:
        for handle in handles:
            handle.remove()
    return StepMemory(tuple(tracker.points), tuple(stages))
