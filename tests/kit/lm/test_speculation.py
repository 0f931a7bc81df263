"""Speculative decoding gives the target's own text, or its distribution, whatever the draft is."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from cs336kit import lm
from tests.kit.lm import test_caches as caches
from tests.kit.lm.test_caches import model_of

pytestmark = pytest.mark.torch

GPT2, LLAMA, LATENT = (replace(config, context=40) for config in (caches.GPT2, caches.LLAMA, caches.LATENT))


@pytest.mark.parametrize("config", [GPT2, LLAMA, LATENT])
def test_greedy_is_the_targets_own_text(config):
    target, prompt = model_of(config, 0), torch.randint(31, (1, 3), generator=torch.Generator().manual_seed(0))
    own = lm.generate(target, prompt, new_tokens=25)
    # Nearly the target: some guesses are right, some are wrong.
    nearly = model_of(config, 0)
    for parameter in nearly.parameters():
        parameter.data.add_(torch.randn(parameter.shape, dtype=torch.double), alpha=0.05)
    acceptances = []
    for draft, guesses in itertools.product((target, nearly, model_of(replace(GPT2, layers=1), 1)), (1, 4)):
        said = lm.speculative(target, draft, prompt, new_tokens=25, guesses=guesses)
        assert torch.equal(said.tokens, own)
        # Every pass adds what it accepts and one more.
        assert said.passes + said.accepted == 25 and said.accepted <= said.judged <= said.guessed
        # Of every pass what it accepts is judged, and at most one more.
        assert said.judged <= said.accepted + said.passes
        acceptances.append(said.acceptance)
    assert acceptances[0] == acceptances[1] == 1 > acceptances[2] > acceptances[4]
    assert target.training and nearly.training
    target.eval()
    alone = lm.speculative(target, nearly, prompt, new_tokens=1)
    assert nearly.training and not target.training
    # The last token is the target's own: there is nothing to guess.
    assert (alone.passes, alone.guessed, alone.acceptance) == (1, 0, 0) and torch.equal(alone.tokens, own[:, :4])


class Chain(nn.Module):
    """A model whose next token depends on the last one only, by a table of logits."""

    def __init__(self, table):
        super().__init__()
        self.config = replace(GPT2, vocab=len(table))
        self.table = table

    def forward(self, tokens, cache):
        cache.tokens += tokens.shape[1]
        return self.table[tokens]


def test_a_sampled_text_has_the_targets_distribution():
    draw = torch.Generator().manual_seed(0)
    target, draft = (Chain(torch.randn(3, 3, generator=draw)) for _ in range(2))
    runs, options = 700, {"temperature": 0.8}
    counts = dict.fromkeys(itertools.product(range(3), repeat=3), 0)
    for _ in range(runs):
        said = lm.speculative(
            target, draft, torch.zeros(1, 1, dtype=int), new_tokens=3, guesses=2, generator=draw, **options
        )
        counts[tuple(said.tokens[0, 1:].tolist())] += 1
    chances = lm.probabilities(target.table, **options)
    for text, count in counts.items():
        chance = float(chances[0, text[0]] * chances[text[0], text[1]] * chances[text[1], text[2]])
        # Five deviations of a binomial count: one of 27 texts leaves them in 1 of 65,000 runs of this test.
        assert abs(count - runs * chance) <= 5 * math.sqrt(runs * chance * (1 - chance)), text


def test_the_token_after_the_accepted_ones_is_drawn_from_the_target():
    draw, rows = torch.Generator().manual_seed(0), 200_000
    target, draft = (torch.randn(3, 4, generator=draw).double().softmax(-1) for _ in range(2))
    guesses = torch.multinomial(draft[:2], rows, replacement=True, generator=draw).T
    wide = [x.expand(rows, *x.shape) for x in (target, draft[:2])]
    accepted, new = lm.accept(*wide, guesses, generator=draw)
    first = torch.where(accepted > 0, guesses[:, 0], new[:, 0])
    deviation = (target[0] * (1 - target[0]) / rows).sqrt()
    assert ((first.bincount(minlength=4) / rows - target[0]).abs() <= 5 * deviation).all()
    # A guess stays with probability Σ min(target, draft).
    chance = float(torch.minimum(target[0], draft[0]).sum())
    assert abs(float((accepted > 0).double().mean()) - chance) <= 5 * math.sqrt(chance * (1 - chance) / rows)


def test_a_guess_that_the_target_never_says_is_refused_whatever_is_drawn(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, **_: torch.zeros(shape, dtype=dtype))
    target, draft = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]]), torch.tensor([[[0.5, 0.5]]])
    for guess, stays in ((0, 0), (1, 1)):
        assert lm.accept(target, draft, torch.tensor([[guess]]))[0].tolist() == [stays]


def test_where_the_target_has_nothing_more_than_the_draft_its_own_token_is_drawn():
    # Distributions that do not add up to one, as rounding leaves them, only more so: half of the guesses are refused.
    target, draft = torch.full((40, 2, 2), 0.25), torch.full((40, 1, 2), 0.5)
    accepted, new = lm.accept(target, draft, torch.zeros(40, 1, dtype=int), generator=torch.Generator().manual_seed(0))
    assert 8 < int(accepted.sum()) < 32 and {*new[accepted == 0].tolist()[0]} <= {0, 1}


def test_what_cannot_be_speculated():
    target, prompt = model_of(GPT2, 0), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(
        ValueError, match="the target has 31 tokens and the draft 7: .* give models with one vocabulary"
    ):
        lm.speculative(target, model_of(replace(GPT2, vocab=7), 0), prompt, new_tokens=2)
    with pytest.raises(ValueError, match=r"tokens must be a tensor \(B, S\) .* got torch.int64 of shape \(3,\)"):
        lm.speculative(target, target, prompt[0], new_tokens=2)
    with pytest.raises(ValueError, match="2 texts are given"):
        lm.speculative(target, target, prompt.expand(2, 3), new_tokens=2)
    with pytest.raises(ValueError, match="the draft has a sliding window of 4"):
        lm.speculative(target, model_of(replace(GPT2, window=4), 0), prompt, new_tokens=2)
    with pytest.raises(ValueError, match="context has 40"):
        lm.speculative(target, target, prompt, new_tokens=39)
    with pytest.raises(ValueError, match="guesses must be"):
        lm.speculative(target, target, prompt, new_tokens=2, guesses=0)
    with pytest.raises(ValueError, match="temperature must be"):
        lm.speculative(target, target, prompt, new_tokens=2, temperature=-1.0)
