from dataclasses import replace

import pytest
import torch

from cs336kit import lm
from tests.kit.lm.test_caches import GPT2, LLAMA, model_of

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("config", [GPT2, LLAMA, replace(LLAMA, window=4), replace(GPT2, dropout=0.5)])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.3}, {"temperature": 0.7, "top_k": 5, "top_p": 0.8}])
def test_with_and_without_a_cache_the_tokens_are_the_same(config, options):
    model, prompt = model_of(config), torch.randint(31, (3, 4))
    texts = [
        lm.generate(model, prompt, new_tokens=21, cache=cache, generator=torch.Generator().manual_seed(1), **options)
        for cache in (True, False)
    ]
    assert torch.equal(*texts)
    assert texts[0].shape == (3, 25)
    assert torch.equal(texts[0][:, :4], prompt)
    assert len(texts[0].unique()) > 5
    assert model.training


def test_greedy_takes_the_likeliest_each_time():
    model, prompt = model_of(GPT2).eval(), torch.randint(31, (2, 4))
    text = lm.generate(model, prompt, new_tokens=6)
    assert torch.equal(model(text)[:, 3:-1].argmax(dim=-1), text[:, 4:])


def test_sample_follows_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -50.0]]).expand(20_000, 4)
    generator = torch.Generator().manual_seed(0)
    drawn = lm.sample(logits, temperature=2.0, generator=generator).flatten().bincount(minlength=4) / 20_000
    torch.testing.assert_close(drawn, (logits[0] / 2).softmax(dim=0), atol=0.02, rtol=0)
    usual = lm.sample(logits, temperature=1.0, generator=generator).flatten().bincount(minlength=4) / 20_000
    torch.testing.assert_close(usual, logits[0].softmax(dim=0), atol=0.02, rtol=0)
    best = lm.sample(logits, temperature=1.0, top_k=1, generator=generator)
    assert torch.equal(best, logits.argmax(dim=-1, keepdim=True))


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 6, "top_p": 0.9}, {"top_p": 1e-9}, {"top_p": 1}]
)
def test_the_distribution_is_that_of_transformers(options):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(20, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    scores = TemperatureLogitsWarper(0.8)(None, logits)
    if "top_k" in options:
        scores = TopKLogitsWarper(options["top_k"])(None, scores)
    if "top_p" in options:
        scores = TopPLogitsWarper(float(options["top_p"]))(None, scores)
    torch.testing.assert_close(lm.probabilities(logits, temperature=0.8, **options), scores.softmax(dim=-1))
    greedy = lm.probabilities(logits, temperature=0, **options)
    assert torch.equal(greedy.argmax(dim=-1), logits.argmax(dim=-1)) and torch.equal(
        greedy.sum(dim=-1), torch.ones(20).double()
    )


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_the_distribution_of_logits_in_bf16_is_computed_in_fp32(temperature):
    logits = (torch.randn(20, 9, generator=torch.Generator().manual_seed(0)) * 3).bfloat16()
    narrow, wide = (lm.probabilities(each, temperature=temperature, top_p=0.9) for each in (logits, logits.float()))
    assert narrow.dtype == torch.float32 and torch.equal(narrow, wide)


@pytest.mark.parametrize("rows", [1, 3])
def test_top_k_keeps_as_many_tokens_in_any_number_of_rows(rows):
    logits = torch.arange(5.0).expand(rows, 5)
    assert [(lm.probabilities(logits, top_k=k) > 0).sum(-1).tolist() for k in (1, 3, 4, 5, 9)] == [
        [kept] * rows for kept in (1, 3, 4, 5, 5)
    ]


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, 1), (0.5, 2), (0.5001, 3), (0.75, 3), (0.7501, 4)])
def test_tokens_that_reach_top_p_exactly_are_enough(top_p, kept):
    # Four equal logits have exactly a quarter each.
    found = lm.probabilities(torch.zeros(2, 4), top_p=top_p)
    assert (found > 0).sum(-1).tolist() == [kept, kept]
    torch.testing.assert_close(found.amax(-1), torch.full((2,), 1 / kept))


def test_refuses():
    model, prompt = model_of(GPT2), torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="4 tokens and 22 new ones need 25 .* has 24: ask for at most 21"):
        lm.generate(model, prompt, new_tokens=22)
    for empty in (prompt[:, :0], prompt[:0]):
        with pytest.raises(ValueError, match="there is no token to continue"):
            lm.generate(model, empty, new_tokens=2)
    for given in (prompt[0], [[1, 2]]):
        with pytest.raises(
            ValueError, match=r"tokens must be a tensor \(B, S\) of int64 or int32, got (torch.int64|list)"
        ):
            lm.generate(model, given, new_tokens=2)
    with pytest.raises(ValueError, match=r"got ndarray: for one text, give torch.tensor\(lm.encode\(text\)\).long"):
        lm.generate(model, lm.encode("text"), new_tokens=2)
    lm.generate(model, torch.tensor(lm.encode("\0\1")).long()[None], new_tokens=2)
    with pytest.raises(ValueError, match="new_tokens must be"):
        lm.generate(model, prompt, new_tokens=0)
    with pytest.raises(ValueError, match="temperature must be"):
        lm.generate(model, prompt, new_tokens=1, temperature=-1)
    for top_p in (0, 1.2, -0.5):
        with pytest.raises(ValueError, match="top_p must be a fraction above 0 and at most 1"):
            lm.generate(model, prompt, new_tokens=1, top_p=top_p)
    with pytest.raises(
        ValueError, match="the prompt has 30 tokens, and the model's context 24: give at most its last 24"
    ):
        lm.generate(model, torch.zeros(1, 30, dtype=torch.long), new_tokens=1)
    assert lm.generate(model, torch.zeros(1, 24, dtype=torch.long), new_tokens=1).shape == (1, 25)
    with pytest.raises(ValueError, match="unknown kind of cache 'ring'"):
        lm.generate(model, prompt, new_tokens=1, cache="ring")
    used = lm.KVCache(GPT2)
    lm.generate(model, prompt, new_tokens=2, cache=used)
    with pytest.raises(ValueError, match="the cache holds 5 tokens of another text"):
        lm.generate(model, prompt, new_tokens=2, cache=used)
    assert model.training


def test_each_part_is_in_its_own_mode_afterwards():
    model, prompt = model_of(GPT2).train(), torch.randint(31, (1, 4))
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    lm.generate(model, prompt, new_tokens=2)
    assert [module.training for module in model.modules()] == modes
    lm.speculative(model, model, prompt, new_tokens=2)
    assert [module.training for module in model.modules()] == modes
