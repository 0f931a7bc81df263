"""A loss in chunks against a real one on a CPU: the peak of a step to the byte, and what is computed again."""

import contextlib
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from cs336kit import lm, measure
from cs336kit.predict import TransformerConfig, peak_moments, program, saved_activation_bytes, training_flops

pytestmark = pytest.mark.torch

CONFIGS = {
    "gpt": TransformerConfig(layers=2, d_model=32, heads=4, vocab=1000, context=64),
    "llama": TransformerConfig(
        layers=2, d_model=32, heads=4, kv_heads=2, d_ff=64, vocab=1001, context=64, mlp="swiglu", norm="rmsnorm",
        positions="rope", bias="none", tied_head=False,
    ),
    "phi": TransformerConfig(layers=2, d_model=32, heads=4, vocab=1003, context=64, tied_head=False, head_bias=True),
}  # fmt: skip


def chunked_step(config, batch, sequence, precision, chunks, **options):
    """A model, its step's loss in chunks, and its optimizer, after a first step."""
    torch.manual_seed(0)
    model = lm.DecoderOnly(config, **options)
    if precision == "bf16":
        model.bfloat16()
    tokens = torch.randint(config.vocab, (batch, sequence))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    head = model.head

    def one(x, targets):
        return F.cross_entropy(head(x).float(), targets, reduction="sum")

    def loss():
        with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else contextlib.nullcontext():
            model.head = torch.nn.Identity()
            try:
                x = model(tokens)
            finally:
                model.head = head
            total = None
            for part, targets in zip(x.flatten(0, 1).chunk(chunks), tokens.flatten().chunk(chunks), strict=True):
                summed = checkpoint(one, part, targets, use_reentrant=False)
                total = summed if total is None else total + summed
                del summed
            return total / tokens.numel()

    loss().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, loss, optimizer


CASES = itertools.product(CONFIGS, ("fp32", "bf16", "autocast"), (False, True), (3,))


@pytest.mark.parametrize(("name", "precision", "checkpointing", "chunks"), list(CASES))
def test_the_peak_of_a_chunked_loss_is_that_of_a_real_step(name, precision, checkpointing, chunks):
    config, options = CONFIGS[name], {"attention": "sdpa", "checkpointing": checkpointing}
    real = measure.step_memory(*chunked_step(config, 3, 17, precision, chunks, **options))
    predicted = peak_moments(config, batch=3, sequence=17, precision=precision, chunks=chunks, **options)
    assert max(predicted.values()) == real.peak_bytes


def test_chunks_cost_the_heads_forward_pass_once_more():
    config, size = CONFIGS["llama"], {"batch": 3, "sequence": 17}
    once = training_flops(config, **size)
    again = training_flops(config, **size, chunks=4)
    assert again["recomputed forward"] == again.total - once.total == 2 * 3 * 17 * config.d_model * config.vocab
    both = training_flops(config, **size, chunks=4, checkpointing=True)
    assert (
        both.total - once.total
        == again["recomputed forward"] + (training_flops(config, **size, checkpointing=True)["recomputed forward"])
    )


def test_what_is_kept_is_the_heads_input_alone():
    config, size = CONFIGS["gpt"], {"batch": 3, "sequence": 17}
    kept = saved_activation_bytes(config, **size, chunks=5)
    whole = saved_activation_bytes(config, **size)
    assert "cross-entropy" not in kept and kept["head's input"] == whole["head's input"]
    assert whole.total - kept.total == whole["cross-entropy"]
    assert len(list(program(config, **size, chunks=10**9).operations())) > 3 * 17 * 4
    with pytest.raises(ValueError, match="divides the loss"):
        program(config, **size, chunks=2, phase="forward")
    with pytest.raises(ValueError, match="chunks must be"):
        program(config, **size, chunks=0)


@pytest.mark.parametrize(("name", "precision"), itertools.product(CONFIGS, ("fp32", "bf16", "autocast")))
def test_gradients_of_earlier_passes_are_alive_from_the_start(name, precision):
    config, size = CONFIGS[name], {"batch": 2, "sequence": 17, "precision": precision, "attention": "sdpa"}
    _, loss, _ = chunked_step(config, 2, 17, precision, 3, attention="sdpa")

    def two_passes():
        loss().backward()
        value = loss()
        value.backward()
        del value

    moments = peak_moments(config, **size, chunks=3, accumulate=2)
    del moments["optimizer step"]
    assert max(moments.values()) == measure.peak_bytes(two_passes, device="cpu")
    assert peak_moments(config, **size, accumulate=7) == peak_moments(config, **size, accumulate=2)
