"""Generate text from a decoder: how a token is chosen, and the loop that continues a text with or without a cache."""

import torch
from torch import Tensor

from cs336kit.lm._shapes import Float, Int
from cs336kit.lm.caches import KVCache
from cs336kit.lm.models import DecoderOnly, check_tokens
from cs336kit.lm.runs import evaluating
from cs336kit.predict.checks import fraction, positive_int, positive_number


def check_choices(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise ValueError for an invalid temperature, top_k or top_p."""
    if temperature != 0:
        try:
            positive_number("temperature", temperature)
        except ValueError:
            raise ValueError(
                f"temperature must be 0, which takes the likeliest token, or a finite number above 0, got {temperature!r}."
            ) from None
    if top_k is not None:
        positive_int("top_k", top_k)
    if top_p is not None:
        fraction("top_p", top_p)


def probabilities(
    logits: Float[Tensor, "... V"], *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Float[Tensor, "... V"]:
    """The distribution that `sample` draws from: softmax(logits / temperature), or all on the likeliest token at temperature 0.

    `top_k` keeps the k likeliest tokens; `top_p` then keeps the smallest set of likeliest tokens whose probabilities
    reach p together (Holtzman et al. 2020, section 3.1). The kept probabilities are renormalized.
    """
    check_choices(temperature, top_k, top_p)
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(
            torch.promote_types(logits.dtype, torch.float32)
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        kept = logits.topk(top_k, dim=-1)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, kept.indices, kept.values)
    result = logits.softmax(dim=-1)
    if top_p is None or top_p == 1:
        return result
    ordered = result.sort(dim=-1, descending=True)
    # A token is dropped if those before it already reach p together; before the first, that sum is 0.
    before = ordered.values.cumsum(dim=-1) - ordered.values
    kept_values = ordered.values.masked_fill(before >= top_p, 0)
    kept_values = kept_values / kept_values.sum(dim=-1, keepdim=True)
    return torch.zeros_like(result).scatter(-1, ordered.indices, kept_values)


def sample(
    logits: Float[Tensor, "B V"], *, temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B 1"]:  # fmt: skip
    """One token per row: the likeliest at temperature 0, else drawn from `probabilities`.

    `top_k` draws only from the k likeliest, `top_p` only from the fewest whose probabilities reach p together.
    Left out: beams, repetition penalties.
    """
    check_choices(temperature, top_k, top_p)
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    chances = probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    return torch.multinomial(chances, 1, generator=generator)


def check_prompt(model: DecoderOnly, tokens: Tensor, new_tokens: int) -> None:
    """Raise ValueError unless these are tokens, and the model's context has room for them and for `new_tokens` more."""
    check_tokens(tokens)
    positive_int("new_tokens", new_tokens)
    given, context = tokens.shape[1], model.config.context
    if not tokens.numel():
        raise ValueError("there is no token to continue: give at least one, such as the one that begins a text.")
    if given > context:
        raise ValueError(
            f"the prompt has {given} tokens, and the model's context {context}: give at most its last {context}."
        )
    if given + new_tokens - 1 > context:
        raise ValueError(
            f"{given} tokens and {new_tokens} new ones need {given + new_tokens - 1} positions, the model's context has "
            f"{context}: ask for at most {context - given + 1}."
        )


def _cache_of(model: DecoderOnly, cache: bool | str | KVCache, tokens: int) -> KVCache | None:
    """The requested cache, empty and with room for `tokens` tokens."""
    if isinstance(cache, KVCache):
        if cache.tokens:
            raise ValueError(f"the cache holds {cache.tokens} tokens of another text: give a new KVCache.")
        return cache
    if cache is False:
        return None
    return KVCache(model.config, kind="growing" if cache is True else cache, tokens=tokens)


@torch.no_grad()
def generate(
    model: DecoderOnly, tokens: Int[Tensor, "B S"], *, new_tokens: int, cache: bool | str | KVCache = True,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "B S+{new_tokens}"]:  # fmt: skip
    """Append `new_tokens` tokens. With a KV cache each step reads one token; without, it reads the whole text again.

    Both give the same tokens, unless rounding decides between two equal logits. `cache`: True, False, a kind of KVCache,
    or an empty KVCache, which then holds the text. `temperature`, `top_k` and `top_p` choose a token as in `sample`. The
    model runs in eval mode. A text that would outgrow the model's context raises ValueError before the first step.
    """
    check_prompt(model, tokens, new_tokens)
    check_choices(temperature, top_k, top_p)
    memory = _cache_of(model, cache, tokens.shape[1] + new_tokens - 1)
    new = tokens
    with evaluating(model):
        for _ in range(new_tokens):
            logits = model(tokens) if memory is None else model(new, cache=memory)
            new = sample(logits[:, -1], temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
            tokens = torch.cat([tokens, new], dim=1)
    return tokens
