"""The loss of a language model: how surprised it is by the token that comes."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def cross_entropy(logits: Float[Tensor, "... V"], targets: Int[Tensor, "..."]) -> Float[Tensor, ""]:
    """Mean over all positions of −ln softmax(logits)[target], in nats; exp of it is the perplexity.

    log softmax(x) = x − ln Σ eˣ, taken in fp32 from the logits minus their maximum, so that nothing overflows. A model
    that knows nothing has ln V. Kept for backward: the V log-probabilities of every position, 4·B·S·V bytes.
    Equal to torch.nn.functional.cross_entropy. Shapes that do not fit raise ValueError.
    """
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets of shape {tuple(targets.shape)} do not fit logits of shape {tuple(logits.shape)}: "
            "one target per position, so targets.shape must be logits.shape[:-1]."
        )
    log_probabilities = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean()
