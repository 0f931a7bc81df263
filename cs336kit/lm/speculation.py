"""Speculative decoding: a small model drafts several tokens, and one forward pass of the large model verifies them all."""

from typing import NamedTuple

import torch
from torch import Tensor

from cs336kit.lm._shapes import Float, Int
from cs336kit.lm.caches import KVCache
from cs336kit.lm.generation import check_choices, check_prompt, probabilities
from cs336kit.lm.models import DecoderOnly
from cs336kit.lm.runs import evaluating
from cs336kit.predict.checks import positive_int


class Speculated(NamedTuple):
    """A text, with the statistics of its generation."""

    tokens: Tensor
    #: forward passes of the target, each of which adds the guesses that it accepts and one token of its own
    passes: int
    #: guesses of the draft; those after the first rejected one are never judged
    guessed: int
    judged: int
    accepted: int

    @property
    def acceptance(self) -> float:
        """The share of judged guesses that were accepted, for `predict.speculative_speedup`; 0 if none was judged."""
        return self.accepted / self.judged if self.judged else 0.0


def accept(
    target: Float[Tensor, "B _ V"], draft: Float[Tensor, "B k V"], guesses: Int[Tensor, "B k"], *,
    generator: torch.Generator | None = None,
) -> tuple[Int[Tensor, " B"], Int[Tensor, "B 1"]]:  # fmt: skip
    """How many guesses are accepted in each row, and the token after them. `target`, `draft`: the models' distributions.

    A guess is accepted with probability min(1, target / draft). After the first rejected one, a token is drawn from the
    normalized excess max(0, target − draft); if all are accepted, from the target. The result is distributed like draws from
    the target, whatever the draft is. Source: Leviathan et al. 2023, algorithm 1 and appendix A.1.
    """
    rows, width = guesses.shape
    chosen = guesses.unsqueeze(-1)
    ratio = target[:, :width].gather(-1, chosen) / draft.gather(-1, chosen)
    drawn = torch.rand(rows, width, dtype=ratio.dtype, device=ratio.device, generator=generator)
    accepted = (drawn < ratio.squeeze(-1)).long().cumprod(dim=-1).sum(dim=-1)
    place = accepted[:, None, None].expand(-1, 1, target.shape[-1])
    wanted = target.gather(1, place).squeeze(1)
    # After the last guess there is no draft to subtract.
    beyond = torch.nn.functional.pad(draft, (0, 0, 0, 1))
    had = beyond.gather(1, place).squeeze(1)
    more = (wanted - had).clamp(min=0)
    # The excess is all zero only if both are equal up to rounding.
    more = torch.where(more.sum(dim=-1, keepdim=True) > 0, more, wanted)
    return accepted, torch.multinomial(more, 1, generator=generator)


@torch.no_grad()
def speculative(
    target: DecoderOnly, draft: DecoderOnly, tokens: Int[Tensor, "1 S"], *, new_tokens: int, guesses: int = 4,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Speculated:  # fmt: skip
    """Append `new_tokens` tokens, as the target alone would choose them, in fewer of its forward passes.

    The draft guesses `guesses` tokens one by one; the target reads them in one forward pass, which adds a token of its own.
    At temperature 0 the text is the target's own, unless rounding decides between two equal logits; above, it has the
    target's distribution. One text at a time, and no sliding window, whose cache cannot forget rejected guesses.
    """
    check_prompt(target, tokens, new_tokens)
    check_prompt(draft, tokens, new_tokens)
    check_choices(temperature, top_k, top_p)
    positive_int("guesses", guesses)
    _check_pair(target, draft, tokens)
    longest = tokens.shape[1] + new_tokens
    caches = [KVCache(model.config, kind="contiguous", tokens=longest) for model in (target, draft)]
    choose = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    passes = guessed = judged = accepted = 0
    with evaluating(target, draft):
        while (left := longest - tokens.shape[1]) > 0:
            count, given = min(guesses, left - 1), tokens.shape[1]
            text, chances = tokens, []
            for _ in range(count):
                logits = draft(text[:, caches[1].tokens :], cache=caches[1])[:, -1]
                chances.append(probabilities(logits, **choose))  # type: ignore[arg-type]
                text = torch.cat([text, torch.multinomial(chances[-1], 1, generator=generator)], dim=1)
            logits = target(text[:, caches[0].tokens :], cache=caches[0])[:, -count - 1 :]
            wanted = probabilities(logits, **choose)  # type: ignore[arg-type]
            guessed_chances = torch.stack(chances, dim=1) if count else wanted[:, :0]
            kept, new = accept(wanted, guessed_chances, text[:, given:], generator=generator)
            stay = int(kept)
            tokens = torch.cat([text[:, : given + stay], new], dim=1)
            for cache in caches:  # the new token has not been read
                if cache.tokens >= tokens.shape[1]:
                    cache.shorten(tokens.shape[1] - 1)
            passes, guessed = passes + 1, guessed + count
            judged, accepted = judged + min(stay + 1, count), accepted + stay
    return Speculated(tokens, passes, guessed, judged, accepted)


def _check_pair(target: DecoderOnly, draft: DecoderOnly, tokens: Tensor) -> None:
    if target.config.vocab != draft.config.vocab:
        raise ValueError(
            f"the target has {target.config.vocab} tokens and the draft {draft.config.vocab}: a guess must mean the same in "
            "both, so give models with one vocabulary."
        )
    if tokens.shape[0] != 1:
        raise ValueError(f"{tokens.shape[0]} texts are given: each would accept another number of guesses; give one.")
    for name, model in (("target", target), ("draft", draft)):
        if model.config.window is not None:
            raise ValueError(
                f"the {name} has a sliding window of {model.config.window}: its cache cannot forget rejected guesses; give a "
                "model without one."
            )
