"""Every kind of cache gives the same tokens, and holds the bytes that are predicted of it."""

from dataclasses import replace

import pytest
import torch

from cs336kit import lm, predict
from cs336kit.lm.caches import KINDS, QuantizedCache, from_codes, to_codes
from cs336kit.predict import kv_cache_bytes

pytestmark = pytest.mark.torch

GPT2 = predict.TransformerConfig(layers=2, d_model=16, heads=4, vocab=31, context=24)
LLAMA = replace(
    GPT2, kv_heads=2, d_ff=24, mlp="swiglu", norm="rmsnorm", norm_bias=False, positions="rope", bias="none"
)  # fmt: skip
LATENT = replace(LLAMA, kv_heads=None, head_dim=6, kv_latent=5, rotary_dim=2, query_latent=7, value_dim=3)
CONFIGS = {
    "GPT-2": GPT2, "grouped": LLAMA, "multi-query": replace(LLAMA, kv_heads=1), "window": replace(LLAMA, window=5),
    "windows of some layers": replace(LLAMA, window=5, window_layers=(True, False)), "latent": LATENT,
}  # fmt: skip
EXACT = ("growing", "contiguous", "paged")


def model_of(config, seed=0):
    """In training mode, with larger weights than a new model has, so that its choices are not all the same token."""
    torch.manual_seed(seed)
    model = lm.DecoderOnly(config).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def cases():
    pairs = [(name, kind) for name in CONFIGS for kind in EXACT]
    return [(name, kind) for name, kind in pairs if not (kind == "paged" and CONFIGS[name].window)]


@pytest.mark.parametrize(("name", "kind"), cases())
@torch.no_grad()
def test_the_logits_of_any_pieces_are_those_of_the_whole_text(name, kind):
    config = CONFIGS[name]
    model, text = model_of(config), torch.randint(31, (3, 24), generator=torch.Generator().manual_seed(1))
    cache, borders = lm.KVCache(config, kind=kind, page=4), [0, 3, 4, 11, 12, 13, 21, 22, 24]
    parts = [model(text[:, a:b], cache=cache) for a, b in zip(borders, borders[1:], strict=False)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(text))
    assert torch.equal(
        lm.generate(model, text[:, :4], new_tokens=21, cache=kind),
        lm.generate(model, text[:, :4], new_tokens=21, cache=False),
    )


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_bytes_are_predicted(name):
    config = CONFIGS[name]
    model, text = lm.DecoderOnly(config), torch.zeros(3, 13, dtype=torch.long)
    predicted = {
        "growing": {"sequence": 13},
        "contiguous": {"sequence": 20},
        "int8": {"sequence": 13, "precision": "int8", "scales": "fp32"},
        "int4": {"sequence": 13, "precision": "int4", "scales": "fp32"},
    }
    if config.window is None:
        predicted["paged"] = {"sequence": 13, "page": 4}
    for kind, sizes in predicted.items():
        cache = lm.KVCache(config, kind=kind, tokens=20, page=4)
        for piece in text.split([6, 1, 5, 1], dim=1):
            model(piece, cache=cache)
        assert cache.bytes == kv_cache_bytes(config, batch=3, **{"precision": "fp32", **sizes}), kind
    with pytest.raises(ValueError, match="unknown type of scales"):
        kv_cache_bytes(config, batch=1, sequence=1, scales="fp7")


@torch.no_grad()
def test_a_contiguous_cache_is_allocated_once_and_refuses_more():
    for config in (LLAMA, replace(LLAMA, window=5), LATENT):
        model, cache = lm.DecoderOnly(config), lm.KVCache(config, kind="contiguous", tokens=12)
        model(torch.zeros(2, 3, dtype=torch.long), cache=cache)
        first = [t.data_ptr() for t in cache.tensors()]
        for _ in range(9):
            model(torch.zeros(2, 1, dtype=torch.long), cache=cache)
        assert [t.data_ptr() for t in cache.tensors()] == first
    with pytest.raises(ValueError, match=r"room for 12 tokens and holds 12: 1 more do not fit; make it with tokens=13"):
        model(torch.zeros(2, 1, dtype=torch.long), cache=cache)


@torch.no_grad()
def test_pages_are_taken_in_turn_and_waste_less_than_one_each():
    model, cache = lm.DecoderOnly(LLAMA), lm.KVCache(LLAMA, kind="paged", page=4)
    for piece in torch.zeros(2, 9, dtype=torch.long).split([5, 4], dim=1):
        model(piece, cache=cache)
    assert cache.layers[0].table == [[0, 1, 4], [2, 3, 5]]
    assert cache.bytes - kv_cache_bytes(LLAMA, batch=2, sequence=9, precision="fp32") == 3 * kv_cache_bytes(
        LLAMA, batch=2, sequence=1, precision="fp32"
    )
    with pytest.raises(ValueError, match="use kind='contiguous', a ring"):
        lm.KVCache(replace(LLAMA, window=5), kind="paged")


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_within_half_a_step(bits):
    x = torch.randn(3, 2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x[0, 0, 0] = 0
    codes, scale = to_codes(x, bits=bits)
    assert codes.element_size() * codes.shape[-1] == (7 if bits == 8 else 4)
    read = from_codes(codes, scale, bits=bits, width=7)
    assert ((read - x).abs() <= scale / 2 * (1 + 1e-9)).all()
    torch.testing.assert_close(scale[..., 0] * (127 if bits == 8 else 7), x.abs().amax(-1))


@pytest.mark.parametrize("kind", ["growing", "int8", "int4"])
@torch.no_grad()
def test_a_window_keeps_its_last_tokens_and_not_fewer(kind):
    config = replace(LLAMA, layers=1, window=4, window_layers=None)
    model, cache, held = lm.DecoderOnly(config), lm.KVCache(config, kind=kind), []
    for _ in range(6):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
        held.append(cache.tensors()[0].shape[-2])
    assert held == [1, 2, 3, 4, 4, 4]
    # Nothing is kept alive beyond them.
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in cache.tensors())


@pytest.mark.parametrize("first", [1, 2, 4, 5, 7])
@torch.no_grad()
def test_many_tokens_behind_a_few_wrap_around_the_ring(first):
    config = replace(LLAMA, window=5)
    model, text = model_of(config), torch.randint(31, (2, 14), generator=torch.Generator().manual_seed(2))
    cache = lm.KVCache(config, kind="contiguous")
    parts = [model(piece, cache=cache) for piece in text.split([first, 6, 8 - first], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(text))


@torch.no_grad()
def test_chunks_shorter_than_the_window_are_all_in_the_ring():
    config = replace(LLAMA, window=5)
    model, text = model_of(config), torch.randint(31, (2, 20), generator=torch.Generator().manual_seed(2))
    for pieces in ([6, 3, 2, 4, 5], [4, 3, 3, 1, 2, 7], [5, 2, 1, 4, 2, 6]):
        cache = lm.KVCache(config, kind="contiguous")
        parts = [model(piece, cache=cache) for piece in text[:, : sum(pieces)].split(pieces, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(text[:, : sum(pieces)]))


def test_a_window_that_is_just_full_can_be_shortened():
    cache = lm.KVCache(replace(LLAMA, window=4))
    cache.tokens = 4
    cache.shorten(2)
    assert cache.tokens == 2
    cache.shorten(3)
    assert cache.tokens == 2
    cache.tokens = 5
    with pytest.raises(ValueError, match="after 5 tokens a sliding window of 4 has dropped the first"):
        cache.shorten(2)


@torch.no_grad()
def test_fewer_bits_change_the_loss_more():
    for config in (LLAMA, LATENT):
        model, text = model_of(config), torch.randint(31, (8, 24), generator=torch.Generator().manual_seed(1))
        usual, eight, four = (
            model(text, cache=lm.KVCache(config, kind=kind)) for kind in ("growing", "int8", "int4")
        )  # fmt: skip
        assert 0 < (eight - usual).square().mean() < (four - usual).square().mean()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_shortened_cache_goes_on_as_if_nothing_had_been_there(kind):
    for config in (LLAMA, LATENT):
        model, text = model_of(config), torch.randint(31, (2, 12), generator=torch.Generator().manual_seed(1))
        cache, other = lm.KVCache(config, kind=kind, page=4), lm.KVCache(config, kind=kind, page=4)
        model(text[:, :11], cache=cache)
        cache.shorten(6)
        model(text[:, :6], cache=other)
        torch.testing.assert_close(model(text[:, 6:], cache=cache), model(text[:, 6:], cache=other))
    ring = lm.KVCache(replace(LLAMA, window=4))
    model_of(replace(LLAMA, window=4))(text[:, :6], cache=ring)
    with pytest.raises(ValueError, match="has dropped the first: it cannot be shortened"):
        ring.shorten(5)


@pytest.mark.parametrize(("tokens", "each", "held"), [(4, 1, 4), (5, 2, 5), (8, 2, 8), (11, 3, 11), (20, 3, 11)])
@torch.no_grad()
def test_pages_of_what_is_forgotten_are_given_back(tokens, each, held):
    model, text = model_of(LLAMA), torch.randint(31, (2, 16), generator=torch.Generator().manual_seed(1))
    cache = lm.KVCache(LLAMA, kind="paged", page=4)
    model(text[:, :5], cache=cache)
    model(text[:, 5:11], cache=cache)  # a page of the first sequence now lies behind one of the second
    cache.shorten(tokens)
    layer = cache.layers[0]
    assert cache.tokens == layer.seen == held
    assert [len(row) for row in layer.table] == [each, each]
    assert sorted(n for row in layer.table for n in row) == [*range(2 * each)] and len(layer.pages) == 2 * each
    torch.testing.assert_close(model(text[:, held:], cache=cache), model(text)[:, held:])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_more_tokens_than_a_cache_holds_are_nothing_to_forget(kind):
    model, text = model_of(LLAMA), torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(1))
    cache, other = (lm.KVCache(LLAMA, kind=kind, page=4) for _ in range(2))
    for each in (cache, other):
        model(text[:, :6], cache=each)
    cache.shorten(8)
    assert cache.tokens == 6 and cache.bytes == other.bytes
    torch.testing.assert_close(model(text[:, 6:], cache=cache), model(text[:, 6:], cache=other))


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_drop_nothing_until_the_window_is_full(bits):
    cache, x = QuantizedCache(bits=bits, window=5), torch.randn(1, 1, 8, 4)
    lengths = [cache.extend(x[:, :, i : i + 1], x[:, :, i : i + 1])[0].shape[-2] for i in range(8)]
    # The window and the new position, which look at each other before the oldest goes.
    assert lengths == [1, 2, 3, 4, 5, 6, 6, 6]


@torch.no_grad()
def test_less_room_than_the_window_is_no_ring():
    config = replace(LLAMA, window=8)
    model, cache = model_of(config), lm.KVCache(config, kind="contiguous", tokens=5)
    text = torch.randint(31, (1, 6), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(text[:, :5], cache=cache), model(text[:, :5]))
    with pytest.raises(ValueError, match="room for 5 tokens and holds 5: 1 more do not fit; make it with tokens=6"):
        model(text[:, 5:], cache=cache)


@torch.no_grad()
def test_a_cache_of_another_configuration_is_refused():
    model, text = lm.DecoderOnly(LLAMA), torch.zeros(1, 3, dtype=torch.long)
    for config, says in (
        (replace(LLAMA, window=4), r"made for 2 layers with windows \[4, 4\], and the model has 2 with \[None, None\]"),
        (replace(LLAMA, layers=1), r"made for 1 layers with windows \[None\], and the model has 2"),
        (replace(LLAMA, layers=3), "made for 3 layers"),
    ):
        with pytest.raises(ValueError, match=says):
            model(text, cache=lm.KVCache(config))


@pytest.mark.parametrize("kind", ["growing", "contiguous"])
@torch.no_grad()
def test_a_cache_of_an_interrupted_pass_is_refused(kind):
    model, text = lm.DecoderOnly(LLAMA), torch.zeros(1, 3, dtype=torch.long)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook, cache = model.blocks[1].mlp.register_forward_pre_hook(interrupt), lm.KVCache(LLAMA, kind=kind)
    with pytest.raises(KeyboardInterrupt):
        lm.generate(model, text, new_tokens=2, cache=cache)
    hook.remove()
    with pytest.raises(ValueError, match="a forward pass with this cache was interrupted: make a new cache"):
        lm.generate(model, text, new_tokens=2, cache=cache)


@pytest.mark.parametrize("kind", ["contiguous", "paged", "int8", "int4"])
def test_a_cache_that_would_cut_gradients_off_says_so(kind):
    model, text = lm.DecoderOnly(LLAMA), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(
        ValueError, match=r"have no gradient in a cache .* use torch.no_grad\(\), or a cache of kind='growing'"
    ):
        model(text, cache=lm.KVCache(LLAMA, kind=kind))
    model.requires_grad_(False)
    model(text, cache=lm.KVCache(LLAMA, kind=kind))
    whole, parts = lm.DecoderOnly(LLAMA), lm.KVCache(LLAMA)
    torch.cat([whole(text[:, :2], cache=parts), whole(text[:, 2:], cache=parts)], dim=1).sum().backward()
    of_parts = whole.blocks[0].attention.key.weight.grad.clone()
    whole.zero_grad()
    whole(text).sum().backward()
    torch.testing.assert_close(of_parts, whole.blocks[0].attention.key.weight.grad)


@pytest.mark.parametrize("kind", ["growing", "int8", "int4"])
@torch.no_grad()
def test_a_shortened_cache_holds_what_it_says(kind):
    model, cache = lm.DecoderOnly(LLAMA), lm.KVCache(LLAMA, kind=kind)
    model(torch.zeros(2, 12, dtype=torch.long), cache=cache)
    cache.shorten(3)
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in cache.tensors())
