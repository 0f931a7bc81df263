"""An optimizer whose state is sharded by rows over the ranks: stages 1 and 2 of ZeRO (Rajbhandari et al. 2020)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedOptimizer:
    """Updates this rank's rows of every parameter and gathers the rows of the other ranks.

    Every parameter is divided along its first axis, rounded up, so that the last ranks may have fewer rows or none. With
    stage 2 a gradient is reduced as soon as it is computed, and only this rank's rows of it are kept.
    """

    def __init__(
        self, module: nn.Module, make: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], *, group: Any,
        count: int, rank: int, replicas: Any, mean_over: int, stage: int,
    ):  # fmt: skip
        self.group, self.count, self.rank, self.replicas, self.mean_over = group, count, rank, replicas, mean_over
        self.stage, self.names = stage, {parameter: name for name, parameter in module.named_parameters()}
        #: parameter → this rank's rows of it, in the same storage
        self.own: dict[nn.Parameter, nn.Parameter] = {}
        self.hooks = []
        for parameter in self.names:
            rows = -(-len(parameter) // count)
            self.own[parameter] = nn.Parameter(parameter.detach()[rank * rows : (rank + 1) * rows])
            if stage == 2 and parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(self._reduce)
                self.hooks.append(hook)
        self.inner = make(list(self.own.values()))

    def let_go(self) -> None:
        """Stop reducing gradients, because another optimizer of the same parameters takes over."""
        for hook in self.hooks:
            hook.remove()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    @torch.no_grad()
    def _reduce(self, parameter: Tensor) -> None:
        """Sum the gradients of the ranks; this rank keeps its rows of the sum."""
        own, gradient = self.own[parameter], parameter.grad
        assert gradient is not None
        rows = -(-len(parameter) // self.count)
        mine = gradient.new_empty(rows, *gradient.shape[1:])
        dist.reduce_scatter_tensor(mine, _padded(gradient, rows * self.count), group=self.group)
        mine = mine[: len(own)]
        parameter.grad = None
        own.grad = mine if own.grad is None else own.grad.add_(mine)

    @torch.no_grad()
    def add_up(self) -> None:
        """Finish reducing the gradients after all micro-batches."""
        for parameter, own in self.own.items():
            if self.stage == 1 and parameter.grad is not None:
                self._reduce(parameter)
            if own.grad is not None:
                if self.replicas is not None:
                    dist.all_reduce(own.grad, group=self.replicas)
                own.grad /= self.mean_over

    def gradients(self) -> list[tuple[str, Tensor]]:
        """Names and gradients of this rank's rows."""
        return [(self.names[parameter], own.grad) for parameter, own in self.own.items() if own.grad is not None]

    @torch.no_grad()
    def whole_gradient(self, parameter: nn.Parameter) -> Tensor | None:
        """All rows of a gradient, gathered."""
        own = self.own[parameter]
        return None if own.grad is None else self._gather(own.grad, parameter)

    def _gather(self, mine: Tensor, parameter: Tensor) -> Tensor:
        rows = -(-len(parameter) // self.count)
        every = mine.new_empty(rows * self.count, *mine.shape[1:])
        dist.all_gather_into_tensor(every, _padded(mine, rows), group=self.group)
        return every[: len(parameter)]

    @torch.no_grad()
    def step(self) -> None:
        """Update this rank's rows and gather the others; parameters without a gradient stay."""
        self.inner.step()
        for parameter, own in self.own.items():
            if own.grad is not None:
                parameter.copy_(self._gather(own.detach(), parameter))

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter, own in self.own.items():
            parameter.grad = own.grad = None


def _padded(x: Tensor, rows: int) -> Tensor:
    if len(x) == rows:
        return x.contiguous()
    whole = x.new_zeros(rows, *x.shape[1:])
    whole[: len(x)] = x
    return whole
