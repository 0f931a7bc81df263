"""Blocks like those of real architectures, built small by lm: every number of a step, to the byte and the FLOP."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from few import one_in

from cs336kit import lm
from cs336kit.predict import TransformerConfig, parameters, program
from tests.kit.predict.test_counted_steps import BASE, COUNTED, LIKE
from tests.kit.predict.test_walk import POLICIES, Real, check

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("number", one_in(3, range(len(LIKE))), ids=list(LIKE))
def test_everything_about_a_step(number):
    precision, attention, checkpointing = POLICIES[number % len(POLICIES)]
    config = dataclasses.replace(BASE, **[*LIKE.values()][number])
    check(config, 2, 7, precision=precision, attention=attention, checkpointing=checkpointing)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_one_long_sequence_whose_peak_lies_in_attention(kv_heads, checkpointing):
    # Query heads that share keys are one axis with their positions, for which they are copied.
    config = dataclasses.replace(BASE, kv_heads=kv_heads, d_ff=4, vocab=3, context=64)
    check(config, 1, 64, precision="fp32", attention="eager", checkpointing=checkpointing)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast"])
def test_an_rmsnorm_without_a_scale_keeps_no_copy_of_its_result(precision):
    config = dataclasses.replace(BASE, norm_scale=False)
    check(config, 2, 7, precision=precision, attention="sdpa", checkpointing=False)


@pytest.mark.parametrize(
    "change", [{}, {"norm_placement": "post"}, {"norm_placement": "sandwich"}, {"parallel": True}], ids=str
)
@pytest.mark.parametrize(("precision", "checkpointing"), [("fp32", False), ("bf16", True), ("autocast", False)])
def test_experts_beside_whatever_else_reads_their_input(change, precision, checkpointing):
    # The experts' backward pass holds the peak: a wide MLP, few words, few tokens.
    sizes = {"d_model": 8, "heads": 2, "head_dim": 4, "kv_heads": 1, "d_ff": 24, "vocab": 7, "context": 8}
    config = dataclasses.replace(BASE, **sizes, experts=2, experts_per_token=2, **change)
    check(config, 1, 4, precision=precision, attention="eager", checkpointing=checkpointing)


@pytest.mark.parametrize(
    "change",
    [
        {"kv_latent": 8, "rotary_dim": 4, "kv_heads": None, "window": 4}, {"value_dim": 6}, {"embedding_dim": 12},
        {"sinks": True},
        {"attention_scale": 0.1}, {"qk_norm": "heads"}, {"norm_unit_offset": True}, {"positions": "alibi"},
        {"mlp": "xielu"}, {"window": 4, "window_kind": "chunked"},
    ],
    ids=lambda change: ", ".join(change),
)  # fmt: skip
def test_what_lm_does_not_build_is_refused_by_name(change):
    config = dataclasses.replace(BASE, **change)
    with pytest.raises(ValueError, match=r".*cannot be built here, though predict counts it"):
        lm.DecoderOnly(config)


@pytest.mark.parametrize("name", LIKE)
def test_parameters_stand_in_the_order_of_the_module(name):
    # What an optimizer's loop leaves of one tensor meets the next.
    both = {"qk_norm": "width", "inner_norms": True}
    for change in ({}, {"norm_placement": "post"}, {"qk_norm": "head"}, both, both | {"norm": "layernorm"}):
        try:
            config = dataclasses.replace(BASE, **LIKE[name] | change)
            with torch.device("meta"):
                model = lm.DecoderOnly(config)
        except ValueError:  # some are no choice beside the others, and some cannot be built
            assert change, name
            continue
        assert parameters(config).total == sum(p.numel() for p in model.parameters()), (name, change)
        leaves = program(config, batch=1, sequence=1).leaves
        start, block, end = ([leaf for leaf in leaves if leaf.place == place] for place in ("start", "block", "end"))
        written = [leaf.tensor.elements for leaf in (*start, *block, *(block if config.layers > 1 else ()), *end)]
        assert set(pairwise(written)) == set(pairwise(p.numel() for p in model.parameters())), (name, change)


def counted(name, size, options):
    """The tokens of each expert of a step on this machine, and what is counted of it, as in COUNTED."""
    config = dataclasses.replace(BASE, **LIKE[name])
    real = Real(config, *size, **options)
    routing = real.expert_tokens() if config.experts else None
    kept, flops, step = real.kept(), real.flops(), real.step()
    live, at = [point.live_bytes for point in step.points], {stage: index + 1 for stage, _, index in step.stages}
    loss, end = at["loss"], at["backward"]
    peaks = max(live[:loss]), max(live[loss:end]), max(live[end:])
    return routing, kept, flops, peaks, tuple(live for _, live, _ in step.stages)


@pytest.mark.parametrize("case", COUNTED[::19], ids=lambda case: case[0])
def test_what_is_stored_of_a_step_is_what_torch_counts(case):
    name, size, options, *stored = case
    assert counted(name, size, options) == tuple(stored)


@pytest.mark.parametrize(
    ("fields", "batch", "sequence"),
    [
        # The positions' gradient is a sum over one sequence, beside the table of zeros into which it is written.
        ({}, 1, 3),
        # All heads share the rotary part of a key: its gradient is summed before any other is made.
        ({"positions": "none", "kv_latent": 4, "rotary_dim": 1, "heads": 2, "head_dim": 6, "value_dim": 3}, 2, 3),
    ],
)
def test_the_peak_of_sums_over_one_sequence_and_over_heads(fields, batch, sequence):
    sizes = {"layers": 1, "d_model": 10, "heads": 1, "d_ff": 2, "vocab": 1, "context": 16}
    check(
        TransformerConfig(**sizes | fields), batch, sequence, precision="fp32", attention="eager", checkpointing=False
    )
