from dataclasses import replace

import pytest
import torch

from cs336kit import lm, measure, predict

pytestmark = pytest.mark.torch

B, S, D, A, F, L = 2, 12, 16, 4, 24, 2
CONFIG = predict.TransformerConfig(
    layers=L, d_model=D, heads=A, kv_heads=2, d_ff=F, vocab=31, context=S, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"bias": "qkv"}, {"window": 3}, {"experts": 4, "experts_per_token": 2}])
def test_it_is_the_decoder_of_its_configuration(change):
    config = replace(CONFIG, **change)
    torch.manual_seed(0)
    llama = lm.Llama(config)
    decoder = lm.DecoderOnly(config)
    decoder.load_state_dict(llama.state_dict())
    x = torch.randint(31, (B, S))
    torch.testing.assert_close(llama(x), decoder(x))
    assert sum(p.numel() for p in llama.parameters()) == predict.parameters(config).total


@pytest.mark.parametrize(
    ("change", "given"),
    [({"norm": "layernorm"}, "layernorm"), ({"positions": "learned"}, "learned"), ({"mlp": "gelu"}, "gelu")],
)
def test_another_configuration_is_refused(change, given):
    with pytest.raises(ValueError, match=f"this configuration '{given}': change it, or build a DecoderOnly"):
        lm.Llama(replace(CONFIG, **change))


@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
def test_it_keeps_what_the_formula_says(K, precision):
    model, x = lm.Llama(replace(CONFIG, kv_heads=K)), torch.randint(31, (B, S))
    model = model.bfloat16() if precision == "bf16" else model
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        kept = measure.saved_activation_bytes(lambda: model(x)).total
    h = D // A
    kv, norm, logsumexp = 2 * K * h, 8 * B * S * D + 4 * B * S, 4 * B * A * S
    if precision == "fp32":
        block, head = 4 * B * S * (8 * D + kv) + 16 * B * S * F, 4 * B * S * D
    elif precision == "bf16":
        block, head = B * S * (24 * D + 2 * kv) + 8 * B * S * F, 2 * B * S * D
    else:
        weights = 2 * (2 * D * A * h + 2 * D * K * h + 3 * D * F)
        block, head = B * S * (30 * D + 2 * kv) + 8 * B * S * F + weights, 2 * B * S * D + 2 * D * 31
    assert kept == L * (block + 8 * B * S + logsumexp) + norm + head
