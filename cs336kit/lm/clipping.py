"""Gradient clipping: one scale for all gradients, so that their joint length has a limit."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cs336kit.predict._common.checks import positive_number


@torch.no_grad()
def clip_gradients(parameters: Tensor | Iterable[nn.Parameter], *, max_norm: float) -> Tensor:
    """Scale all gradients in place so that their joint L2 norm is at most `max_norm`; return the norm they had.

    The direction of the update stays: every gradient is multiplied by the same max_norm / (norm + 1e-6), where that
    is below 1. Parameters without a gradient are skipped. The returned 0-d tensor stays on the gradients' device, so
    clipping itself never waits for a GPU. A norm that is NaN or infinite is returned as it is: look at it.
    Equal to torch.nn.utils.clip_grad_norm_. Source: Pascanu et al. 2013, section 3.2.
    """
    positive_number("max_norm", max_norm)
    parameters = [parameters] if isinstance(parameters, Tensor) else parameters
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    device = gradients[0].device
    norms = [torch.linalg.vector_norm(gradient).to(device) for gradient in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms))
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return total
