"""The predicted list of operations beside the one that torch ran: equal, operation by operation."""

import contextlib
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm, measure, predict, teach
from cs336kit.predict import Breakdown, TransformerConfig

GPT = TransformerConfig(layers=2, d_model=64, heads=4, vocab=50, context=16, dropout=0.1)
LLAMA = TransformerConfig(
    layers=2, d_model=64, heads=4, kv_heads=2, d_ff=172, vocab=50, context=16,
    mlp="swiglu", norm="rmsnorm", positions="rope", bias="none", tied_head=False,
)  # fmt: skip
MIXTRAL = dataclasses.replace(LLAMA, experts=3, experts_per_token=2, d_ff=96)


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
        hooks = [block.mlp.register_forward_hook(share) for block in model.blocks]
        loss()
        for hook in hooks:
            hook.remove()
    return measure.program(model, loss), shares or None


def by_operation(program, quantity):
    """The traced operations under the names of `predict.Program.by_operation`."""
    parts = {}
    for op in program.operations:
        if amount := getattr(op, quantity):
            name = f"{op.place} {op.name}".strip()
            parts[name] = parts.get(name, 0) + amount
    return Breakdown(parts, unit="FLOPs" if quantity == "flops" else "bytes")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("config", [GPT, LLAMA, MIXTRAL], ids=["GPT-2", "Llama", "Mixtral"])
def test_every_operation_is_predicted(config, attention, precision):
    ran, shares = traced(config, precision, attention)
    said = predict.program(config, batch=3, sequence=16, precision=precision, attention=attention, expert_tokens=shares)
    for quantity in ("flops", "saved_bytes"):
        predicted, measured = said.by_operation(quantity), by_operation(ran, quantity)
        assert dict(predicted) == dict(measured)
        table = repr(teach.compare(predicted, measured, how="counted", keep=False))
        assert "differs" not in table and table.count("exact") == len(predicted) + 1


def test_a_missing_operation_shows():
    ran, _ = traced(GPT, "fp32", "eager")
    said = predict.program(dataclasses.replace(GPT, dropout=0.0), batch=3, sequence=16)
    table = repr(teach.compare(said.by_operation("saved_bytes"), by_operation(ran, "saved_bytes"), keep=False))
    assert "differs" in table


def test_an_unknown_quantity_is_refused():
    with pytest.raises(ValueError, match="unknown quantity 'seconds'"):
        predict.program(GPT, batch=1, sequence=2).by_operation("seconds")
