import dataclasses
import json
import random

import pytest

from cs336kit.command import main
from cs336kit.predict import MODELS, TransformerConfig, accelerator, accelerators, kv_cache_bytes, parameters
from cs336kit.predict.decoding.bounds import _op_bytes
from cs336plan import ServingQuestion, serve
from cs336plan.serving.advice import _options
from cs336plan.serving.schema import KEYS, SCHEMA

LLAMA = MODELS["llama-3-8b"]
#: matrices of the 32 blocks, and everything else but the token embedding, of which a token reads one row
MATRICES = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
REST = 128256 * 4096 + (2 * 32 + 1) * 4096


def test_a_token_reads_the_weights_and_the_cache_once():
    answer = serve(ServingQuestion(LLAMA, prompt=2000, output=500))
    (batch, bounds), *_ = answer.tokens
    row = 2 * 4096
    # 2,500 tokens are read, and the last one of them is written before.
    cache = 2 * 32 * 2500 * 1024 * 2
    written = 2 * 32 * 1024 * 2
    assert batch == 1
    assert bounds.bytes == 2 * (MATRICES + REST) + row + cache + written
    assert bounds.flops == 2 * (MATRICES + 128256 * 4096) + 4 * 32 * 4096 * 2500
    assert bounds.least == bounds.bytes / 3.35e12 and bounds.bound == "memory"
    assert answer.cache_bytes == cache == kv_cache_bytes(LLAMA, batch=1, sequence=2500)


def test_a_prompt_computes_half_of_the_pairs_and_logits_of_one_position():
    S = 2048
    answer = serve(ServingQuestion(LLAMA, prompt=S, output=100))
    flops = 2 * S * MATRICES + 2 * 128256 * 4096 + 2 * 32 * 4096 * S * S
    assert answer.prefill.flops == flops and answer.prefill.bound == "compute"
    assert answer.prefill.least == flops / 989.4e12 < answer.prefill.most


#: Two layers, so small that every tensor is counted by hand.
LITTLE = TransformerConfig(layers=2, d_model=16, heads=2, vocab=40, context=64, positions="none", bias="none")


def moved(rows, sequences, keys, logits):
    """All that a pass of LITTLE reads and writes, operation by operation: 2 bytes a number, `rows` tokens of `sequences`."""
    D, F, V, state, indices = 16, 64, 40, 2 * rows * 16, 8 * rows
    # Scale and shift, and an fp32 mean and spread of each row.
    norm = 2 * state + 2 * 2 * D + 2 * 4 * rows
    products = sum(2 * rows * (a + b) + 2 * a * b for a, b in ((D, D),) * 4 + ((D, F), (F, D)))
    # The kernel also writes the logarithm of each row's sum, and 24 bytes for the random numbers of a dropout.
    fused = 2 * state + 2 * 2 * sequences * keys * D + 4 * 2 * rows + 24
    block = 2 * norm + products + fused + 2 * (2 * rows * F) + 2 * 3 * state
    # As many rows of the table are read as are written.
    return 2 * state + indices + 2 * block + norm + 2 * logits * (D + V) + 2 * D * V


def test_what_is_moved_where_nothing_overlaps_is_every_tensor_of_every_operation():
    chip = {"bandwidth": 1.0, "peak_flops_per_second": 1e40, "memory_bytes": 80e9}
    answer = serve(ServingQuestion(LITTLE, prompt=6, output=4, batch=3, accelerator=None, **chip))
    token = dict(answer.tokens)[3]
    new = 2 * 2 * 3 * 16 * 2
    assert token.most == moved(3, 3, 10, 3) + new
    # One row of logits, and keys and values that go to the cache.
    cache = 2 * 2 * 6 * 16 * 2
    assert answer.prefill.most == moved(6, 1, 6, 1) + cache
    weights = 2 * (2 * 12 * 16 * 16 + (2 * 2 + 1) * 2 * 16 + 40 * 16)
    assert answer.prefill.cache_bytes == cache and answer.prefill.bytes == weights + 2 * 6 * 16 + cache
    assert (
        token.cache_bytes == 2 * 2 * 3 * 10 * 16 * 2 + new and token.bytes == weights + 2 * 3 * 16 + token.cache_bytes
    )


@pytest.mark.parametrize(
    "changes", [{"window": 4}, {"experts": 2, "experts_per_token": 1, "mlp": "swiglu"}, {"positions": "rope"}]
)
def test_what_takes_no_time_moves_no_byte(changes):
    """In two bytes a number every sum is even: of three layers, too, whose masks and unvisited experts are not read."""
    config = dataclasses.replace(LITTLE, layers=3, **changes)
    chip = {"bandwidth": 1.0, "peak_flops_per_second": 1e40, "memory_bytes": 80e9}
    answer = serve(ServingQuestion(config, prompt=6, output=4, accelerator=None, **chip))
    token = dict(answer.tokens)[1]
    for bounds in (answer.prefill, token):
        assert [number % 2 for number in (bounds.most, bounds.bytes, bounds.cache_bytes)] == [0, 0, 0]
    # The pages of a window hold what it sees, the new token among it, which takes the place of the oldest.
    positions = 4 if "window" in changes else 10
    assert token.cache_bytes == 2 * 3 * (positions + 1) * 16 * 2


def test_a_token_of_a_window_reads_what_the_window_sees():
    chip = {"bandwidth": 1.0, "peak_flops_per_second": 1e40, "memory_bytes": 80e9}
    for window, keys in ((3, 3), (9, 9), (10, 10), (11, 10), (None, 10)):
        config = dataclasses.replace(LITTLE, window=window)
        answer = serve(ServingQuestion(config, prompt=6, output=4, batch=3, accelerator=None, **chip))
        token = dict(answer.tokens)[3]
        new = 2 * 2 * 3 * 16 * 2
        assert token.most == moved(3, 3, keys, 3) + new and token.cache_bytes == keys * new + new
        # Two products of 16 numbers for each key, in two layers, beside those of the matrices.
        assert token.flops == 3 * (2 * (2 * 12 * 16 * 16 + 40 * 16) + 2 * 2 * 2 * 16 * keys)


@pytest.mark.parametrize("query_latent", [0, 8])
def test_at_best_latents_and_the_matrix_behind_them_are_read_once(query_latent):
    config = TransformerConfig(
        layers=2, d_model=16, heads=2, vocab=40, context=64, positions="none", bias="none", norm="rmsnorm", head_dim=12,
        value_dim=8, kv_latent=6, query_latent=query_latent, rotary_dim=4,
    )  # fmt: skip
    answer = serve(ServingQuestion(config, prompt=6, output=4, batch=3))
    token, cache = dict(answer.tokens)[3], 2 * 2 * (6 + 4)
    # Ten tokens of three sequences are read, and one of each is written before.
    assert answer.cache_bytes == cache * 10 and token.cache_bytes == 3 * cache * (10 + 1)
    # Every parameter is read, that of the embedding by the head, beside three rows of it.
    assert token.bytes - token.cache_bytes == 2 * (parameters(config).total + 3 * 16)


def test_what_a_prompt_leaves_in_the_pages_of_a_window_is_not_copied_there():
    from cs336kit.predict import program

    config = dataclasses.replace(LITTLE, window=4)
    walked = program(config, batch=1, sequence=6, phase="prefill", precision="bf16", attention="sdpa", device="cuda")
    copies = [op for op, _ in walked.operations() if op.place.endswith("/last")]
    assert [op.kind for op in copies] == ["copy", "copy"]
    assert [_op_bytes(op, {}, set(), 2, 6) for op in copies] == [({}, {}, 0)] * 2


def test_a_prompt_works_in_the_bytes_of_its_widest_moment():
    # Wide layers hold the input and the output of the MLP's function, whatever the number of layers and of keys.
    wide = dataclasses.replace(LITTLE, d_ff=4096)
    two, many = (serve(ServingQuestion(dataclasses.replace(wide, layers=n), prompt=32, output=8)) for n in (2, 40))
    assert two.working_bytes == many.working_bytes == pytest.approx(2 * 32 * 4096 * 2, rel=0.02)


#: Ten tokens in passes of 4, 4 and 2: behind the first pass are 4 tokens, and behind the second one 8.
CHUNKED = {"prompt": 10, "output": 4, "chunk": 4}
ENDLESS = {"bandwidth": 1.0, "peak_flops_per_second": 1e40, "memory_bytes": 80e9, "accelerator": None}


@pytest.mark.parametrize(
    ("window", "past", "left"), [(None, (4, 8), 10), (9, (4, 8), 10), (6, (4, 6), 10), (3, (3, 3), 8)]
)
def test_each_chunk_of_a_prompt_reads_the_weights_and_what_came_before_it(window, past, left):
    config = dataclasses.replace(LITTLE, window=window)
    chunked, whole = (serve(ServingQuestion(config, **CHUNKED | {"chunk": c}, **ENDLESS)).prefill for c in (4, 10))
    token, head = 2 * 2 * 16 * 2, 2 * 16 * 40
    blocks = 2 * (2 * 12 * 16 * 16 + (2 * 2 + 1) * 2 * 16)
    assert chunked.cache_bytes == token * (left + sum(past))
    # The head is read once, of the table a row for each token.
    assert chunked.bytes == 3 * blocks + head + 2 * 10 * 16 + chunked.cache_bytes
    by_hand = moved(4, 1, 4, 0) + moved(4, 1, 4 + past[0], 0) + moved(2, 1, 2 + past[1], 1) - 2 * head
    assert chunked.most == by_hand + token * left
    # Pairs of positions add up.
    assert chunked.flops == whole.flops and (
        window or chunked.flops == 2 * 10 * 2 * 12 * 256 + 2 * 16 * 40 + 2 * 2 * 100 * 16
    )
    halves = serve(ServingQuestion(config, cache="fp8", **CHUNKED, **ENDLESS)).prefill
    assert halves.cache_bytes == chunked.cache_bytes / 2


def test_chunks_of_latents_make_keys_and_values_of_what_came_before_again():
    config = TransformerConfig(
        layers=2, d_model=16, heads=2, vocab=40, context=64, positions="none", bias="none", norm="rmsnorm", head_dim=12,
        value_dim=8, kv_latent=6, rotary_dim=4,
    )  # fmt: skip
    chunked, whole, four, two = (
        serve(ServingQuestion(config, **{**CHUNKED, **size}, **ENDLESS))
        for size in ({}, {"chunk": 10}, {"prompt": 4}, {"prompt": 2})
    )
    # For each of two heads 8 numbers of a key and 8 of a value, from 6: of 4 + 8 tokens in two layers.
    assert chunked.prefill.flops - whole.prefill.flops == 2 * 12 * 2 * 6 * 2 * (8 + 8)
    # They are written, keys get the 4 turned numbers, and attention reads both, beside 10 numbers of the cache.
    made, keys, values, head = 2 * 2 * 16, 2 * 2 * 12, 2 * 2 * 8, 2 * (16 + 40 + 16 * 40)
    again = made + 2 * 2 * 8 + keys + keys + values + 2 * 10
    assert chunked.prefill.most == 2 * (four.prefill.most - head) + two.prefill.most + 2 * 12 * again
    assert chunked.working_bytes == four.working_bytes + 4 * (made + keys)
    seven, of_seven = (
        serve(ServingQuestion(config, **{**CHUNKED, **size})) for size in ({"chunk": 7}, {"prompt": 7, "chunk": 7})
    )
    assert seven.working_bytes == of_seven.working_bytes + 3 * (made + keys)
    assert any("from the latents again, in pieces of as many" in note for note in chunked.notes)
    assert not any("again" in note for note in whole.notes)
    # Of a window no more than it has.
    narrow = dataclasses.replace(config, window=3)
    some, all_of_it = (serve(ServingQuestion(narrow, **CHUNKED | {"chunk": c}, **ENDLESS)).prefill for c in (4, 10))
    assert some.flops - all_of_it.flops == 2 * (3 + 3) * 2 * 6 * 2 * (8 + 8)


def test_a_prompt_works_in_the_bytes_of_one_chunk():
    many, one, asked = (serve(ServingQuestion(MODELS["llama-3.1-8b"], output=8, **size)) for size in (
        {"prompt": 100_000}, {"prompt": 8192}, {"prompt": 100_000, "chunk": 2048}))  # fmt: skip
    assert many.working_bytes == one.working_bytes > 3.9 * asked.working_bytes
    assert [answer.as_dict()["chunk"] for answer in (many, one, asked)] == [8192, 8192, 2048]
    assert "prompts of 100,000 tokens in passes of 2,048 tokens, answers of 8" in str(asked)
    # A chunk that is no shorter than the prompt is one pass.
    alone, longer = (serve(ServingQuestion(LLAMA, prompt=2000, output=8, chunk=chunk)) for chunk in (2000, 10**9))
    assert alone.prefill == longer.prefill and alone.as_dict()["chunk"] == longer.as_dict()["chunk"] == 2000
    # Ranks send as much in all.
    pair = [serve(ServingQuestion(LITTLE, count=2, prompt=10, output=4, chunk=chunk)).prefill.sent for chunk in (3, 10)]
    assert pair[0] == pair[1] > 0


def test_scores_that_are_written_out_are_those_of_one_pass():
    wide = dataclasses.replace(LITTLE, head_dim=320)
    chunked, whole = (serve(ServingQuestion(wide, **CHUNKED | {"chunk": c})) for c in (4, 10))
    assert chunked.prefill == whole.prefill and chunked.working_bytes == whole.working_bytes
    assert "heads of 320 have their scores written out, and a prompt is taken in one pass" in chunked.notes
    assert not any("one pass" in note for note in whole.notes) and "in passes of" not in str(chunked)


def test_bounds_of_ranks_whose_links_are_all_that_takes_time():
    endless = {"bandwidth": 1e40, "peak_flops_per_second": 1e40}
    answer = serve(ServingQuestion(LITTLE, prompt=6, output=4, batch=3, count=2, **endless))
    link = accelerator("h100-sxm").facts["link"].value
    for bounds, rows in ((dict(answer.tokens)[3], 3), (answer.prefill, 6)):
        # Behind the table, and behind attention and MLP of both layers, a row's sum: two ranks send as much as it has.
        assert bounds.sent == (1 + 2 * 2) * rows * 2 * 16
        assert bounds.bound == "links" and bounds.least == bounds.most == pytest.approx(bounds.sent / link)


def test_what_is_not_asked_is_half_of_the_context_and_a_usual_length():
    for context, prompt, output in ((8192, 2048, 512), (2000, 1000, 512), (600, 300, 300)):
        answer = serve(ServingQuestion(dataclasses.replace(LITTLE, context=context)))
        assert (answer.question.prompt, answer.question.output) == (prompt, output)
        assert answer.logits_bytes == 40 * 2 + 40 * 4
    whole = serve(ServingQuestion(LITTLE, prompt=63, output=1))
    batches = [*(2**i for i in range(17)), whole.largest_batch]
    assert whole.question.prompt == 63 and [batch for batch, _ in whole.tokens] == batches
    with pytest.raises(
        ValueError,
        match="a prompt of 1 and an answer of 1 tokens are longer than the context of 1: shorten one$",
    ):
        serve(ServingQuestion(dataclasses.replace(LITTLE, context=1, positions="learned")))


def test_batches_are_powers_of_two_what_fits_and_what_is_asked():
    def batches(**changes):
        return [batch for batch, _ in serve(ServingQuestion(LLAMA, **changes)).tokens]

    answer = serve(ServingQuestion(LLAMA))
    fixed = answer.weights.total + answer.working_bytes + answer.allowance.total
    each = answer.cache_bytes + answer.logits_bytes  # 2,560 tokens fill 160 pages
    for most, rows in ((4, [1, 2, 4]), (5, [1, 2, 4, 5]), (0, [1])):
        # Memory for so many to the byte: the allowance does not change with it.
        room = {"memory_bytes": fixed + most * each, "allowance": answer.allowance.total}
        assert serve(ServingQuestion(LLAMA, **room)).largest_batch == most and batches(**room) == rows
    assert batches(memory_bytes=fixed + 4 * each, allowance=answer.allowance.total, batch=3) == [1, 2, 3, 4]


def test_a_million_output_tokens_are_priced_with_their_prompts():
    question = ServingQuestion(MODELS["llama-3.1-8b"], prompt=32000, chunk=32000, output=200, price_per_hour=2.5)
    answer = serve(question)
    assert answer.largest_batch == 14
    # 22.1 ms of 14 tokens (22.0 on average over the answer) and 723 ms of a prompt for 200 tokens, at 2.5 / 3600 a second.
    by_hand = 2.5 / 3600 * 1e6 * (0.0220 / 14 + 0.723 / 200)
    cost = answer.as_dict()["cost_per_million_tokens"]
    assert cost["batch"] == 14 and cost["least"] == pytest.approx(by_hand, rel=2e-3)
    assert (
        "cost 3.6 to 4.52 at batch 14\n    decoding 1.09 to 1.12, averaged over the answer; prompts 2.51 to 3.39 (at\n"
        "      best several in one pass)\n"
    ) in str(answer)


def test_sustained_are_output_tokens_with_their_prompts():
    """14 sequences end 200 tokens in 200 steps of 22.0 ms on average, and 14 prompts take 723 ms each meanwhile."""
    answer = serve(ServingQuestion(MODELS["llama-3.1-8b"], prompt=32000, chunk=32000, output=200))
    values = answer.as_dict()["sustained"]
    seconds = 200 * 0.0220 + 14 * 0.723
    assert values["batch"] == 14 and values["requests_per_second_most"] == pytest.approx(14 / seconds, rel=2e-3)
    assert values["tokens_per_second_most"] == pytest.approx(200 * 14 / seconds, rel=2e-3)
    assert values["requests_per_second_least"] * 200 == pytest.approx(values["tokens_per_second_least"])
    # What a million cost at 3600 an hour are its seconds, on each of the accelerators.
    two = serve(ServingQuestion(LLAMA, count=2, price_per_hour=3600))
    assert 2e6 / two.cost.total[0] == pytest.approx(two.as_dict()["sustained"]["tokens_per_second_most"])
    assert serve(ServingQuestion(LLAMA, memory_bytes=2 * 10**9)).as_dict()["sustained"] is None


@pytest.mark.parametrize(("own", "rate"), [(50e9, 250e9), (400e9, 600e9), (20e9, 160e9)])
def test_at_best_ranks_of_two_nodes_use_all_of_their_links(own, rate):
    """A switch adds what a ring of 16 H800 sends 30/16 times: 200 GB/s inside a node and `own` to another, or 8 times `own`."""
    answer = serve(ServingQuestion(MODELS["llama-3-70b"], accelerator="h800-sxm", count=16, between_nodes=own))
    for bounds in (answer.prefill, *dict(answer.tokens).values()):
        assert bounds.links == pytest.approx(bounds.sent * 16 / 30 / rate, rel=1e-6)


def test_prompts_of_two_nodes_are_sustained_no_faster_than_their_links():
    """However many prompts are processed together, what each sends takes its time: at 8 · 20 GB/s, as above, the longest."""
    slow = ServingQuestion(MODELS["llama-3-70b"], accelerator="h800-sxm", count=16, between_nodes=20e9, output=100)
    answer = serve(slow)
    assert answer.prefill.bound == "links"
    assert answer.sustained.prompts[0] * 100 == pytest.approx(answer.prefill.sent * 16 / 30 / 160e9, rel=1e-6)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("count", [1, 4])
def test_efficiency_takes_a_share_of_bandwidth_and_peak_and_nothing_else(name, count):
    full, half, one = (
        serve(ServingQuestion(MODELS[name], accelerator="h200-sxm", count=count, weights="fp8", **share))
        for share in ({}, {"efficiency": 0.5}, {"efficiency": 1})
    )
    assert full.tokens == one.tokens and full.prefill == one.prefill
    for before, after in zip(*((a.prefill, *dict(a.tokens).values()) for a in (full, half)), strict=True):
        assert after.compute == 2 * before.compute and after.links == before.links
        # What is sent by rings keeps its time; all else takes twice as long.
        rings = 2 * before.most - after.most
        assert (rings == pytest.approx(0, abs=1e-12)) == (count == 1) and rings < before.most
        assert after.least == max(2 * before.least, before.links) or before.bound == "links"
        assert (after.bytes, after.flops, after.sent) == (before.bytes, before.flops, before.sent)
    assert half.largest_batch == full.largest_batch and half.as_dict()["efficiency"] == 0.5
    assert half.chip == full.chip, "the rates that are printed are those of the datasheet"
    if count == 1:
        assert half.sustained.total == pytest.approx([2 * seconds for seconds in full.sustained.total])


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_prompts_together_read_their_caches_at_the_share_of_the_bandwidth_that_is_reached(share):
    """In passes of one token, each of 4,096 reads the cache up to itself: 2 · 32 · 8 · 128 values of two bytes a token."""
    answer = serve(ServingQuestion(MODELS["llama-3-8b"], prompt=4096, chunk=1, output=100, efficiency=share))
    read = 131_072 * 4096 * 4097 // 2
    assert answer.prefill.compute < read / (share * 3.35e12), "else reading the caches is not what takes the time"
    assert answer.sustained.prompts[0] * 100 == pytest.approx(read / (share * 3.35e12))


def test_a_latency_that_is_met_exactly_is_met():
    answer = serve(ServingQuestion(LLAMA, batch=3))
    three = dict(answer.tokens)[3]
    assert serve(ServingQuestion(LLAMA, latency=three.least)).batch_for_latency[0] == 3
    assert serve(ServingQuestion(LLAMA, latency=three.most)).batch_for_latency[1] == 3


@pytest.mark.parametrize(
    ("weights", "bits"), [("fp8", 8), ("int8", 8), ("int4", 4 + 20 / 128), ("mxfp4", 4.25), ("nf4", 4.126953125)]
)
def test_packed_weights_are_matrices_of_blocks_with_their_scales(weights, bits):
    answer = serve(ServingQuestion(LLAMA, weights=weights))
    assert answer.weights[f"matrices in {weights}"] == MATRICES * bits / 8
    assert answer.weights["embeddings, head, norms"] == 2 * (2 * 128256 * 4096 + 65 * 4096)
    assert serve(ServingQuestion(LLAMA, weights="fp32")).weights.total == 4 * 8_030_261_248


@pytest.mark.parametrize(
    ("name", "stored", "published"),
    [
        # OpenAI 2025, gpt-oss model card, table 1: checkpoint sizes, in GiB.
        ("openai/gpt-oss-120b", "mxfp4-experts", 60.8 * 2**30),
        ("openai/gpt-oss-20b", "mxfp4-experts", 12.8 * 2**30),
        # 384 experts in 60 of 61 layers, three matrices of 7,168 × 2,048 each, 4 bits and a bf16 scale for 32; all else in bf16.
        (
            "moonshotai/Kimi-K2-Thinking",
            "int4-g32-experts",
            60 * 384 * 3 * 7168 * 2048 * 4.5 / 8 + 2 * (1_026_408_209_408 - 60 * 384 * 3 * 7168 * 2048),
        ),
        # One byte for each of 671.0e9 parameters, and another for tables and head: 2 · 129,280 · 7,168.
        ("deepseek-ai/DeepSeek-V3", "fp8-block", 671_026_404_352 + 2 * 129_280 * 7168),
        # The id says so; two tables of 151,936 · 4,096.
        ("Qwen/Qwen3-235B-A22B-FP8", "fp8", 235_093_634_560 + 2 * 151_936 * 4096),
        ("Qwen/Qwen3-235B-A22B", "bf16", 2 * 235_093_634_560),
    ],
)
def test_weights_that_are_not_asked_for_are_those_of_the_checkpoint(name, stored, published):
    answer = serve(ServingQuestion(MODELS[name], name=name))
    assert answer.weights.total == pytest.approx(published, rel=2e-3)
    values, text = answer.as_dict(), " ".join(str(answer).split())
    assert values["weights"] == stored and values["published_weights"] == (None if stored == "bf16" else stored)
    assert f"weights in {stored}{'' if stored == 'bf16' else ' as published'}, cache in bf16" in text
    # What is asked for is taken.
    asked = serve(ServingQuestion(MODELS[name], weights="bf16"))
    assert asked.weights.total == 2 * answer.parameters and " as published" not in str(asked)


def test_packed_experts_leave_all_else_in_bf16():
    """gpt-oss-120b: 36 layers of 128 experts, whose gate, up and down are 2,880 × 2,880; biases, router and norms are none."""
    answer = serve(ServingQuestion(MODELS["gpt-oss-120b"]))
    experts = 36 * 128 * 3 * 2880 * 2880
    assert dict(answer.weights.items()) == {
        "experts in mxfp4": experts * 4.25 / 8, "all else, in bf16": 2 * (116_829_156_672 - experts),
    }  # fmt: skip
    # A token reads four experts of each layer, their biases among all else, and a row of the table.
    (one, bounds), *_ = answer.tokens
    matrices, biases = 36 * 3 * 2880 * 2880, 36 * 3 * 2880
    rest = 116_829_156_672 - 128 * (matrices + biases) - 201_088 * 2880
    read = 4 * matrices * 4.25 / 8 + 2 * (rest + 4 * biases + 2880)
    assert one == 1 and bounds.bytes - bounds.cache_bytes == pytest.approx(read, rel=1e-6)
    with pytest.raises(ValueError, match="weights in int4-experts, but this model has no experts: give int4"):
        serve(ServingQuestion(LLAMA, weights="int4-experts"))
    fp8 = serve(ServingQuestion(MODELS["mixtral-8x7b"], weights="fp8-experts", accelerator="h200-sxm"))
    assert fp8.chip.peak("fp8") == accelerator("h200-sxm").peak("fp8") and fp8.as_dict()["bits_per_weight"] == 8


def test_mxfp4_is_advised_where_it_is_published_or_the_chip_computes_in_fp4():
    room = {"memory_bytes": 50e9}
    for chip, changes in (("h100-sxm", "int4"), ("b200-sxm", "mxfp4")):
        advice = serve(ServingQuestion(MODELS["llama-3-70b"], accelerator=chip, **room)).advice
        assert advice[0].changes == {"weights": changes}


def test_every_byte_belongs_to_a_number_of_two():
    # A chip that moves one byte per second says what is moved.
    chip = {"bandwidth": 1.0, "peak_flops_per_second": 1e40, "memory_bytes": 80e9}
    answer = serve(ServingQuestion(MODELS["gpt2"], prompt=100, output=20, accelerator=None, **chip))
    for bounds in (answer.prefill, answer.tokens[0][1]):
        assert bounds.most > bounds.least == bounds.bytes > bounds.cache_bytes
        assert [number % 2 for number in (bounds.least, bounds.most, bounds.cache_bytes)] == [0, 0, 0]
        assert bounds.sent == 0


def test_fp8_weights_compute_in_fp8_where_the_chip_can():
    assert serve(ServingQuestion(LLAMA, weights="fp8")).chip.peak("fp8") == accelerator("h100-sxm").peak("fp8")
    a100 = serve(ServingQuestion(LLAMA, weights="fp8", accelerator="a100-sxm-80gb"))
    assert a100.chip.peak("bf16") == 312e12 and any("products in bf16" in note for note in a100.notes)


def test_attention_and_head_compute_in_bf16_beside_fp8_weights():
    S, (bf16, fp8) = 6000, (accelerator("h100-sxm").peak(kind) for kind in ("bf16", "fp8"))
    others = 2 * 128256 * 4096 + 2 * 32 * 4096 * S * S
    prompt = serve(ServingQuestion(LLAMA, prompt=S, output=100, weights="fp8")).prefill
    assert prompt.bound == "compute" and prompt.flops == 2 * S * MATRICES + others
    assert prompt.least == prompt.compute == pytest.approx(2 * S * MATRICES / fp8 + others / bf16)
    # A peak that was given is that of all products, and a chip without one for fp8 computes all in bf16.
    for changes, peak in (({"peak_flops_per_second": 5e14}, 5e14), ({"accelerator": "a100-sxm-80gb"}, 312e12)):
        one = serve(ServingQuestion(LLAMA, prompt=S, output=100, weights="fp8", **changes)).prefill
        assert one.compute == pytest.approx(one.flops / peak)


@pytest.mark.parametrize(
    ("weights", "products"),
    [
        # NVIDIA's datasheet of HGX B200, dense, one of eight: 9 PFLOP/s in fp4, 4.5 in fp8, 2.25 in bf16.
        ("fp8-block", 4.5e15),
        ("mxfp8", 4.5e15),
        ("nvfp4", 9e15),
        ("mxfp4", 2.25e15),
        ("int4", 2.25e15),
    ],
)
def test_matrices_compute_in_the_type_that_blackwell_has_for_them_and_the_rest_in_bf16(weights, products):
    S = 6000
    others = 2 * 128256 * 4096 + 2 * 32 * 4096 * S * S
    prompt = serve(ServingQuestion(LLAMA, prompt=S, output=100, weights=weights, accelerator="b200-sxm")).prefill
    assert prompt.compute == pytest.approx(2 * S * MATRICES / products + others / 2.25e15)


def test_the_largest_batch_is_the_last_that_fits():
    for question in (ServingQuestion(LLAMA), ServingQuestion(LLAMA, accelerator="l4", weights="int4", cache="fp8")):
        answer = serve(question)
        most, room = answer.largest_batch, answer.chip.memory_bytes
        assert answer.total(most) <= room < answer.total(most + 1)
        assert answer.tokens[-1][0] == most
    assert serve(ServingQuestion(LLAMA, accelerator="l4", weights="fp32")).largest_batch == 0


def test_a_memory_of_millions_of_sequences_holds_them():
    answer = serve(ServingQuestion(LITTLE, batch=10**6, latency=0.01, price_per_hour=2))
    most, room = answer.largest_batch, answer.chip.memory_bytes
    assert most > 10**6 and answer.total(most) <= room < answer.total(most + 1)
    # The table has powers of two up to 65,536, and then what was asked for and what was found.
    batches = [batch for batch, _ in answer.tokens]
    assert batches == [2**i for i in range(17)] + sorted({10**6, most, *answer.batch_for_latency})
    assert answer.as_dict()["tokens"][-1]["fits"] and answer.cost.batch == 10**6
    # So does advice where the weights leave no room, and the caches are small.
    wide = TransformerConfig(layers=1, d_model=2**16, heads=512, kv_heads=1, d_ff=400_000, vocab=2, context=2)
    (one, *_) = serve(ServingQuestion(wide, memory_bytes=10**11)).advice
    packed = serve(ServingQuestion(wide, memory_bytes=10**11, weights="fp8"))
    assert one.changes == {"weights": "fp8"} and one.largest_batch == packed.largest_batch > 10**6


def test_pages_waste_half_a_page_on_average_and_a_page_less_a_token_at_worst():
    answer = serve(ServingQuestion(LLAMA, page=16))
    token = 2 * 32 * 1024 * 2
    wasted = [-length % 16 * token for length in range(1000, 1000 + 16)]
    assert answer.page_waste == (sum(wasted) / 16, max(wasted)) and answer.cache_bytes_per_token == token
    said = " ".join(str(answer).split())
    assert "pages of 16 tokens leave 0.94 MiB of it empty on average, 1.88 at worst" in said
    assert serve(ServingQuestion(LLAMA, page=1)).page_waste == (0, 0)


def test_a_sequence_takes_the_pages_that_its_tokens_fill_and_no_more():
    # Of 256 tokens each, 1,024 tokens fill 4, and one more takes a fifth.
    for output, pages in ((24, 4), (25, 5)):
        answer = serve(ServingQuestion(LLAMA, prompt=1000, output=output, page=256))
        whole = kv_cache_bytes(LLAMA, batch=1, sequence=1000 + output, page=256)
        assert whole == pages * 256 * answer.cache_bytes_per_token
        assert answer.total(7) - answer.total(0) == 7 * (whole + answer.logits_bytes)


def test_the_largest_batch_for_a_latency_lies_between_its_bounds():
    from cs336kit.predict.decoding.bounds import token_bounds
    from cs336plan.serving.question import settled

    answer = serve(ServingQuestion(LLAMA, latency=0.01))
    best, sure = answer.batch_for_latency
    q = settled(answer.question)
    assert token_bounds(q, answer.chip, best).least <= 0.01 < token_bounds(q, answer.chip, best + 1).least
    assert token_bounds(q, answer.chip, sure).most <= 0.01 < token_bounds(q, answer.chip, sure + 1).most
    assert serve(ServingQuestion(LLAMA, latency=1e-6)).batch_for_latency == (0, 0)


def test_accelerators_that_share_a_model_divide_it_and_send():
    one, four = (serve(ServingQuestion(LLAMA, count=count, prompt=2000, output=500)) for count in (1, 4))
    assert four.weights["matrices in bf16"] * 4 == one.weights["matrices in bf16"]
    assert four.cache_bytes * 4 == one.cache_bytes
    (_, alone), (_, together) = one.tokens[0], four.tokens[0]
    assert 3.9 < alone.least / together.least < 4 and alone.sent == 0
    # After attention and after the MLP of each layer, a ring's all-reduce of one row; and what the logits need.
    assert together.sent >= 2 * 32 * 2 * 3 * (4096 * 2) // 4


@pytest.mark.parametrize("name", ["gpt2", "falcon-7b", "mixtral-8x7b", "mistral-7b", "gemma-2b", "palm-540b"])
def test_bounds_are_ordered_for_every_kind_of_model(name):
    config = MODELS[name]
    answer = serve(ServingQuestion(config, name=name, prompt=min(512, config.context // 2), output=64, batch=3))
    times = [bounds for _, bounds in answer.tokens]
    assert all(0 < bounds.least <= bounds.most for bounds in (*times, answer.prefill))
    assert [b.least for b in times] == sorted(b.least for b in times)
    text = str(answer)
    assert text.startswith(name) and all(len(line) <= 80 for line in text.splitlines())
    values = answer.as_dict()
    assert list(values) == list(KEYS) and json.loads(json.dumps(values)) == values


def simulated(experts, per_token, tokens, rounds=4000):
    """Experts that some tokens visit, which each choose different ones by chance: the mean of many throws."""
    r = random.Random(f"{experts} {per_token} {tokens}")
    throws = (len(set().union(*(r.sample(range(experts), per_token) for _ in range(tokens)))) for _ in range(rounds))
    return sum(throws) / rounds


def test_a_mixture_reads_the_experts_that_are_visited():
    config = MODELS["mixtral-8x7b"]
    answer = serve(ServingQuestion(config, weights="int4", prompt=64, output=64))
    read = {batch: bounds.bytes - bounds.cache_bytes for batch, bounds in answer.tokens}
    expert = 32 * 3 * 14336 * 4096 * (4 + 20 / 128) / 8
    rest = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096) * (4 + 20 / 128) / 8 + 2 * (
        32000 * 4096 + 65 * 4096 + 32 * 8 * 4096
    )
    assert read[1] == 2 * expert + rest + 2 * 4096
    for batch in (2, 4, 8):
        assert read[batch] == pytest.approx(simulated(8, 2, batch) * expert + rest, rel=0.01)
    # Where hundreds choose, none of eight is left out.
    assert read[256] == pytest.approx(8 * expert + rest + 2 * 256 * 4096, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # 128 · (1 − (15/16)¹⁶) = 82.4, 8 · (1 − (3/4)⁴) = 5.5: Mixtral's layers have 8 experts, two for each token.
        ("qwen3-30b-a3b", "chooses 8 of a layer's 128 experts by chance: a step of 16 reads 82 of them on average"),
        ("mixtral-8x7b", "chooses 2 of a layer's 8 experts by chance: a step of 4 reads 5 of them on average"),
    ],
)
def test_a_mixture_says_how_its_experts_are_chosen(name, words):
    answer = serve(ServingQuestion(MODELS[name], prompt=64, output=64, accelerator="h200-sxm"))
    (note,) = (note for note in answer.notes if words in note)
    assert note in answer.as_dict()["notes"] and words in " ".join(str(answer).split())


def test_a_step_that_could_read_every_expert_may_have_choices_to_spare():
    # Two tokens choose at most four of five experts, three all: 5 · (1 − (3/5)³) = 3.92.
    config = dataclasses.replace(LITTLE, experts=5, experts_per_token=2, mlp="swiglu")
    assert any("a step of 3 reads 4 of them on average" in note for note in serve(ServingQuestion(config)).notes)


def test_a_model_that_reads_every_weight_has_no_note_about_experts():
    one = dataclasses.replace(LITTLE, experts=2, experts_per_token=2, mlp="swiglu")
    assert not any("experts" in note for config in (LLAMA, one) for note in serve(ServingQuestion(config)).notes)


@pytest.mark.parametrize("device", accelerators(), ids=lambda device: device.name)
def test_every_listed_chip_answers(device):
    answer = serve(ServingQuestion(MODELS["llama-3.2-1b"], accelerator=device.name))
    assert answer.largest_batch and answer.prefill.least > 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"weights": "int3"}, "unknown type of weights 'int3'"),
        ({"cache": "int3"}, "unknown precision of a cache 'int3'"),
        (
            {"prompt": 8000, "output": 1000},
            "longer than the context of 8,192: shorten one, or .* `cs336kit serve`, --context",
        ),
        ({"page": 0}, "page must be"),
        ({"chunk": 0}, "chunk must be"),
        ({"chunk": True}, "chunk must be"),
        ({"latency": -1}, "latency must be"),
        ({"efficiency": 0}, "efficiency must be a fraction above 0"),
        ({"efficiency": 70}, "If 70 is a percentage, divide it by 100"),
        ({"batch": 0}, "batch must be"),
        ({"accelerator": "H100"}, "name one of them"),
        ({"accelerator": None, "memory_bytes": 80e9, "peak_flops_per_second": 1e15}, "give bandwidth"),
        ({"model": "llama-3-9b"}, "no model is called 'llama-3-9b'. Did you mean 'llama-3-8b'"),
        ({"model": 8e9}, "model must be a TransformerConfig or the name of a known model, got 8000000000.0: give one"),
        ({"count": 3}, "tp=3 does not divide 32 heads"),
        ({"count": 16}, "give between_nodes, that of one accelerator each way, such as 50e9"),
        ({"allowance": 2**40}, "leaves nothing"),
    ],
)
def test_what_cannot_be_served_gets_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        serve(dataclasses.replace(ServingQuestion(LLAMA), **changes))


@pytest.mark.parametrize("question", ["llama-3-8b", LLAMA, None])
def test_what_is_no_question_gets_a_sentence(question):
    with pytest.raises(
        ValueError, match=r"serve takes a ServingQuestion, got .*: give one, such as ServingQuestion\('llama-3-8b'\)"
    ):
        serve(question)


def test_a_known_model_is_served_by_its_name():
    named, given = serve(ServingQuestion("llama-3-8b")), serve(ServingQuestion(LLAMA, name="llama-3-8b"))
    assert named == given and str(named).startswith("llama-3-8b: 8,030,261,248 parameters")
    assert serve(ServingQuestion("llama-3-8b", name="mine")).question.name == "mine"


def test_a_model_that_one_node_holds_in_fewer_bits_is_not_sent_to_two():
    """405.85e9 parameters take 812 GB in bf16, of 8 · 80 GiB, and 406 GB in fp8."""
    fewest, pair, alone = serve(ServingQuestion("llama-3.1-405b")).advice
    assert fewest.changes == {"count": 4, "weights": "int4"}
    assert pair.changes == {"weights": "fp8", "count": 8} and alone.changes == {"count": 16}
    assert serve(ServingQuestion("llama-3.1-405b", **pair.changes)).largest_batch == pair.largest_batch > 0
    # Where one node holds it, no pair is asked for.
    assert [one.changes for one in serve(ServingQuestion("llama-3-70b")).advice][-1] == {"count": 2}


def test_a_window_that_is_full_keeps_no_further_token():
    """Every layer of Mistral 7B v0.1 keeps 4,096 tokens of 2 · 8 · 128 numbers in bf16."""
    full = str(serve(ServingQuestion("mistral-7b", prompt=4096, output=512)))
    assert 32 * 4096 * 2 * 8 * 128 * 2 == 2**29
    assert "cache of a sequence           0.50 GiB  0 bytes a further token\n    windows are full\n" in full
    assert "with a context of 4,608 tokens:" in full and "pages of" not in full
    seen = str(serve(ServingQuestion("mistral-7b", prompt=2048, output=2048)))
    assert "131,072 bytes a token\n    pages of 16 tokens leave" in seen
    # Five of six layers of Gemma 3 have windows, and the sixth keeps growing: 10 · 2 · 16 · 128 numbers.
    gemma = str(serve(ServingQuestion("gemma-3-27b", prompt=8192, output=512)))
    assert "  81,920 bytes a further token\n    windows are full; pages of 16 tokens leave" in gemma


def test_the_command_serves(capsys):
    assert main(["serve", "llama-3-8b", "--json", "--latency", "20ms", "--price-per-hour", "2"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert list(values) == list(KEYS) and values["schema"] == SCHEMA
    # Both rows of the latency are there, and a million tokens are priced at the one that surely meets it.
    rows = {row["batch"]: row for row in values["tokens"]}
    sure = values["batch_for_latency"]["if_nothing_overlaps"]
    assert values["batch_for_latency"]["at_best"] in rows and rows[sure]["most"] <= 0.02
    cost, prompt = values["cost_per_million_tokens"], values["prefill_seconds"]["least"]
    second = 2 / 3600 * 1e6
    assert cost["batch"] == sure
    # While an answer of 512 tokens grows behind a prompt of 2,048, a step reads as much as in its middle, 255.5 tokens earlier.
    earlier = sure * 255.5 * values["cache_bytes_per_token"] / values["bandwidth_bytes_per_second"]
    middle = (rows[sure]["least"] - earlier) / sure
    assert cost["least"] == pytest.approx(second * middle + second * prompt / 512, rel=1e-9)
    assert main(["serve", "8B"]) == 2
    assert "needs the shape of a model" in capsys.readouterr().err
    given = ["--memory", "24GB", "--peak", "100TFLOPs", "--bandwidth", "1TB/s"]
    assert main(["serve", "llama-3.2-1b", "--json", *given]) == 0
    assert json.loads(capsys.readouterr().out)["accelerator"] == "given"
    # No other chip lends a number that was not asked for.
    assert main(["serve", "llama-3.2-1b", *given[:4]]) == 2
    assert "a chip of your own needs --bandwidth, too; or name the one" in capsys.readouterr().err
    assert main(["serve", "llama-3.2-1b", *given[:2]]) == 2
    assert "needs --peak and --bandwidth, too" in capsys.readouterr().err
    assert main(["serve", "llama-3.2-1b", "--accelerator", "l4", "--json", *given[:2]]) == 0
    assert "memory as given; peak, bandwidth and links are those of l4" in json.loads(capsys.readouterr().out)["notes"]
    with pytest.raises(SystemExit):
        main(["serve", "gpt2", "--latency", "soon"])
    assert "is no time: write 50ms" in capsys.readouterr().err


#: Question → the changes that each by itself make a sequence fit, or the one combination.
ADVICE = [
    ({"model": "llama-3-70b"}, [{"weights": "fp8"}, {"count": 2}]),
    ({"model": "llama-3-70b", "weights": "fp32"}, [{"weights": "fp8"}, {"count": 4}]),
    ({"model": "deepseek-v3", "count": 8, "weights": "fp8"}, [{"weights": "int4"}, {"count": 16}]),
    # As published it fits, and so it is advised.
    ({"model": "gpt-oss-120b", "weights": "bf16"}, [{"weights": "mxfp4-experts"}, {"count": 4}]),
    ({"model": "llama-3.1-405b", "accelerator": "l4", "weights": "nf4", "cache": "fp8"}, [{"count": 16}]),
    # Weights of 16.1 GB and a cache of 31.5 or 31.7; a long prompt works in some 12 GB besides.
    (
        {"model": "llama-3.1-8b", "memory_bytes": 50e9, "prompt": 100_000, "chunk": 100_000, "output": 20_000, "cache": "fp32"},
        [{"cache": "bf16"}, {"count": 2}, {"prompt": 50_000}],
    ),
    (
        {"model": "llama-3.1-8b", "memory_bytes": 50e9, "prompt": 1000, "output": 120_000, "cache": "fp32"},
        [{"weights": "fp8"}, {"cache": "bf16"}, {"count": 2}, {"output": 60_000}],
    ),
    # In one pass a prompt works in 27.5 GiB, of which 7.6 are too much.
    (
        {"model": "llama-3.1-405b", "count": 8, "weights": "fp8", "prompt": 100_000, "chunk": 100_000, "output": 1000},
        [{"weights": "int4"}, {"count": 16}, {"chunk": 50_000}, {"prompt": 50_000}],
    ),
    # 24 heads and 8 of keys: neither 3 nor 6 accelerators can divide them.
    ({"model": "llama-3.2-3b", "memory_bytes": 4e9}, [{"weights": "int4"}, {"count": 8}]),
    # Without links there is no second accelerator.
    (
        {"model": "llama-3.1-8b", "memory_bytes": 12 * 2**30, "prompt": 120_000, "chunk": 120_000, "output": 2000,
         "accelerator": None, "node": 128, "peak_flops_per_second": 1e14, "bandwidth": 1e12},
        [{"weights": "fp8", "prompt": 7500}],
    ),
    # Two cards hold it in four bits, before eight do in sixteen.
    ({"model": "llama-3-70b", "accelerator": "rtx-4090", "node": 8, "link": 32e9},
        [{"count": 2, "weights": "int4"}, {"count": 8}]),
    # Nobody says how fast the links between these cards are: each is a node of its own.
    ({"model": "llama-3-70b", "accelerator": "rtx-4090", "weights": "int4"}, [{"count": 2, "node": 1}]),
    ({"model": "llama-3-70b", "accelerator": "rtx-4090", "weights": "int4", "between_nodes": 25e9, "node": 1}, [{"count": 2}]),
    ({"model": "llama-3-8b", "memory_bytes": 2 * 10**9}, []),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "changes"), ADVICE)
def test_advice_is_what_was_tried_and_fits(asked, changes):
    question = ServingQuestion(**{**asked, "model": MODELS[asked["model"]]})
    answer = serve(question)
    assert answer.largest_batch == 0 and [one.changes for one in answer.advice] == changes
    for one in answer.advice:
        for name, value in one.changes.items():
            assert f"--{name} {value}" in one.change
        # As the command would answer, with a rate where there are more accelerators than a node has.
        per_node = dataclasses.replace(question, **one.changes).per_node
        far = (
            {"between_nodes": 50e9} if one.changes.get("count", 1) > per_node and question.between_nodes is None else {}
        )
        assert serve(dataclasses.replace(question, **one.changes, **far)).largest_batch == one.largest_batch >= 1
        assert ("--between-nodes" in one.change) == bool(far)
        # Half of the change is not enough.
        for name in {"prompt", "output", "chunk"} & set(one.changes):
            longer = {**one.changes, name: 2 * one.changes[name]}
            assert serve(dataclasses.replace(question, **longer)).largest_batch == 0
    assert answer.as_dict()["advice"] == [
        {"change": one.change, "changes": one.changes, "largest_batch": one.largest_batch} for one in answer.advice
    ]
    assert serve(ServingQuestion(LLAMA)).advice == ()


def test_passes_of_a_few_hundred_tokens_are_no_advice():
    options = [_options(serve(ServingQuestion(LLAMA, prompt=prompt)))["chunk"] for prompt in (2048, 1024, 1023)]
    assert options == [[1024, 512], [512], []]


def test_advice_that_fits_to_the_byte_fits():
    fixed = {"allowance": 2**30}
    packed = serve(ServingQuestion(LLAMA, weights="fp8", **fixed))
    for room, first in ((packed.total(1), {"weights": "fp8"}), (packed.total(1) - 1, {"weights": "int4"})):
        assert serve(ServingQuestion(LLAMA, memory_bytes=room, **fixed)).advice[0].changes == first
    one = serve(ServingQuestion(LLAMA, memory_bytes=packed.total(1), **fixed)).advice[0]
    assert str(one) == "weights in fp8 (--weights fp8): then 1 sequence fits"
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.largest_batch = 2


#: What others rely on: a key that goes, or is renamed, is a new schema.
SCHEMA_3 = """schema command model parameters active_parameters published_weights accelerator count
peak_flops_per_second efficiency sustained bandwidth_bytes_per_second weights bits_per_weight cache prompt output
weight_bytes cache_bytes cache_bytes_per_token working_bytes logits_bytes page_tokens page_waste_bytes allowance_bytes
available_bytes largest_batch prefill_seconds tokens latency batch_for_latency cost_per_million_tokens notes"""


def test_the_keys_of_the_schema_stay():
    assert set(SCHEMA_3.split()) <= set(KEYS)


def test_each_chunk_of_a_prompt_reads_the_experts_that_its_tokens_visit():
    config = dataclasses.replace(LITTLE, experts=8, experts_per_token=2, mlp="swiglu")
    chunked = serve(ServingQuestion(config, **CHUNKED, **ENDLESS)).prefill
    expert = 2 * 2 * 3 * 16 * 64  # in both layers, 2 bytes each
    block = 2 * (2 * (4 * 16 * 16 + 8 * 16) + (2 * 2 + 1) * 2 * 16)
    visited = sum(simulated(8, 2, tokens, rounds=40_000) for tokens in (4, 4, 2))
    read = visited * expert + 3 * block + 2 * 16 * 40 + 2 * 10 * 16
    assert chunked.bytes - chunked.cache_bytes == pytest.approx(read, rel=5e-3)
    assert visited < 8 + 8 + 4, "fewer than equal shares"


def test_the_bounds_of_a_mixture_are_those_of_tokens_that_choose_by_chance():
    """DeepSeek-V3 in fp8: 8 of 256 experts in 58 of 61 layers, three matrices of 7,168 × 2,048 each, divided among eight."""
    asked = {"weights": "fp8", "accelerator": "h200-sxm", "count": 8}
    answer = serve(ServingQuestion(MODELS["deepseek-v3"], batch=24, **asked))
    expert = 58 * 3 * 7168 * 2048 / 8
    _, one = answer.tokens[0]
    rest = one.bytes - one.cache_bytes - 8 * expert
    for batch, bounds in answer.tokens[:8]:
        expected = simulated(256, 8, batch, rounds=400) * expert + rest
        assert bounds.bytes - bounds.cache_bytes == pytest.approx(expected, rel=0.01)
        if bounds.bound == "memory":
            assert bounds.least == pytest.approx((expected + bounds.cache_bytes) / 4.8e12, rel=0.01)
    # A prompt reads as many as its tokens visit: of eight, the same as eight sequences.
    eight = serve(ServingQuestion(MODELS["deepseek-v3"], prompt=8, output=8, **asked))
    its = {"prompt": eight.prefill, "step": dict(eight.tokens)[8]}
    read = {name: bounds.bytes - bounds.cache_bytes for name, bounds in its.items()}
    assert read["prompt"] == pytest.approx(read["step"], rel=1e-3)


def test_a_slice_of_a_pod_needs_no_other_links_than_the_pods():
    """The 256 chips of a v5e pod are joined, as are 8,960 of v5p: 16 of them are no two nodes of 8."""
    for name in ("tpu-v5e", "tpu-v5p", "tpu-v6e"):
        question = ServingQuestion("llama-3-70b", accelerator=name, count=16)
        (_, bounds), *_ = serve(question).tokens
        assert bounds == serve(dataclasses.replace(question, node=16)).tokens[0][1] and bounds.links > 0
    with pytest.raises(ValueError, match="spans several nodes of 8"):
        serve(ServingQuestion("llama-3-70b", accelerator="h100-sxm", count=16))


def test_heads_that_several_accelerators_hold_are_counted_on_each_and_said():
    """16 accelerators for 8 key/value heads: half of what they hold of keys and values is there a second time."""
    for count, copies in ((8, 0), (16, 8)):
        answer = serve(ServingQuestion("llama-3-70b", accelerator="tpu-v5e", count=count))
        note = [note for note in answer.notes if "key/value heads" in note]
        assert len(note) == (copies > 0)
        # Two matrices of 8192 × 128 for each copied head and layer, in bf16, and as many elements of cache a token.
        assert answer.cache_bytes == 2 * 80 * 128 * 2 * 2560
        if copies:
            cache, weights = (copies * each / 2**30 for each in (answer.cache_bytes, 2 * 80 * 8192 * 128 * 2))
            assert (
                f"is on 2 of the 16 accelerators, and counted on each: of what all 16 hold together, {cache:.2f}"
                in note[0]
            )
            assert note[0].endswith(
                f"{cache:.2f} GiB of a sequence's cache and {weights:.2f} GiB of weights are copies"
            )
    answer = serve(ServingQuestion("deepseek-v3", accelerator="h200-sxm", count=8))
    (note,) = [note for note in answer.notes if note.startswith("the latents")]
    assert f"together, {7 * answer.cache_bytes / 2**30:.2f} GiB of a sequence's cache" in note
