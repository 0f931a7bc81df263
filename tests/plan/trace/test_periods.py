"""Layers that repeat: extrapolated is what tracing all of them says, also where a peak kinks, and on both sides of a window."""

import dataclasses

import pytest

from cs336plan.trace import traced
from cs336plan.trace.periods import Pattern, pattern

pytestmark = pytest.mark.torch

NARROW = {
    "hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "vocab_size": 300,
}  # fmt: skip


def both(values, **options):
    found = [traced(values, keep=False, whole=whole, **options) for whole in (True, False)]
    assert [each.whole for each in found] == [True, False]
    return found


def same(values, **options):
    whole, other = both(values, **options)
    assert dataclasses.replace(other, whole=True, cache=None) == dataclasses.replace(whole, cache=None)
    if whole.cache is not None:
        assert [whole.cache_bytes(n) for n in (3, 18, 19, 20, 500)] == [
            other.cache_bytes(n) for n in (3, 18, 19, 20, 500)
        ]
    return whole


def test_a_checkpointed_peak_that_kinks_is_that_of_all_layers():
    values = {"model_type": "qwen2", "num_hidden_layers": 28, **NARROW}
    options = {"batch": 2, "sequence": 32, "checkpointing": True, "answering": False}
    whole = same(values, **options)
    # Of few layers the loss is the peak, of many the gradients: what three and four layers say alone is another number.
    few, more = (
        traced({**values, "num_hidden_layers": n}, keep=False, **options).passes_peak_bytes for n in (3, 4)
    )  # fmt: skip
    assert few + 25 * (more - few) != whole.passes_peak_bytes


def test_windows_in_a_pattern_of_two_layers_and_a_rest():
    # 17 layers: eight periods of a window and a full layer, and one more window.
    values = {"model_type": "gemma2", "num_hidden_layers": 17, "sliding_window": 20, **NARROW}
    found = traced(values, keep=False, whole=False, sequence=24)
    assert not found.whole
    # transformers holds one token less than the window; keys and values of one head, 16 wide, in bf16.
    assert found.cache_bytes(19) == 17 * 64 * 19
    assert found.cache_bytes(20) == 17 * 64 * 19 + 8 * 64
    assert found.cache_bytes_per_token == 8 * 64 and found.state_bytes == 0


def test_answers_of_many_layers_take_the_flops_of_a_count_by_hand():
    """Two prompts of 24 tokens and a token after each: matrices, two products with all keys, the head at the last position."""
    found = traced(
        {"model_type": "qwen2", "num_hidden_layers": 12, **NARROW}, keep=False, whole=False, sequence=24, batch=2
    )
    assert not found.whole
    matrices, head = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 80, 32 * 300
    assert found.prefill_flops == 2 * (12 * (2 * 24 * matrices + 2 * 2 * 24 * 24 * 32) + 2 * head)
    assert found.decode_flops == 2 * (12 * (2 * matrices + 2 * 2 * 25 * 32) + 2 * head)


def test_a_prefix_of_dense_layers_before_a_mixture():
    values = {
        "model_type": "deepseek_v3", "num_hidden_layers": 12, **NARROW, "num_key_value_heads": 2, "moe_intermediate_size": 16,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 24,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 2,
    }  # fmt: skip
    values.pop("head_dim")
    same(values, sequence=32, answering=False)


@pytest.mark.parametrize("layers, found", [
    ("a" * 7, None),  # three and four of one layer are as many
    ("a" * 8, Pattern(0, 1, 8, 0)),
    ("ba" * 12, Pattern(0, 2, 12, 0)),
    ("xxx" + "a" * 58, Pattern(3, 1, 58, 0)),
    ("x" + "aab" * 10 + "aa", Pattern(1, 3, 10, 2)),
    ("abcdefgh", None),
    # Five layers of their own in both, beside three and four: 17 layers to trace, of 15.
    ("vwxyz" + "a" * 10, None),
])  # fmt: skip
def test_the_pattern_of_layers(layers, found):
    assert pattern(layers) == found


def test_layers_of_models_with_few_and_many_periods_have_the_same_roles():
    found = Pattern(before=2, length=3, periods=9, after=1)
    assert found.chosen(1) == [0, 1, 2, 3, 4, 29]
    roles = [[found.role(layer, n) for layer in range(3 + 3 * n)] for n in (4, 6)]
    assert [role for role in roles[0] if role is not None] == [role for role in roles[1] if role is not None]
    assert roles[1].count(None) == 6
