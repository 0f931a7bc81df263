"""The bytes of an optimizer's state, as it stands."""

import torch

from cs336kit.predict._common.breakdown import Breakdown


def state_bytes(optimizer: torch.optim.Optimizer) -> Breakdown:
    """Bytes of the tensors in `optimizer.state`, summed over the parameters, by torch's name of the state.

    Call it after a step: before the first one most optimizers keep nothing. Tensors inside lists count too
    (LBFGS); Python numbers count nothing. Convention: elements × element size; a storage that two entries share
    is counted twice. Errors: ValueError for anything but a torch optimizer.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    parts = {}
    for state in optimizer.state.values():
        for name, value in state.items():
            tensors = [item for item in (value if isinstance(value, list) else [value]) if torch.is_tensor(item)]
            if tensors:
                parts[name] = parts.get(name, 0) + sum(t.numel() * t.element_size() for t in tensors)
    return Breakdown(parts, unit="bytes")
