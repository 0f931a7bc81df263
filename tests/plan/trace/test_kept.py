"""What modules of transformers keep, and their peaks, traced and really run: `python -m benchmarks.kept` shows all cases."""

import pytest
import torch
import transformers

from benchmarks import kept
from tests.plan.trace.chosen import few_first

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


@pytest.mark.parametrize("name", few_first(kept.FAMILIES))
def test_each_family_keeps_and_peaks_as_it_runs(name):
    number = [*kept.FAMILIES].index(name)
    row = kept.row_of(name, kept.POLICIES[7 * number % 40])  # another of 40 policies for each family
    assert row.traced == row.counted, row.policy


def test_dropout_is_set_where_a_family_has_it():
    without, with_it = (kept.config_of("gpt2", dropout) for dropout in (0.0, 0.1))
    assert {name for name in without if without[name] != with_it[name]} >= {"attn_pdrop", "embd_pdrop", "resid_pdrop"}
    assert all(kept.config_of(name, 0.1) != kept.config_of(name, 0.0) for name in kept.FAMILIES)
