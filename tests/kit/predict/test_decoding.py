"""The small doors to serving and speculative decoding, against arithmetic from published numbers."""

import random

import pytest

from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    accelerator,
    accelerators,
    critical_batch,
    decode_bounds,
    kv_cache_bytes,
    speculative_speedup,
    speculative_tokens,
)
from cs336kit.predict.chip import chip as chip_of
from cs336kit.predict.decoding.bounds import Bounds
from cs336kit.predict.decoding.latency import _reads_longer
from cs336plan import ServingQuestion, serve

LLAMA, FALCON = MODELS["llama-3-8b"], MODELS["falcon-40b"]


def test_bounds_are_those_of_serve():
    answer = serve(ServingQuestion(LLAMA, prompt=2000, output=1, batch=3))
    options = {"accelerator": "h100-sxm"}
    assert decode_bounds(LLAMA, cached=2000, batch=3, **options) == dict(answer.tokens)[3]


@pytest.mark.parametrize(("name", "products"), [("a100-sxm-80gb", "bf16"), ("h100-sxm", "bf16"), ("h100-sxm", "fp8")])
def test_without_a_cache_the_critical_batch_is_the_chips_intensity_times_bytes_over_two(name, products):
    chip = accelerator(name)
    bytes_each = 1 if products == "fp8" else 2
    intensity = chip.peak(products) / chip.bandwidth
    # Two FLOPs for each weight that is read; the head stays in bf16, the cache of two tokens is read too.
    found = critical_batch(LLAMA, accelerator=name, weights=products)
    assert found == pytest.approx(intensity * bytes_each / 2, rel=0.1 if products == "fp8" else 0.02)
    before, at = (
        decode_bounds(LLAMA, accelerator=name, cached=1, batch=b, weights=products) for b in (found - 1, found)
    )
    assert (before.bound, at.bound) == ("memory", "compute")


def test_at_equal_times_it_computes():
    chip, _ = chip_of(None, memory_bytes=1, peak_flops_per_second=10.0, bandwidth=5.0)
    assert [_reads_longer(Bounds(1, 1, 20, size, "", compute=2.0), chip) for size in (9, 10, 11)] == [
        False,
        False,
        True,
    ]


def test_with_long_caches_no_batch_is_large_enough():
    assert critical_batch(LLAMA, accelerator="h100-sxm", cached=4000) is None
    assert critical_batch(MODELS["gpt2"], accelerator="a100-sxm-80gb", cached=1000) is None
    listed = [critical_batch(LLAMA, accelerator=chip.name) for chip in accelerators() if "bf16" in chip.precisions]
    assert all(listed) and len(listed) > 3


def test_falcon_40b_as_published():
    # config.json: 60 layers, 8 key/value heads of width 64, and not the one of multi-query attention.
    token = kv_cache_bytes(FALCON, batch=1, sequence=1)
    assert token == 2 * 60 * 8 * 64 * 2
    # Repeated for all 128 query heads, as transformers caches them, it is what is often said: 3.75 GiB for 2,048 tokens.
    assert 128 // 8 * 2048 * token == 3.75 * 2**30
    eight = decode_bounds(FALCON, accelerator="a100-sxm-80gb", count=8, cached=2047)
    one = decode_bounds(FALCON, accelerator="a100-sxm-80gb", cached=2047)
    weights = 2 * 41_303_293_952 / accelerator("a100-sxm-80gb").bandwidth
    assert one.least == pytest.approx(weights, rel=0.02) and eight.least == pytest.approx(weights / 8, rel=0.02)


def test_tokens_of_a_pass_are_those_of_a_simulation():
    r, alpha, k, rounds = random.Random(0), 0.7, 4, 20_000
    total = 0
    for _ in range(rounds):
        total += 1
        for _ in range(k):
            if r.random() >= alpha:
                break
            total += 1
    # One round's tokens lie between 1 and 5, so their deviation is at most 2: five deviations of the mean are 0.07.
    assert total / rounds == pytest.approx(speculative_tokens(acceptance=alpha, guesses=k), abs=0.07)
    assert speculative_tokens(acceptance=alpha, guesses=k) == pytest.approx((1 - alpha**5) / (1 - alpha))


def test_speedup_at_its_ends():
    assert speculative_speedup(acceptance=1, guesses=4, cost_ratio=0) == 5
    assert speculative_speedup(acceptance=0, guesses=4, cost_ratio=0.25) == 0.5
    # Leviathan et al. 2023, table 1: a draft that costs nothing.
    for alpha, gamma, speed in (
        (0.6, 2, 1.96),
        (0.7, 3, 2.53),
        (0.8, 2, 2.44),
        (0.8, 5, 3.69),
        (0.9, 2, 2.71),
        (0.9, 10, 6.86),
    ):
        assert speculative_speedup(acceptance=alpha, guesses=gamma, cost_ratio=0) == pytest.approx(speed, abs=0.005)
    with pytest.raises(ValueError, match="acceptance must be a fraction from 0 to 1, got 80. If 80 is a percentage"):
        speculative_speedup(acceptance=80, guesses=4, cost_ratio=0)
    with pytest.raises(ValueError, match="cost_ratio must be a finite number of at least 0, got -1"):
        speculative_speedup(acceptance=0.8, guesses=4, cost_ratio=-1)


def test_what_cannot_be_asked():
    with pytest.raises(ValueError, match="tokens must be a positive whole number"):
        decode_bounds(LLAMA, accelerator="h100-sxm", cached=0)
    with pytest.raises(ValueError, match="longer than the context of 8,192"):
        decode_bounds(LLAMA, accelerator="h100-sxm", cached=8192)


def test_a_cache_of_four_bits_has_two_numbers_in_a_byte_and_rows_of_whole_bytes():
    config = TransformerConfig(layers=2, d_model=16, heads=4, kv_heads=2, head_dim=5, vocab=11, context=8)
    size = {"batch": 3, "sequence": 7, "precision": "int4"}
    # Keys and values of 2 layers, 3 sequences, 2 heads and 7 tokens: five halves of a byte are three bytes.
    assert kv_cache_bytes(config, **size) == 2 * 2 * 3 * 2 * 7 * 3
    # A scale of two bytes beside each row, and the second page of four tokens whole.
    assert kv_cache_bytes(config, **size, scales="fp16", page=4) == 2 * 2 * 3 * 2 * 8 * (3 + 2)
