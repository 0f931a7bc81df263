"""The bytes that a forward pass saves for its backward pass, tensor by tensor."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cs336kit.measure._trace import SavedTensor, Trace
from cs336kit.measure.device import runnable
from cs336kit.predict import Breakdown
from cs336kit.predict.checks import several
from cs336kit.predict.grid import as_html, as_text


class SavedActivations(Breakdown):
    """Bytes saved for the backward pass, by the operation that saved them; `.tensors` lists every storage."""

    __slots__ = ("tensors",)
    tensors: tuple[SavedTensor, ...]

    def __init__(self, tensors: Sequence[SavedTensor]):
        parts: dict[str, int] = {}
        for tensor in tensors:
            if tensor.role == "activation":
                parts[tensor.operation] = parts.get(tensor.operation, 0) + tensor.bytes
        super().__init__(parts, unit="bytes")
        object.__setattr__(self, "tensors", tuple(tensors))

    def __reduce__(self) -> tuple[Any, ...]:
        return SavedActivations, (self.tensors,)

    def table(self, *, counted_only: bool = True) -> "SavedTable":
        """Every storage in the order of saving; with `counted_only=False`, also parameters, buffers and token ids."""
        return SavedTable([t for t in self.tensors if t.role == "activation" or not counted_only])


class SavedTable:
    """A list of saved tensors, shown as text and HTML."""

    def __init__(self, tensors: Sequence[SavedTensor]):
        self.tensors = tensors

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield "operation", "module", "shape", "dtype", "bytes", "role"
        for t in self.tensors:
            operation = t.operation if t.saves == 1 else f"{t.operation} ({t.saves} saves)"
            shape = " × ".join(map(str, t.shape)) or "scalar"
            yield operation, t.module, shape, str(t.dtype).removeprefix("torch."), f"{t.bytes:,}", t.role

    def __repr__(self) -> str:
        return as_text(list(self._rows()), "<<<<><", gap=2)

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        return as_html(head, body, "<<<<><")


def saved_activation_bytes(function: Callable[[], torch.Tensor], *, without: Any = ()) -> SavedActivations:
    """Run `function`, which returns a loss or an output, and count the bytes saved for its backward pass.

    Each storage counts once and in full, however many operations saved it or views of it, and only if it is still held
    when `function` returns. Not counted: parameters and buffers of the modules that run, integer tensors (token ids,
    targets, routing), and the tensors or modules given in `without`. Works on real, fake and meta tensors; FakeTensorMode
    gives the real numbers for models that fit on no machine.
    Left out: what the C++ kernels hold outside autograd, the output itself, allocator rounding.
    Errors: TypeError if `function` cannot be called without arguments, ValueError if its result does not require a gradient.
    """
    runnable("measure.saved_activation_bytes", function)
    trace = Trace()
    with trace.watching(saved=True):
        output = function()
    if not _requires_grad(output):
        raise ValueError(
            "the function returned nothing that requires a gradient, so nothing is kept: return the loss, "
            "and call neither backward() nor no_grad() inside"
        )
    alone = isinstance(without, (torch.Tensor, torch.nn.Module))  # some of these are iterable
    for owner in (without,) if alone else several("without", without, "tensors and modules"):
        trace.own([owner] if isinstance(owner, torch.Tensor) else [*owner.parameters(), *owner.buffers()], "left out")
    return SavedActivations([tensor for _, tensor in trace.saved()])


def _requires_grad(output: object) -> bool:
    if isinstance(output, torch.Tensor):
        return output.requires_grad
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return any(_requires_grad(value) for value in values)
