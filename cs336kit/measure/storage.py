"""Which memory a tensor uses: storages counted once, and whether an operation copies."""

from collections.abc import Callable, Iterable, Iterator

import torch

from cs336kit import _torch


def _storage(name: str, tensor: object) -> torch.UntypedStorage:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} must be a torch tensor, got {tensor!r} of type {type(tensor).__name__}.")
    if tensor.layout is not torch.strided:
        raise ValueError(f"{name} is a {tensor.layout} tensor: it has no single storage. Call .to_dense() first.")
    return _torch.local(tensor).untyped_storage()


def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors use the same storage, so that a write to one may show in the other.

    Also true for two storages that start at the same address (`torch.from_numpy` twice on one array).
    Errors: ValueError for anything but strided tensors.
    """
    first, second = _storage("the first argument", a), _storage("the second argument", b)
    if _torch.key_of(first) == _torch.key_of(second):
        return True
    if first.device != second.device or first.device.type == "meta":  # meta and fake tensors have no address
        return False
    return first.data_ptr() == second.data_ptr() != 0


def _tensors(values: Iterable) -> Iterator[object]:
    for value in values:
        if isinstance(value, (torch.Tensor, str)) or not isinstance(value, Iterable):
            yield value
        else:
            yield from _tensors(value)


def storage_bytes(*tensors: torch.Tensor | Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind the tensors, each storage counted once: what they keep alive together.

    Takes tensors and iterables of tensors (`model.parameters()`). For a view, the whole storage that it keeps alive counts;
    for a DTensor, this rank's part.
    Left out: metadata, the allocator's rounding. Errors: ValueError for anything but strided tensors.
    """
    # Hold the storages while counting: an address may be reused once its storage is freed.
    storages = {}
    for number, tensor in enumerate(_tensors(tensors)):
        storage = _storage(f"tensor {number}", tensor)
        storages[_torch.key_of(storage)] = storage
    return sum(storage.nbytes() for storage in storages.values())


def view_or_copy(operation: Callable, *tensors: torch.Tensor) -> str:
    """Run `operation(*tensors)` and say how its result is stored: "same tensor", "view" or "copy".

    A result of several tensors (`split`) is a copy if any of them has a storage of its own. Errors: ValueError if the
    operation is not callable, was given no tensor, or does not return tensors.
    """
    if not callable(operation):
        raise ValueError(f"the operation must be a function of tensors, got {operation!r}. Write lambda x: …")
    if not tensors:
        raise ValueError("view_or_copy needs at least one tensor to run the operation on.")
    for tensor in tensors:
        _storage("each argument after the operation", tensor)
    results = list(_tensors([operation(*tensors)]))
    if not results:
        raise ValueError("the operation returned no tensor.")
    for result in results:
        _storage("the result of the operation", result)
    if all(any(result is tensor for tensor in tensors) for result in results):
        return "same tensor"
    return "view" if all(any(same_storage(result, t) for t in tensors) for result in results) else "copy"
