"""Steps of blocks that nobody has put together: every moment is predicted as torch has it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from cs336kit import lm, predict
from tests.kit.predict.test_counted_steps import BASE, LIKE
from tests.kit.predict.test_walk import check

pytestmark = [pytest.mark.torch, pytest.mark.fuzz]

CHOICES = {
    "dropout": [0.0, 0.1],
    "tied_head": [False, True],
    "vocab": [7, 300],
    "kv_heads": [1, 2, 4],
    "bias": ["all", "none"],
    "norm": ["layernorm", "rmsnorm"],
    "norm_placement": ["pre", "post", "residual", "sandwich"],
    "inner_norms": [False, True],
    "qk_norm": ["none", "head", "width"],
    "window": [None, 5],
}
CHANGES = st.fixed_dictionaries({}, optional={name: st.sampled_from(choices) for name, choices in CHOICES.items()})
POLICIES = st.fixed_dictionaries(
    {
        "precision": st.sampled_from(list(predict.POLICIES)).filter(
            lambda name: not {"mixed", "moments"} & {*name.split("-")}
        ),
        "attention": st.sampled_from(["eager", "sdpa"]),
        "checkpointing": st.booleans(),
    }
)


# A step takes a tenth of a second, where other examples take a thousandth.
@settings(max_examples=settings.default.max_examples // 10)
@given(st.sampled_from(list(LIKE)), CHANGES, st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 7, 16]), POLICIES)
def test_every_moment_of_a_step_of_any_block(name, changes, batch, sequence, policy):
    try:
        config = replace(BASE, **LIKE[name] | changes)
        with torch.device("meta"):
            lm.DecoderOnly(config)
    except ValueError:  # not every choice goes with every other, and lm does not build them all
        reject()
    check(config, batch, sequence, **policy)
