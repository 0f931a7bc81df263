"""What fake kernels keep and multiply, by their packages' sources, counted by hand; and the two patches of transformers."""

import contextlib
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
import transformers.masking_utils as masks
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from benchmarks import traced as rows
from cs336kit import measure
from cs336plan.trace import build, counting, traced
from cs336plan.trace.kernels import KERNELS, fallbacks, kernels
from tests.plan.trace.chosen import few_first

pytestmark = pytest.mark.torch

B, L, D, N, H, P, G, Q = 2, 40, 24, 6, 3, 8, 1, 16
FAKE = FakeTensorMode()
TRACING, PACKED = masks.is_tracing, masks.find_packed_sequence_indices


def counted(function):
    with FAKE:
        saved = measure.saved_activation_bytes(function).total
        return saved, measure.flops(lambda: function().sum().backward(), by="pass")


def half(*shape):
    return torch.empty(*shape, dtype=torch.bfloat16, requires_grad=True)


def test_a_convolution_keeps_its_input():
    with FAKE:
        x, weight, bias = half(B, D, L), half(D, 4), half(D)
    saved, flops = counted(lambda: KERNELS["causal_conv1d_fn"](x, weight, bias, activation="silu"))
    assert saved == 2 * (B * D * L + D * 4 + D)
    assert dict(flops) == {"forward": 2 * B * D * L * 4, "backward": 4 * B * D * L * 4}


def test_a_scan_keeps_states_of_each_run_and_not_of_each_position():
    with FAKE:
        x, dt, z = half(B, D, L), half(B, D, L), half(B, D, L)
        A, Bs, C = torch.empty(D, N), half(B, N, L), half(B, N, L)
    saved, flops = counted(lambda: KERNELS["selective_scan_fn"](x, dt, A, Bs, C, z=z))
    # u, delta, z and the output before the gate; B and C; A; two fp32 of each state at the end of 2,048 positions.
    assert saved == 2 * 4 * B * D * L + 2 * 2 * B * N * L + 4 * D * N + 4 * B * D * 2 * N
    assert flops["forward"] == 2 * B * D * L * N


def test_chunks_keep_inputs_steps_and_the_output():
    with FAKE:
        x, dt, A = half(B, L, H, P), half(B, L, H), torch.empty(H)
        Bs, C = half(B, L, G, N), half(B, L, G, N)
    saved, flops = counted(lambda: KERNELS["mamba_chunk_scan_combined"](x, dt, A, Bs, C, chunk_size=Q))
    padded = 3 * Q  # 40 positions are three chunks of 16
    assert saved == 2 * (2 * B * L * H * P + B * L * H + 2 * B * L * G * N) + 4 * H + 4 * B * H * padded
    forward = 2 * B * L * (Q * G * N + Q * H * P + 2 * H * P * N)
    # Backward takes two products for each, and makes those of C and B and the states again.
    assert dict(flops) == {"forward": forward, "backward": 2 * forward + 2 * B * L * (Q * G * N + H * P * N)}


def test_a_scan_with_all_around_it_keeps_the_scales_of_each_groups_norm():
    groups, wide, out = 2, H * P + 2 * 2 * N, 20  # what the convolution sees: x, and B and C of two groups
    with FAKE:
        zxbcdt, weight, bias = half(B, L, H * P + wide + H), half(wide, 4), half(wide)
        dt_bias, A, skip, norm, projection = (
            torch.empty(H),
            torch.empty(H),
            torch.empty(H),
            half(H * P),
            half(out, H * P),
        )
    run = KERNELS["mamba_split_conv1d_scan_combined"]
    options = {"chunk_size": Q, "headdim": P, "ngroups": groups, "outproj_weight": projection}
    plain, flops = counted(lambda: run(zxbcdt, weight, bias, dt_bias, A, skip, **options))
    inputs = 2 * (B * L * (H * P + wide + H) + wide * 4 + wide + out * H * P) + 4 * 3 * H
    assert plain == inputs + 2 * B * L * H * P  # and the output of the scan
    normed, _ = counted(lambda: run(zxbcdt, weight, bias, dt_bias, A, skip, rmsnorm_weight=norm, **options))
    assert normed == plain + 2 * H * P + 4 * groups * B * L
    scores, state, others = 2 * B * L * Q * groups * N, 2 * B * L * H * P * N, 2 * B * L * Q * H * P
    convolution, last = 2 * B * L * wide * 4, 2 * B * L * out * H * P
    scan = scores + others + 2 * state
    # Backward makes the convolution, the products of C and B and the states again.
    assert dict(flops) == {
        "forward": scan + convolution + last, "backward": 2 * scan + scores + state + 3 * convolution + 2 * last,
    }  # fmt: skip


def test_the_delta_rule_keeps_a_triangle_for_each_chunk():
    K, V = 16, 8
    with FAKE:
        q, k, v = half(B, L, H, K), half(B, L, H, K), half(B, L, H, V)
        g, beta = torch.empty(B, L, H, requires_grad=True), half(B, L, H)
    run = KERNELS["chunk_gated_delta_rule"]
    plain, _ = counted(lambda: run(q, k, v, g, beta)[0])
    assert plain == 2 * B * L * H * (2 * K + V + 1 + 64) + 4 * B * L * H
    normed, _ = counted(lambda: run(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0])
    assert normed == plain + 2 * 4 * B * L * H  # the normed rows in place of the given, and a number for each


def test_fused_attention_of_narrower_values_keeps_no_scores():
    with FAKE:
        q, k, v = half(B, H, L, 24), half(B, H, L, 24), half(B, H, L, 16)
    explicit, _ = counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    model = torch.nn.Linear(1, 1)
    with kernels(model):
        saved, flops = counted(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    assert saved == 2 * B * H * L * (24 + 24 + 16 + 16) + 4 * B * H * L < explicit
    assert dict(flops) == {"forward": 2 * B * H * L * L * 40, "backward": 2 * B * H * L * L * (3 * 24 + 2 * 16)}


@pytest.mark.parametrize(
    "name", few_first(["mamba", "mamba2", "jamba", "qwen3_next", "kimi_linear", "lfm2", "nemotron_h"])
)
def test_with_kernels_the_answer_is_no_bound_and_keeps_less(name):
    values = rows.small(name)
    fused = traced(values, sequence=64, answering=False, keep=False)
    written = traced(values, sequence=64, answering=False, keep=False, kernels=False)
    assert not fused.upper_bound and written.upper_bound
    assert "an upper bound: " in written.notes[0] and "causal_conv1d" in written.notes[0]
    assert fused.saved_bytes < written.saved_bytes and fused.parameters == written.parameters


def test_a_decay_for_each_key_is_kept_with_its_sums_and_the_scores():
    K, V = 16, 8
    with FAKE:
        q, k, v, g = half(B, L, H, K), half(B, L, H, K), half(B, L, H, V), half(B, L, H, K)
        beta = half(B, L, H)
    saved, _ = counted(lambda: KERNELS["chunk_kda"](q, k, v, g=g, beta=beta)[0])
    assert saved == 2 * B * L * H * (3 * K + V + 1 + 2 * 64) + 4 * B * L * H * K


def test_a_fallback_without_a_fake_kernel_is_named(monkeypatch):
    monkeypatch.delitem(KERNELS, "causal_conv1d_fn")
    found = traced(rows.small("lfm2"), sequence=16, answering=False, keep=False)
    assert found.upper_bound and "causal_conv1d_fn of causal_conv1d" in found.notes[0]


def test_a_fallback_that_runs_for_answers_alone_makes_no_bound(monkeypatch):
    """Mamba trains by one kernel of all, and reads a prompt by the scan alone; nothing is kept there."""
    monkeypatch.delitem(KERNELS, "selective_scan_fn")
    found = traced(rows.small("mamba"), sequence=4, keep=False)
    assert not found.upper_bound and found.notes == () and found.prefill_flops
    monkeypatch.delitem(KERNELS, "mamba_inner_fn")
    assert traced(rows.small("mamba"), sequence=4, answering=False, keep=False).upper_bound


def test_functions_of_packages_are_found_in_the_module_that_calls_them():
    with build.fake():
        model, _ = build.model_of(build.configuration(rows.small("bamba")), precision="bf16", attention="sdpa")
    found = {name: package for name, package, _ in fallbacks(model).values()}
    assert found["mamba_split_conv1d_scan_combined"] == "mamba_ssm" and found["causal_conv1d_fn"] == "causal_conv1d"


def saved_of(name, **changed):
    with build.fake(), contextlib.ExitStack() as stack:
        for place, function in changed.items():
            stack.enter_context(mock.patch.object(masks, place, function))
        config = build.configuration(rows.small(name))
        model, _ = build.model_of(config, precision="bf16", attention="sdpa")
        return counting.passes(model, (), batch=2, sequence=24, precision="bf16").saved_bytes


def test_without_the_first_patch_positions_would_be_read():
    with pytest.raises(DataDependentOutputException):
        saved_of("llama", find_packed_sequence_indices=PACKED)


def test_without_the_second_patch_masks_would_be_made_that_nobody_has():
    # Asked whether an export runs, transformers would say yes of every fake tensor.
    with FAKE:
        assert TRACING(torch.zeros(1)) and not masks.is_tracing(None)
    assert saved_of("llama", find_packed_sequence_indices=PACKED, is_tracing=TRACING) > saved_of("llama")
