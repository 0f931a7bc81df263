"""Latent attention beside DeepSeek's in transformers, and its cache, which holds latents."""

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from cs336kit import lm, measure, predict
from cs336kit.lm.caches import LayerCache
from cs336kit.lm.latent import LatentAttention

pytestmark = pytest.mark.torch

NAMES = {
    "attention.query_latent.": "self_attn.q_a_proj.", "attention.query_latent_norm.": "self_attn.q_a_layernorm.",
    "attention.latent.": "self_attn.kv_a_proj_with_mqa.", "attention.latent_norm.": "self_attn.kv_a_layernorm.",
    "attention.key_and_value.": "self_attn.kv_b_proj.", "attention.output.": "self_attn.o_proj.",
    "blocks.": "model.layers.", "norm1.": "input_layernorm.", "norm2.": "post_attention_layernorm.",
    "mlp.gate.": "mlp.gate_proj.", "mlp.up.": "mlp.up_proj.", "mlp.down.": "mlp.down_proj.",
    "embedding.": "model.embed_tokens.", "final_norm.": "model.norm.", "head.": "lm_head.",
}  # fmt: skip


def both(query_latent, bias):
    """DeepSeek-V3 without experts, with weights that are not small, and ours with the same."""
    torch.manual_seed(0)
    theirs = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=31, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, kv_lora_rank=12, q_lora_rank=query_latent or None, qk_rope_head_dim=4,
            qk_nope_head_dim=6, v_head_dim=5, first_k_dense_replace=2, max_position_embeddings=32, attention_bias=bias,
            attn_implementation="eager", pad_token_id=None,
        )
    ).double().eval()  # fmt: skip
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    config = predict.TransformerConfig(
        layers=2, d_model=24, heads=4, d_ff=40, vocab=31, context=32, mlp="swiglu", norm="rmsnorm", positions="rope",
        bias=("key", "output") if bias else "none", tied_head=False, kv_latent=12, query_latent=query_latent,
        rotary_dim=4, head_dim=10, value_dim=5,
    )  # fmt: skip
    ours = lm.DecoderOnly(config, norm_eps=1e-6, rope_pairs="neighbours").double().eval()
    state = {}
    for name in ours.state_dict():
        known = name.replace("attention.query.", f"self_attn.q_{'b_' if query_latent else ''}proj.")
        for a, b in NAMES.items():
            known = known.replace(a, b)
        state[name] = theirs.state_dict()[known]
    ours.load_state_dict(state)
    return theirs, ours


@pytest.mark.parametrize(("query_latent", "bias"), [(8, False), (0, True), (8, True)])
@torch.no_grad()
def test_logits_flops_and_cache_are_those_of_transformers(query_latent, bias):
    theirs, ours = both(query_latent, bias)
    config, text = ours.config, torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    expected = theirs(text)
    # Their norms round to fp32 inside.
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(ours(text), expected.logits, **close)
    assert predict.parameters(config).total == sum(p.numel() for p in theirs.parameters())
    assert measure.flops(lambda: ours(text)).total == measure.flops(lambda: theirs(text)).total
    cache = lm.KVCache(config)
    parts = [ours(piece, cache=cache) for piece in text.split([4, 1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected.logits, **close)
    assert cache.bytes == 2 * predict.kv_cache_bytes(config, batch=2, sequence=9, precision="fp32")
    assert cache.bytes == config.layers * 2 * 9 * (12 + 4) * 8


@torch.no_grad()
def test_a_token_beside_the_cache_never_makes_old_keys_again():
    _, ours = both(8, False)
    text, flops = torch.zeros(1, 32, dtype=torch.long), []
    for seen in (8, 16, 24):
        cache = lm.KVCache(ours.config)
        ours(text[:, :seen], cache=cache)
        flops.append(measure.flops(lambda: ours(text[:, :1], cache=cache)).total)  # noqa: B023
    # Eight more tokens: 2 FLOPs for each number of their latents, twice, and of their turned part, for every head.
    assert flops[1] - flops[0] == flops[2] - flops[1] == 2 * 4 * 8 * 2 * (12 + 12 + 4)


@pytest.mark.parametrize("kind", ["booleans", "floats"])
@torch.no_grad()
def test_a_mask_hides_beside_a_cache_what_it_hides_without_one(kind):
    layer = lm.LatentAttention(24, 4, kv_latent=12, rotary_dim=4, head_dim=10, value_dim=5, dtype=torch.float64).eval()
    x = torch.randn(2, 6, 24, dtype=torch.float64)
    mask = torch.rand(6, 6) < 0.7
    mask.fill_diagonal_(True)
    if kind == "floats":
        mask = torch.randn(6, 6, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    cache = LayerCache()
    layer(x[:, :4], cache=cache)
    torch.testing.assert_close(layer(x[:, 4:], cache=cache, mask=mask[4:]), layer(x, mask=mask)[:, 4:])


@pytest.mark.parametrize("kind", ["booleans", "floats"])
@torch.no_grad()
def test_a_row_that_a_mask_hides_whole_has_no_result_beside_a_cache(kind):
    layer, cache = lm.LatentAttention(24, 4, kv_latent=12, rotary_dim=4, head_dim=10, value_dim=5).eval(), LayerCache()
    x, mask = torch.randn(1, 6, 24), torch.ones(2, 6, dtype=torch.bool)
    mask[0] = False
    if kind == "floats":
        mask = torch.zeros(2, 6).masked_fill(~mask, -torch.inf)
    layer(x[:, :4], cache=cache)
    rows = layer(x[:, 4:], cache=cache, mask=mask)
    assert rows[0, 0].isnan().all() and rows[0, 1].isfinite().all()


@torch.no_grad()
def test_weights_beside_a_cache_are_dropped_in_training_alone():
    layer, x = LatentAttention(24, 4, kv_latent=12, rotary_dim=4, head_dim=10, dropout=0.5), torch.randn(1, 6, 24)
    mixed = []
    layer.output.register_forward_pre_hook(lambda _, given: mixed.append(given[0]))

    def last_of(layer):
        cache = LayerCache()
        layer(x[:, :5], cache=cache)
        return layer(x[:, 5:], cache=cache)

    torch.testing.assert_close(last_of(layer.eval()), layer(x)[:, 5:])
    last_of(layer.train())
    last_of(layer)
    assert not torch.allclose(mixed[-1], mixed[-3])


@torch.no_grad()
def test_rotary_positions_may_turn_the_whole_head():
    module = LatentAttention(16, 4, kv_latent=5, rotary_dim=6, head_dim=6)
    x, (cosine, sine), cache = torch.randn(2, 5, 16), lm.rope_tables(5, 6), LayerCache()
    parts = [module(x[:, i : i + 1], angles=(cosine[i : i + 1], sine[i : i + 1]), cache=cache) for i in range(5)]
    torch.testing.assert_close(torch.cat(parts, dim=1), module(x, angles=(cosine, sine)))
