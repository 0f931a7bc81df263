"""The predicted list of operations beside the one that torch ran: equal, operation by operation."""

import contextlib
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm, measure, predict, teach
from cs336kit.predict import TransformerConfig

pytestmark = pytest.mark.torch

GPT = TransformerConfig(layers=2, d_model=64, heads=4, vocab=50, context=16, dropout=0.1)
LLAMA = TransformerConfig(
    layers=2, d_model=64, heads=4, kv_heads=2, d_ff=172, vocab=50, context=16,
    mlp="swiglu", norm="rmsnorm", positions="rope", bias="none", tied_head=False,
)  # fmt: skip
MIXTRAL = dataclasses.replace(LLAMA, experts=3, experts_per_token=2, d_ff=96)
#: Norms on both sides of a branch (Gemma), and those of heads, of the embedding and inside a branch.
NORMS = dataclasses.replace(
    LLAMA, norm_placement="sandwich", qk_norm="head", embedding_norm=True, inner_norms=True, attention_softcap=30.0
)
#: Norms behind a branch only (OLMo 2), and a layer without experts between those with a shared one.
SHARED = dataclasses.replace(
    MIXTRAL, layers=3, norm_placement="post", shared_d_ff=40, shared_gate=True, sparse_layers=(True, False),
    dense_d_ff=80,
)  # fmt: skip
LATENT = dataclasses.replace(LLAMA, kv_heads=None, kv_latent=24, rotary_dim=8, query_latent=20)


def traced(config, precision, attention):
    """What ran, and how many tokens went to each expert of each layer."""
    torch.manual_seed(1)
    model = lm.DecoderOnly(config, attention=attention)
    if precision == "bf16":
        model = model.bfloat16()
    tokens = torch.randint(config.vocab, (3, 16))
    shares = []

    def share(module, arguments, output):
        chosen = module.router(arguments[0].flatten(0, 1)).topk(module.experts_per_token, dim=-1).indices
        shares.append([int((chosen == expert).sum()) for expert in range(len(module.experts))])

    def loss():
        cast = torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext()
        with cast:
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    if config.experts:
        mixtures = [module for module in model.modules() if isinstance(module, lm.MixtureOfExperts)]
        hooks = [mixture.register_forward_hook(share) for mixture in mixtures]
        loss()
        for hook in hooks:
            hook.remove()
    return measure.program(model, loss), shares or None


@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "config",
    [GPT, LLAMA, MIXTRAL, LATENT, NORMS, SHARED],
    ids=["GPT-2", "Llama", "Mixtral", "DeepSeek", "norms", "shared"],
)
def test_every_operation_is_predicted(config, attention, precision):
    ran, shares = traced(config, precision, attention)
    said = predict.program(config, batch=3, sequence=16, precision=precision, attention=attention, expert_tokens=shares)
    for quantity, total in (("flops", ran.flops), ("saved_bytes", ran.saved_bytes)):
        table = repr(teach.side_by_side(said, ran, quantity))
        rows = table.splitlines()[1:]
        assert f"{total:,}" in rows[-1] and total
        assert len(rows) > 10 and all(row.endswith("exact") for row in rows)


@pytest.mark.parametrize("config", [GPT, LLAMA], ids=["GPT-2", "Llama"])
def test_a_checkpointed_block_keeps_its_input(config):
    model, tokens = lm.DecoderOnly(config, checkpointing=True, attention="eager"), torch.randint(config.vocab, (3, 16))
    ran = measure.program(model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))
    said = predict.program(config, batch=3, sequence=16, checkpointing=True)
    for quantity in ("flops", "saved_bytes"):
        rows = repr(teach.side_by_side(said, ran, quantity)).splitlines()[1:]
        assert all(row.endswith("exact") for row in rows)
    assert any(row.startswith("checkpoint ") for row in rows)


def test_a_missing_operation_shows():
    ran, _ = traced(GPT, "fp32", "eager")
    said = predict.program(dataclasses.replace(GPT, dropout=0.0), batch=3, sequence=16)
    assert "differs" in repr(teach.side_by_side(said, ran, "saved_bytes"))


def test_an_unknown_quantity_is_refused():
    ran, _ = traced(GPT, "fp32", "eager")
    with pytest.raises(ValueError, match="unknown quantity 'seconds'"):
        teach.side_by_side(predict.program(GPT, batch=3, sequence=16), ran, "seconds")
