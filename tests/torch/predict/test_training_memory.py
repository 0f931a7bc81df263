import dataclasses

import pytest
import torch
import torch.nn.functional as F

from cs336kit import lm, measure
from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    break_even_batch,
    bytes_per_parameter,
    largest_batch,
    paper_block_bytes,
    paper_break_even_batch,
    parameters,
    training_memory,
)

TINY = TransformerConfig(layers=2, d_model=16, heads=4, vocab=13, context=8)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad", "Adafactor", "RMSprop"])
def test_each_bucket_equals_the_tensors_of_a_real_step(optimizer, precision):
    model, tokens = lm.DecoderOnly(TINY), torch.randint(13, (2, 8))
    if precision == "bf16":
        model = model.bfloat16()
    update = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)

    def loss():
        return F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())

    memory = training_memory(TINY, batch=2, sequence=8, precision=precision, optimizer=optimizer)
    assert memory["activations"] == measure.saved_activation_bytes(loss).total
    loss().backward()
    update.step()
    size = [p.numel() * p.element_size() for p in model.parameters()]
    assert memory["parameters"] == sum(size)
    assert memory["gradients"] == sum(p.grad.numel() * p.grad.element_size() for p in model.parameters())
    state = [t for values in update.state.values() for t in values.values() if isinstance(t, torch.Tensor)]
    assert memory["optimizer state"] == sum(t.numel() * t.element_size() for t in state)


def test_fp32_with_adamw_is_sixteen_bytes_a_parameter_and_a_counter_each():
    model = lm.DecoderOnly(TINY)
    memory = training_memory(TINY, batch=1, sequence=8)
    P = parameters(TINY).total
    assert memory.total - memory["activations"] == 16 * P + 4 * len(list(model.parameters()))


def test_gpt3_in_mixed_precision_takes_2926_gib_before_activations():
    P = parameters(MODELS["gpt3-175b"]).total
    memory = training_memory(MODELS["gpt3-175b"], batch=1, sequence=2048, precision="mixed-fp32-gradients")
    gib = {name: round(size / 2**30) for name, size in memory.items()}
    assert (gib["parameters"], gib["gradients"]) == (325, 650)
    assert round((memory["optimizer state"] + memory["master weights"]) / 2**30) == 1951
    each = bytes_per_parameter("adamw", precision="mixed-fp32-gradients").total
    counters = memory["optimizer state"] - 8 * P
    assert memory.total - memory["activations"] - counters == each * P == 18 * P


def test_the_largest_batch_fits_and_the_next_does_not():
    for room in (1e5, 3e5, 1e6, 1e9):
        batch = largest_batch(TINY, sequence=8, memory_bytes=room, checkpointing=True)
        if batch:
            assert training_memory(TINY, batch, 8, checkpointing=True).total <= room
        assert training_memory(TINY, batch + 1, 8, checkpointing=True).total > room
    assert largest_batch(TINY, sequence=8, memory_bytes=1000) == 0


def test_below_the_break_even_batch_mixed_precision_costs_memory():
    for precision in ("autocast", "mixed-fp32-gradients"):
        batch = break_even_batch(MODELS["gpt2"], sequence=128, precision=precision)

        def total(size, policy):
            return training_memory(MODELS["gpt2"], batch=size, sequence=128, precision=policy).total

        assert total(batch, precision) <= total(batch, "fp32")
        assert batch == 1 or total(batch - 1, precision) > total(batch - 1, "fp32")
    assert break_even_batch(MODELS["gpt2"], sequence=128, precision="bf16") == 1


def test_the_break_even_batch_of_the_notes():
    config = TransformerConfig(layers=1, d_model=8192, heads=64, vocab=2, context=2048)
    assert paper_break_even_batch(config, sequence=2048) == pytest.approx(1.0)
    # Two more bytes for each of 12D² weights, against half of the paper's activations in 4-byte elements.
    saving = [paper_block_bytes(config, batch=1, sequence=2048, bytes_per_element=p).total for p in (4, 2)]
    assert 24 * 8192**2 / (saving[0] - saving[1]) == pytest.approx(paper_break_even_batch(config, sequence=2048))


def test_when_nothing_is_saved_there_is_no_break_even():
    config = dataclasses.replace(TINY, norm="rmsnorm", norm_bias=False, tied_head=False, d_ff=1, vocab=2)
    with pytest.raises(ValueError, match="saves nothing per sequence"):
        break_even_batch(config, sequence=2, precision="autocast", than="bf16")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"optimizer": "sophia"}, "unknown optimizer 'sophia'"),
        ({"optimizer": "muon"}, "muon takes matrices only"),
        ({"sequence": 9}, "longer than context=8"),
    ],
)
def test_what_cannot_be_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        training_memory(TINY, **{"batch": 1, "sequence": 8, **change})
