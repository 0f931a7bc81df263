"""A step of 96 layers, whose peak lies in the forward pass: autocast's copies of all weights are alive at its end."""

import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm, measure, predict

pytestmark = [pytest.mark.torch]


@pytest.mark.proof
def test_the_forward_pass_holds_the_peak_of_ninety_six_checkpointed_layers():
    # Narrow: the depth alone puts the peak there.
    config = predict.TransformerConfig(layers=96, d_model=16, heads=1, vocab=50, context=16)
    options = {"precision": "autocast", "checkpointing": True}
    moments = predict.peak_moments(config, batch=12, sequence=16, **options)
    assert max(moments.values()) == moments["forward"] == 1_895_496

    model = lm.DecoderOnly(config, checkpointing=True, attention="eager")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(config.vocab, (12, 16))

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    # The optimizer's state is made by its first step, which needs gradients, and no pass.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    assert measure.step_memory(model, loss, optimizer).peak_bytes == 1_895_496
