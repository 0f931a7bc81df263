"""A prompt and each token after it: FLOPs, peak and cache predicted, and counted of the model that runs."""

from dataclasses import replace

import pytest
import torch

from cs336kit import lm, measure, predict
from cs336kit.predict.engine.walk import Walk
from tests.kit.lm.test_caches import GPT2, LATENT, LLAMA

pytestmark = pytest.mark.torch

PARTLY_ROTATED = replace(LLAMA, rotary_dim=LLAMA.head_dim // 2)
CONFIGS = {
    "GPT-2": (GPT2, "eager"), "grouped": (LLAMA, "sdpa"), "multi-query": (replace(LLAMA, kv_heads=1), "eager"),
    "window": (replace(LLAMA, window=5), "sdpa"), "latent": (LATENT, "eager"),
    "partly rotated": (PARTLY_ROTATED, "sdpa"),
    "latent with values as wide as keys": (replace(LATENT, value_dim=None, query_latent=0), "sdpa"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["growing", "contiguous"])
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_the_prompt_and_each_token_after_it(name, kind):
    config, attention = CONFIGS[name]
    model, text = lm.DecoderOnly(config, attention=attention).eval(), torch.zeros(2, 9, dtype=torch.long)
    options = {"batch": 2, "attention": attention, "cache": kind}
    caches = [lm.KVCache(config, kind=kind, tokens=9) for _ in range(2)]
    for start, stop in [(0, 6), (6, 7), (7, 8), (8, 9)]:
        new = text[:, start:stop]
        phase = "decode" if start else "prefill"
        written = predict.program(config, sequence=stop, phase=phase, **options)
        walk = Walk(written)
        walk.forward(written.items)
        counted = measure.flops(lambda: model(new, cache=caches[0])).total  # noqa: B023
        assert sum(count * op.forward_flops for op, count in written.operations()) == counted
        peak = measure.peak_bytes(lambda: model(new, cache=caches[1]), device="cpu")  # noqa: B023
        # Room for later tokens is allocated with the first ones.
        room = caches[1].bytes - predict.kv_cache_bytes(config, batch=2, sequence=6, precision="fp32")
        assert peak == walk.ledger.peaks["forward"].bytes + (room if kind == "contiguous" and not start else 0)
    held = predict.kv_cache_bytes(config, batch=2, sequence=9, precision="fp32")
    assert caches[0].bytes == held


@pytest.mark.parametrize(("phase", "queries"), [("prefill", 7), ("decode", 1)])
def test_the_heads_of_a_single_position_are_merged_without_a_copy(phase, queries):
    c = PARTLY_ROTATED
    q, k = torch.randn(2, c.heads, queries, c.head_dim), torch.randn(2, c.heads, 7, c.head_dim)
    z = torch.nn.functional.scaled_dot_product_attention(q, k, k)
    copied = z.transpose(1, 2).flatten(2).data_ptr() != z.data_ptr()
    written = predict.program(c, batch=2, sequence=7, phase=phase, attention="sdpa")
    assert copied == any(op.place.endswith("merge heads") for op, _ in written.operations())


def test_a_contiguous_cache_moves_the_new_token_and_a_growing_one_all():
    options = {"batch": 2, "phase": "decode"}
    token = predict.kv_cache_bytes(LLAMA, batch=2, sequence=1, precision="fp32")
    for past in (4, 20):
        growing, once = (
            predict.traffic_bytes(LLAMA, sequence=past + 1, cache=kind, **options)["attention"]
            for kind in ("growing", "contiguous")
        )
        # The new token is read and written in both; the past is read for a longer tensor, and written into it.
        assert growing - once == 2 * past * token


@pytest.mark.parametrize(("cache", "place"), [("growing", "value/all"), ("contiguous", "value/write")])
def test_a_cache_holds_values_in_their_own_type_where_a_norm_left_the_keys_in_fp32(cache, place):
    config, options = replace(GPT2, qk_norm="head"), {"batch": 2, "sequence": 5, "phase": "decode", "cache": cache}
    written = predict.program(config, **options, precision="autocast", attention="sdpa", device="cuda")
    placed = {op.place.removeprefix("block/attention/"): op for op, _ in written.operations()}
    for at, dtype in ((place, "bf16"), (place.replace("value", "key"), "fp32")):
        assert {t.dtype for t in (*placed[at].inputs, *placed[at].outputs)} == {dtype}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_values_of_a_contiguous_cache_are_one_batch_of_heads_even_after_a_cast(precision):
    held = torch.randn(2, 4, 9, 6).bfloat16()[:, :, :7].float()
    assert held.flatten(0, 1).data_ptr() == held.data_ptr()
    # No kernel takes values of another width on a CPU, so that torch writes attention out, in fp32.
    config, options = replace(GPT2, value_dim=6), {"attention": "sdpa", "phase": "prefill", "cache": "contiguous"}
    written = predict.program(config, batch=2, sequence=7, precision=precision, **options)
    assert [op.place for op, _ in written.operations() if "/batched" in op.place] == [
        "block/attention/sdpa/query/batched"
    ]


def test_a_cache_that_nobody_has():
    with pytest.raises(ValueError, match=r"unknown cache 'paged'. Known: growing, contiguous"):
        predict.program(GPT2, batch=1, sequence=2, phase="decode", cache="paged")
