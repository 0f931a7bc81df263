"""Writing text: one token after another, each from the logits of all before it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336kit.lm.models import KVCache
from cs336kit.predict._common.checks import positive_int, positive_number


def sample(
    logits: Float[Tensor, "B V"],
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B 1"]:
    """One token per row: the likeliest at temperature 0, else drawn from softmax(logits / temperature).

    `top_k` draws from the k likeliest only. Left out: nucleus sampling, beams, repetition penalties.
    """
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits.float() / positive_number("temperature", temperature)
    if top_k is not None:
        kept = logits.topk(min(positive_int("top_k", top_k), logits.shape[-1]), dim=-1)
        choice = torch.multinomial(kept.values.softmax(dim=-1), 1, generator=generator)
        return kept.indices.gather(-1, choice)
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)


@torch.no_grad()
def generate(
    model: nn.Module,
    tokens: Int[Tensor, "B S"],
    *,
    new_tokens: int,
    cache: bool = True,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B S+{new_tokens}"]:
    """The tokens with `new_tokens` more. With a KV cache each step reads one token, without one the whole text again.

    Both give the same tokens, up to rounding between two logits that tie. The model is put into eval mode meanwhile.
    A text that would outgrow the model's context raises ValueError before the first step.
    """
    positive_int("new_tokens", new_tokens)
    if tokens.shape[1] == 0:
        raise ValueError("there is no token to continue: give at least one, such as the one that begins a text.")
    longest = tokens.shape[1] + new_tokens - 1
    if longest > model.config.context:
        raise ValueError(
            f"{tokens.shape[1]} tokens and {new_tokens} new ones need {longest} positions, the model's context has "
            f"{model.config.context}: ask for fewer."
        )
    was_training = model.training
    model.eval()
    memory = KVCache(model.config) if cache else None
    new = tokens
    try:
        for _ in range(new_tokens):
            logits = model(new, cache=memory) if cache else model(tokens)
            new = sample(logits[:, -1], temperature=temperature, top_k=top_k, generator=generator)
            tokens = torch.cat([tokens, new], dim=1)
    finally:
        model.train(was_training)
    return tokens
