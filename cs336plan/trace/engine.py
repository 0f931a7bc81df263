"""A backward pass without torch's own engine, which asks a driver for streams: nodes are called one by one, in its order.

What that engine does for memory is little. A node runs once all that use its output have run, the latest made first; what it
is given is freed when its results have been summed to the shapes of its inputs and cast; what it saved is freed before its
results are added to others. The tests run both engines on a CPU and compare every segment of both passes. They agree but where
a scan is written out position by position into views of one tensor (recurrent_gemma): here some of that is freed later.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

_tasks = itertools.count()


def _consumers(root: Any) -> dict[Any, int]:
    """Node → how many edges hand it a gradient."""
    counts: dict[Any, int] = {}
    seen, todo = {root}, [root]
    while todo:
        for other, _ in todo.pop().next_functions:
            if other is not None:
                counts[other] = counts.get(other, 0) + 1
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
    return counts


def _accumulate(variable: Tensor, gradient: Tensor) -> None:
    """A parameter takes its gradient as it is, if this lies in memory as the parameter does, and else a copy."""
    if variable.grad is not None:
        variable.grad += gradient
        return
    alike = all(
        a == b for a, b, size in zip(gradient.stride(), variable.stride(), variable.shape, strict=True) if size > 1
    )
    if not alike:
        gradient = torch.empty_strided(
            variable.shape, variable.stride(), dtype=gradient.dtype, device=gradient.device
        ).copy_(gradient)
    variable.grad = gradient


def _of_python(node: Any, gradients: list[Tensor | None]) -> list[Tensor | None]:
    """What the backward of an autograd.Function returns for those inputs that need a gradient, by edge."""
    # No gradient is zeros for it; whether a function has said that it wants none cannot be read.
    whole = [
        torch.zeros(m.shape, dtype=m.dtype, device=m.device) if g is None else g
        for g, m in zip(gradients, node._input_metadata, strict=True)
    ]
    results = node.apply(*whole)
    results = results if isinstance(results, tuple) else (results,)
    needed = iter([r for r, need in zip(results, node.needs_input_grad, strict=False) if need])
    return [None if other is None else next(needed, None) for other, _ in node.next_functions]


def _summed(gradients: list[Tensor], shape: Sequence[int]) -> Tensor:
    """The gradient that is popped from this list, summed to the shape of what has been broadcast."""
    if not shape:
        return gradients.pop().sum()
    before = gradients[0].dim() - len(shape)
    dims = [d for d, size in enumerate(gradients[0].shape) if d < before or (shape[d - before] == 1 and size != 1)]
    if dims:
        gradients.append(gradients.pop().sum(dims, keepdim=True))
    return gradients.pop().view(*shape) if before else gradients.pop()


def _results(node: Any, slots: dict[int, Tensor]) -> list[Tensor | None]:
    """What a node returns for each of its edges, summed to its shape and cast to its type."""
    gradients = [slots.pop(place, None) for place in range(len(node._input_metadata))]
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        returned = _of_python(node, gradients)
    else:
        found = node(*gradients)
        returned = list(found) if isinstance(found, tuple) else [found]
        del found
    for place, (other, at) in enumerate(node.next_functions):
        result, returned[place] = returned[place], None
        if other is None or result is None:
            continue
        wanted = other._input_metadata[at]
        if result.shape != wanted.shape:
            held, result = [result], None
            result = _summed(held, wanted.shape)
        returned[place] = result.to(wanted.dtype)
        del result
    return returned


def backward(held: list[Tensor], stops: Mapping[int, Callable[[], None]]) -> None:
    """The gradients of `held.pop()`, which nobody else may hold; `stops`: number of a node → what is called before it runs."""
    value = held.pop()
    # Whoever calls value.backward() has these two until it returns.
    around = [value.detach(), torch.ones_like(value)]
    root: Any = value.grad_fn
    del value
    waits, order = _consumers(root), itertools.count()
    given: dict[Any, dict[int, Tensor]] = {root: {0: around[1]}}
    ready = [(0, 0, root)]
    root, task = None, next(_tasks)
    # What is recomputed under checkpointing is kept for one pass, which it recognizes by this number.
    with torch.no_grad(), mock.patch.object(torch._C, "_current_graph_task_id", lambda: task):
        while ready:
            node = heapq.heappop(ready)[-1]
            slots = given.pop(node)
            if hasattr(node, "variable"):
                if slots:
                    _accumulate(node.variable, slots.pop(0))
                continue
            if (stop := stops.get(node._sequence_nr())) is not None:
                stop()
            edges, returned = node.next_functions, _results(node, slots)
            node = None
            for place, (other, at) in enumerate(edges):
                if other is None:
                    continue
                new, returned[place] = returned[place], None
                there = given.setdefault(other, {})
                if new is not None:
                    there[at] = there[at] + new if at in there else new
                new = there = None  # type: ignore[assignment]
                waits[other] -= 1
                if not waits[other]:
                    del waits[other]
                    number = -1 << 62 if hasattr(other, "variable") else -other._sequence_nr()
                    heapq.heappush(ready, (number, next(order), other))
            edges = other = None
