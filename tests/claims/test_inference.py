"""Claims about inference: the cache of keys and values, its bytes, what bounds a token's time, Falcon on A100s."""

import itertools
from dataclasses import replace
from functools import cache

import torch
from claims.settled import figures, settles

import cs336plan
from cs336kit import lm, measure, predict
from cs336kit.predict.layouts import local_config

B, S, L, D, A, V = 2, 8, 2, 32, 4, 64
CONFIG = predict.TransformerConfig(layers=L, d_model=D, heads=A, vocab=V, context=4 * S)
#: Without what the formulas leave out, for counts on the meta device.
BARE = replace(CONFIG, positions="none", bias="none", context=2**15 + 1)
FALCON, A100 = predict.MODELS["falcon-40b"], predict.accelerator("a100-sxm-80gb")
GIB = 2**30
#: Bytes per element that the notes reckon with: half precision.
p = 2


def decoder(config=CONFIG, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    return lm.DecoderOnly(config, dtype=dtype, device=device).eval()


def ids(*shape, device="cpu"):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(0)).to(device)


@torch.no_grad()
def cached(config, tokens, dtype=torch.float32):
    """A model and the tensors that it caches for the tokens."""
    model, memory = decoder(config, dtype), lm.KVCache(config)
    model(tokens, cache=memory)
    return model, memory.tensors()


@settles("inf-decode-last-token")
def test_decode_last_token():
    # The tokens that follow, from the whole text at each step, and from the last position's query.
    model = decoder()
    whole, last = (lm.generate(model, ids(B, S), new_tokens=S, cache=cache).tolist() for cache in (False, True))
    return whole, last


@settles("inf-cache-key-query")
def test_cache_key_query():
    # Which of the projections' outputs are in the cache.
    attention, found = decoder().blocks[0].attention, {}
    for name in ("query", "key", "value"):
        getattr(attention, name).register_forward_hook(lambda _m, _i, out, name=name: found.setdefault(name, out))
    memory = lm.KVCache(CONFIG).layers[0]
    attention(torch.randn(B, S, D, generator=torch.Generator().manual_seed(0)), cache=memory)
    held = [tensor.transpose(1, 2).reshape(B, S, -1) for tensor in (memory.keys, memory.values)]
    return ["key", "query"], [name for name, out in found.items() if any(torch.equal(out, one) for one in held)]


@settles("inf-6.1-cache-size")
def test_61_cache_size():
    # A rank of T = 2, with as many key/value heads as heads, and with one for two of them.
    T = 2
    full, grouped = (
        measure.storage_bytes(cached(local_config(config, T), ids(B, S) % (V // T), torch.bfloat16)[1])
        for config in (CONFIG, replace(CONFIG, kv_heads=A // 2))
    )
    return p * 2 * B * S * D * L // T, full, grouped


@settles("inf-cache-vs-params")
def test_cache_vs_params():
    # The number of tokens at which GPT-3's cache is as large as its blocks.
    gpt3 = predict.MODELS["gpt3-175b"]
    counted = predict.parameters(gpt3)
    blocks = counted.total - counted["token embedding"] - counted["position embedding"]
    return gpt3.d_model, p * blocks // predict.kv_cache_bytes(gpt3, batch=1, sequence=1)


def step_flops(length, *, with_cache):
    """FLOPs of one more token after so many, by operator, on the meta device."""
    model, tokens = decoder(BARE, device="meta"), ids(B, length + 1, device="meta")
    if not with_cache:
        return measure.flops(lambda: model(tokens))
    memory = lm.KVCache(BARE)
    with torch.no_grad():
        model(tokens[:, :-1], cache=memory)
        return measure.flops(lambda: model(tokens[:, -1:], cache=memory))


@settles("inf-s2-to-linear")
def test_s2_to_linear():
    # How a token's FLOPs grow where a text that is 500 times as long as the model is wide doubles.
    lengths = (500 * D - 1, 1000 * D - 1)
    grown = []
    for with_cache in (False, True):
        short, long = (step_flops(length, with_cache=with_cache).total for length in lengths)
        grown.append(figures(long / short, 2))
    return [4.0, 2.0], grown


@settles("inf-prefill-decode")
def test_prefill_decode():
    # FLOPs of the products with weights, of a prompt in one pass and of the next token.
    model, memory, prompt = decoder(BARE, device="meta"), lm.KVCache(BARE), ids(B, S, device="meta")
    N = sum(weight.numel() for weight in model.parameters() if weight.ndim == 2)
    passes = [measure.flops(lambda tokens=tokens: model(tokens, cache=memory)) for tokens in (prompt, prompt[:, :1])]
    return [2 * B * S * N, 2 * B * N], [counted.get("mm", 0) + counted.get("addmm", 0) for counted in passes]


@settles("inf-shift-footnote")
def test_shift_footnote():
    # By how many places a window of S tokens that moves on by one shifts the inputs of all positions but the last.
    embedding, text = decoder().embedding, ids(S + 1)
    before, after = embedding(text[:-1]), embedding(text[1:])
    places = range(-2, 3)
    kept = [shift for shift in places if all(torch.equal(after[s], before[(s + shift) % S]) for s in range(S - 1))]
    return [-1], kept


@settles("inf-naive-memory")
def test_naive_memory():
    # In fp32: what lies there between two forward passes, and at the peak of one.
    model, tokens = decoder(), ids(B, S)
    weights = list(model.parameters())
    with torch.inference_mode():
        transient = measure.peak_bytes(lambda: model(tokens), device="cpu")
    resting = measure.storage_bytes(weights)
    return 4 * sum(weight.numel() for weight in weights), resting, resting + transient


def served(**question):
    return cs336plan.serve(cs336plan.ServingQuestion(model=FALCON, accelerator="a100-sxm-80gb", count=4, **question))


@settles("inf-naive-compute-bound")
def test_naive_compute_bound():
    # One pass over a prompt of 2,000 tokens, and over one of 20.
    return "compute", *(served(prompt=tokens, output=1).prefill.bound for tokens in (2000, 20))


@settles("inf-7.1-memory")
def test_71_memory():
    # A rank of T = 2 in half precision, with N counted on that rank.
    T = 2
    model, tensors = cached(local_config(CONFIG, T), ids(B, S) % (V // T), torch.bfloat16)
    N = sum(weight.numel() for weight in model.parameters())
    return p * N + 2 * p * B * S * D * L // T, measure.storage_bytes(model.parameters(), tensors)


@settles("inf-now-compute-bound")
def test_now_compute_bound():
    bounds = dict(served(prompt=2000, output=1, batch=32).tokens)
    return "compute", bounds[32].bound


@cache
def falcon_bytes():
    """GiB of Falcon's weights, and of 2048 tokens' cache with its own key/value heads and with one for each head."""
    with torch.device("meta"):
        weights = measure.storage_bytes(lm.DecoderOnly(FALCON, dtype=torch.bfloat16).parameters())
    caches = (
        predict.kv_cache_bytes(config, batch=1, sequence=2048)
        for config in (FALCON, replace(FALCON, kv_heads=FALCON.heads))
    )
    return [size / GIB for size in (weights, *caches)]


@settles("inf-falcon-kv-4gib")
def test_falcon_kv_4gib():
    _, own, each = falcon_bytes()
    return 4.0, figures(each, 1), figures(own, 1)


@settles("inf-falcon-weights-80gib")
def test_falcon_weights_80gib():
    return 80.0, figures(falcon_bytes()[0], 2)


@settles("inf-falcon-mqa")
def test_falcon_mqa():
    return 1, FALCON.kv_heads


@settles("inf-falcon-t4")
def test_falcon_t4():
    # With the notes' own cache of one key/value head for each head: the fewest cards of 80 GiB.
    weights, _, each = falcon_bytes()
    return 4, next(T for T in itertools.count(1) if (weights + 200 * each) / T <= 80)


def falcon_ms(batch, memory):
    """Milliseconds of the FLOPs of one token for so many sequences at T = 4, and of reading so many GiB once."""
    compute = 2 * batch * falcon_bytes()[0] * GIB / p / A100.peak("bf16") / 4
    return 1e3 * compute, 1e3 * memory * GIB / 4 / A100.bandwidth


@settles("inf-falcon-13ms")
def test_falcon_13ms():
    # The printed expression, which divides bytes by FLOP/s.
    return 13.0, figures(1e3 * falcon_bytes()[0] * GIB / A100.peak("bf16") / 4, 2)


@settles("inf-falcon-mem-time")
def test_falcon_mem_time():
    # "Comparable": within a factor of two, with Falcon's own heads and with the cache of the notes.
    weights, *caches = falcon_bytes()
    compute, _ = falcon_ms(200, weights)
    ratios = [falcon_ms(200, weights + 200 * size)[1] / compute for size in caches]
    return True, *(1 / 2 < ratio < 2 for ratio in ratios)


@settles("inf-greedy-not-optimal")
def test_greedy_not_optimal():
    # Two steps over two words: whether the greedy sequence is another than the likeliest.
    first, second = [0.6, 0.4], [[0.6, 0.4], [0.1, 0.9]]
    likely = max(itertools.product(range(2), repeat=2), key=lambda words: first[words[0]] * second[words[0]][words[1]])
    start = first.index(max(first))
    greedy = (start, second[start].index(max(second[start])))
    return True, greedy != likely
