"""Buckets of training, the peak with what is alive at it, and what follows: largest batches, sharding, break-even."""

import dataclasses

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from cs336kit import lm, measure
from cs336kit.predict import (
    MODELS,
    POLICIES,
    TransformerConfig,
    break_even_batch,
    bytes_per_parameter,
    largest_batch,
    parameters,
    peak_moments,
    step_peak,
    step_timeline,
    training_flops,
    training_memory,
)
from cs336kit.predict.training import first
from cs336plan import Question, plan

pytestmark = pytest.mark.torch

TINY = TransformerConfig(layers=2, d_model=16, heads=4, vocab=13, context=8)


def test_the_first_value_that_holds_is_found_with_few_questions():
    for least in (1, 2, 31, 64):
        asked = []
        assert first(range(1, 65), lambda n, least=least, asked=asked: asked.append(n) or n >= least) == least
        assert len(asked) <= 13 and len(set(asked)) == len(asked)
    assert first([1, 2], lambda n: n > 2) is None is first([], bool)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad", "Adafactor", "RMSprop"])
def test_each_bucket_equals_the_tensors_of_a_real_step(optimizer, precision):
    model, tokens = lm.DecoderOnly(TINY, attention="eager"), torch.randint(13, (2, 8))
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
    model = lm.DecoderOnly(TINY, attention="eager")
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


def test_the_largest_batch_fits_at_its_peak_and_the_next_does_not():
    for room in (1e5, 3e5, 1e6, 1e9):
        batch = largest_batch(TINY, sequence=8, memory_bytes=room, checkpointing=True)
        if batch:
            assert step_peak(TINY, batch=batch, sequence=8, checkpointing=True).total <= room
        assert step_peak(TINY, batch=batch + 1, sequence=8, checkpointing=True).total > room
    assert largest_batch(TINY, sequence=8, memory_bytes=1000) == 0


def test_gpt2_on_80_gigabytes():
    options = {"sequence": 1024, "precision": "mixed", "attention": "sdpa", "checkpointing": True}
    # By the sum of the buckets it would be 342, whose peak is 221 GB.
    assert largest_batch(MODELS["gpt2"], memory_bytes=80e9, **options) == 122
    assert step_peak(MODELS["gpt2"], batch=342, **options).total > 220e9


def test_below_the_break_even_batch_mixed_precision_costs_memory():
    for precision in ("autocast", "mixed-fp32-gradients"):
        batch = break_even_batch(MODELS["gpt2"], sequence=128, precision=precision)

        def total(size, policy):
            return training_memory(MODELS["gpt2"], batch=size, sequence=128, precision=policy).total

        assert total(batch, precision) <= total(batch, "fp32")
        assert batch == 1 or total(batch - 1, precision) > total(batch - 1, "fp32")
    assert break_even_batch(MODELS["gpt2"], sequence=128, precision="bf16") == 1


def test_when_nothing_is_saved_there_is_no_break_even():
    config = dataclasses.replace(TINY, norm="rmsnorm", norm_bias=False, tied_head=False, d_ff=1, vocab=2)
    with pytest.raises(ValueError, match="saves nothing per sequence"):
        break_even_batch(config, sequence=2, precision="autocast", than="bf16")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"optimizer": "sophia"}, "unknown optimizer 'sophia'"),
        ({"checkpointing": "no"}, "checkpointing must be True or False, got 'no'"),
        ({"sequence": 9}, "longer than context=8"),
    ],
)
def test_what_cannot_be_is_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        training_memory(TINY, **{"batch": 1, "sequence": 8, **change})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"shards": 0}, "shards must be"),
        ({"foreach": "no"}, "foreach must be True or False, got 'no'"),
        ({"checkpointing": "no"}, "checkpointing must be True or False, got 'no'"),
        ({"causal": "no"}, "causal must be True or False, got 'no'"),
        ({"frozen": "body"}, "unknown component 'body'"),
        ({"lora_rank": 0}, "lora_rank must be"),
        ({"expert_tokens": [1]}, "expert_tokens"),
    ],
)
def test_peaks_of_what_cannot_be_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        step_peak(TINY, **{"batch": 1, "sequence": 8, **change})


def test_the_peak_is_what_lasts_and_its_highest_moment():
    for precision in POLICIES:
        options = {"batch": 2, "sequence": 8, "precision": precision}
        peak, states = step_peak(TINY, **options), training_memory(TINY, **options)
        lasting = ["parameters", "optimizer state", *(["master weights"] if "master weights" in states else [])]
        assert list(peak) == [*lasting, "gradients", "activations", "temporary tensors"]
        assert all(peak[name] == states[name] for name in lasting)
        moments = max(peak_moments(TINY, **options).values())
        assert peak.total - sum(peak[name] for name in lasting) == moments


def test_the_moments_of_a_step():
    moments = peak_moments(TINY, batch=2, sequence=8)
    assert set(moments) == {
        "forward", "loss", "head backward", "norm backward", "mlp backward", "attention backward", "embedding backward",
        "optimizer step",
    }  # fmt: skip
    again = peak_moments(TINY, batch=2, sequence=8, checkpointing=True)
    assert set(again) == {*moments, "recomputation"}


def test_stages_of_a_step_with_one_layer():
    stages = [stage for stage, _ in step_timeline(dataclasses.replace(TINY, layers=1), batch=2, sequence=8)]
    assert stages == ["embedding", "block 1 forward", "loss", "head backward", "block 1 backward", "backward", "step"]
    blocks = [stage for stage, _ in step_timeline(TINY, batch=2, sequence=8) if stage.startswith("block")]
    numbers = range(1, TINY.layers + 1)
    assert blocks == [f"block {n} forward" for n in numbers] + [f"block {n} backward" for n in reversed(numbers)]


def test_an_optimizer_that_works_on_all_tensors_at_once_needs_as_much_again():
    config = TransformerConfig(layers=4, d_model=256, heads=8, vocab=1000, context=512)
    options = {"batch": 1, "sequence": 16}
    assert max(peak_moments(config, **options).values()) == 16_287_748
    assert max(peak_moments(config, foreach=True, **options).values()) == 28_372_996


@pytest.mark.parametrize("gate", [False, True])
def test_the_peak_of_experts_beside_one_that_all_tokens_share_is_that_of_a_real_step(gate):
    # Both experts see every token, so that all are as busy; attention has little to hold.
    config = TransformerConfig(
        layers=1, d_model=64, heads=1, head_dim=2, d_ff=64, vocab=13, context=8, norm="rmsnorm", bias="none", experts=2,
        experts_per_token=2, shared_d_ff=64, shared_gate=gate,
    )  # fmt: skip
    model, tokens = lm.DecoderOnly(config, attention="eager"), torch.randint(13, (2, 8))

    def loss():
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    real = measure.step_memory(model, loss, torch.optim.SGD(model.parameters(), foreach=False))
    moments = peak_moments(config, batch=2, sequence=8, optimizer="sgd")
    assert max(moments, key=moments.get) == "mlp backward" and moments["mlp backward"] == real.peak_bytes


# -- shards


def test_eight_sequences_of_llama_do_not_fit_although_their_buckets_do():
    config = MODELS["llama-3-8b"]
    answer = plan(Question(config, count=64, batch=6, sequence=8192, checkpointing=True))
    assert not answer.fits
    options = {"batch": 6, "sequence": 8192, "checkpointing": True, "precision": "mixed", "attention": "sdpa"}
    peak = step_peak(config, shards=64, **options)
    assert peak == answer.memory
    lasting = sum(peak[name] for name in ("parameters", "optimizer state", "master weights", "gathered parameters"))
    # Beside what lasts: two gradients of the logits, and what is kept; no gradient of a parameter is there yet.
    assert peak.total - lasting == peak_moments(config, **options)["loss"] and peak["gradients"] == 0


SIZES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "sequence": st.integers(1, 8),
        "precision": st.sampled_from(sorted(POLICIES)),
        "checkpointing": st.booleans(),
        "attention": st.sampled_from(["eager", "sdpa"]),
        "optimizer": st.sampled_from(["sgd", "adamw", "adafactor"]),
        "foreach": st.booleans(),
    }
)


@settings(max_examples=60)
@given(SIZES, st.integers(1, 4), st.sampled_from([16, 400]), st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 8]))
def test_more_shards_never_cost_more_memory(options, layers, vocab, one, other):
    # They divide every parameter: shards that do not are padded, and gathered with their padding.
    config = dataclasses.replace(TINY, layers=layers, vocab=vocab)
    few, many = (step_peak(config, shards=count, **options) for count in sorted((one, other)))
    assert many.total <= few.total


#: Moment → (what is outside of the blocks, blocks) that can be gathered at its peak, with buffers.
GATHERED = {
    "forward": {(2, 0), (1, 1), (1, 2), (1, 0)},
    "all-gather": {(2, 2), (1, 3), (1, 2)},  # the first block, the others, in the backward pass
    "loss": {(1, 0)},
    "head backward": {(1, 1)},
    **{name: {(1, 1), (1, 2)} for name in ("norm backward", "mlp backward", "attention backward", "recomputation")},
    "reduce-scatter": {(0, 0), (1, 0), (1, 1)},
    "embedding backward": {(1, 0)},
    "optimizer step": {(0, 0)},
}


@settings(max_examples=60)
@given(SIZES, st.integers(1, 4), st.sampled_from([13, 400]), st.integers(2, 64))
def test_what_is_gathered_at_the_peak_is_that_of_its_moment(options, layers, vocab, shards):
    config = dataclasses.replace(TINY, layers=layers, vocab=vocab)
    model = lm.DecoderOnly(config, attention="eager")

    def whole(module):  # every rank's share is as large as the largest
        return sum(-(-len(p) // shards) * shards * p[0].numel() for p in module.parameters())

    inside = whole(model.blocks[0])
    outside = whole(model) - layers * inside
    width = 4 if options["precision"] == "fp32" else 2
    moments = peak_moments(config, shards=shards, **options)
    gathered = step_peak(config, shards=shards, **options)["gathered parameters"]
    expected = GATHERED[max(moments, key=moments.get)]
    assert gathered in {width * (a * outside + b * inside) for a, b in expected}


@settings(max_examples=60)
@given(SIZES, st.integers(1, 4), st.integers(1, 64))
def test_a_larger_batch_never_costs_less(options, layers, shards):
    config = dataclasses.replace(TINY, layers=layers)
    bigger = {**options, "batch": options["batch"] + 1}
    peaks = (step_peak(config, shards=shards, **chosen).total for chosen in (options, bigger))
    assert next(peaks) <= next(peaks)


# -- adapters, and integers of numpy


def test_states_of_adapters_are_those_of_the_adapters_alone():
    options = {"batch": 2, "sequence": 8}
    whole, peak = step_peak(TINY, **options), step_peak(TINY, lora_rank=3, **options)
    adapters = 2 * 2 * 3 * (16 + 16)  # layers, query and value, rank, (inputs + outputs)
    assert peak["parameters"] == whole["parameters"] + 4 * adapters
    assert peak["optimizer state"] == 2 * 4 * adapters + 4 * 2 * 2 * 2
    still = step_peak(TINY, frozen=("token embedding", "position embedding"), **options)
    assert still["parameters"] == whole["parameters"]
    assert whole["optimizer state"] - still["optimizer state"] == 8 * (13 + 8) * 16 + 4 * 2


def test_integers_of_numpy_are_taken_for_what_they_are():
    config = MODELS["gpt3-175b"]
    plain, theirs = ({"batch": kind(512), "sequence": kind(2048)} for kind in (int, numpy.int32))
    assert training_flops(config, **theirs) == training_flops(config, **plain)
    assert training_flops(config, **theirs).total == pytest.approx(1.13e18, rel=2e-3)
    for function in (training_memory, step_peak, peak_moments, step_timeline):
        assert function(config, **theirs) == function(config, **plain)
    one = {**theirs, "shards": numpy.int64(8)}
    assert step_peak(config, **one) == step_peak(config, **plain, shards=8)
