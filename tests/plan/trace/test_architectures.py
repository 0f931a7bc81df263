"""Small models of every architecture that matters: traced on fake tensors, and the same module really run."""

import pytest
import torch
import transformers
from few import one_in

from benchmarks import traced as rows
from cs336kit import measure
from cs336plan.trace import build, traced
from cs336plan.trace.counting import ids
from tests.plan.trace.chosen import few_first

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def quiet():
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)


def test_there_are_forty_architectures():
    assert len(rows.ROWS) >= 40


@pytest.mark.parametrize("name", few_first(rows.ROWS))
def test_a_small_model_counts_as_it_runs(name):
    found, real, _ = rows.compared(name)
    assert rows.of(found) == real


#: Of other precisions, attention and checkpointing: an architecture of each kind.
POLICIES = (
    {"precision": "fp32", "attention": "eager"},
    {"precision": "autocast", "checkpointing": True},
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: "-".join(map(str, policy.values())))
@pytest.mark.parametrize("name", one_in(6, ["llama", "gemma2", "mixtral", "mamba2", "deepseek_v3", "lfm2"]))
def test_other_policies_count_as_they_run(name, policy):
    found, real, _ = rows.compared(name, answering=False, **policy)
    assert rows.of(found)[:5] == real[:5]


@pytest.mark.parametrize("policy", [
    pytest.param({"precision": "fp16"}, id="fp16"),
    pytest.param({"precision": "autocast-fp16", "checkpointing": True}, id="autocast-fp16", marks=pytest.mark.proof),
])  # fmt: skip
@pytest.mark.parametrize(
    "name",
    [
        "llama",
        *(
            pytest.param(name, marks=pytest.mark.proof)
            for name in ("gpt2", "gemma2", "mixtral", "deepseek_v3", "mamba2")
        ),
    ],
)
def test_fp16_counts_as_it_runs_which_is_bf16_by_another_name(name, policy):
    found, real, _ = rows.compared(name, answering=False, **policy)
    assert rows.of(found)[:5] == real[:5]
    half = {**policy, "precision": policy["precision"].replace("-fp16", "").replace("fp16", "bf16")}
    other = traced(rows.small(name), batch=2, sequence=24, kernels=False, answering=False, keep=False, **half)
    assert rows.of(other)[:5] == real[:5]


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_step_with_its_optimizer_peaks_as_one_that_runs(optimizer):
    values = rows.small("llama") | {"vocab_size": 40}
    found = traced(values, batch=2, sequence=24, precision="fp32", answering=False, keep=False)
    model, _ = build.model_of(build.configuration(values), precision="fp32", attention="sdpa")
    chosen = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, foreach=False)
    tokens = ids(2, 24)

    def step():
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        chosen.step()
        chosen.zero_grad()

    step()
    said = found.step_peak(optimizer.lower())
    assert said["optimizer state"] == measure.state_bytes(chosen).total
    assert said["parameters"] == sum(p.numel() * p.element_size() for p in model.parameters())
    assert 0 <= measure.peak_bytes(step) - said["gradients and activations"] <= 64  # the loss and scalars of the loop


#: Llama-3-70B; the others are what their configuration in transformers describes: Mixtral-8x7B, DeepSeek-V3, Jamba-v0.1.
LLAMA = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize("values, total", [
    pytest.param(LLAMA, 70_553_706_496, marks=pytest.mark.proof),
    ({"model_type": "mixtral"}, 46_702_792_704),
    pytest.param({"model_type": "jamba"}, 51_570_323_328, marks=pytest.mark.proof),
    # The biases of the routing are buffers in transformers.
    pytest.param({"model_type": "deepseek_v3"}, 671_026_419_200 - 58 * 256, marks=pytest.mark.proof),
])  # fmt: skip
def test_published_counts_of_parameters(values, total):
    found = traced(values, sequence=8, answering=False, keep=False)
    assert found.parameters.total == total
    assert found.active_parameters is not None and (found.active_parameters < total) is (values is not LLAMA)


def test_components_are_those_of_a_count_by_hand():
    values = rows.small("llama")
    found = traced(values, sequence=8, answering=False, keep=False).parameters
    D, F, V, L, heads, kv, h = (values[n] for n in (
        "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim",
    ))  # fmt: skip
    assert dict(found) == {
        "embeddings": 2 * V * D, "attention": L * (2 * D * heads * h + 2 * D * kv * h), "mlp": 3 * L * D * F,
        "norms": (2 * L + 1) * D,
    }  # fmt: skip


def test_blocks_that_share_a_name_are_told_by_their_classes():
    found = traced(rows.small("nemotron_h"), sequence=8, answering=False, keep=False).parameters
    # Four query heads and two of keys and values, 16 wide; the MLP has no gate.
    assert found["attention"] == 64 * 16 * (4 + 2 + 2 + 4)
    assert found["mlp"] >= 2 * 64 * 96 and found["experts"] > 0 and found["mixers"] > 0


@pytest.mark.parametrize("name, per_token, state", [
    ("gpt2", 2 * 2 * 2 * 64, 0),  # two layers, keys and values, two bytes
    ("llama", 2 * 2 * 2 * 2 * 16, 0),  # two of four heads have keys
    ("deepseek_v3", 2 * 2 * (32 + 8), 0),  # a latent and the rotated part of a key, for all heads
    ("minimax", 2 * 2 * 2 * 16, 2 * 4 * 16 * 16),  # one layer of lightning attention holds a matrix for each head
    ("mamba2", 0, 2 * (4 * 4 * 32 * 16 + 2 * 4 * (4 * 32 + 2 * 16))),  # states in fp32, four inputs of each convolution
])  # fmt: skip
def test_caches_are_those_counted_by_hand(name, per_token, state):
    found = traced(rows.small(name), sequence=16, keep=False)
    assert (found.cache_bytes_per_token, found.state_bytes) == (per_token, state)


@pytest.mark.parametrize(
    "name", one_in(6, ["lfm2_moe", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "ernie4_5_moe"])
)
def test_two_of_four_experts_are_active(name):
    found = traced(rows.small(name), sequence=16, keep=False, answering=False)
    assert found.active_parameters == found.parameters.total - found.parameters["experts"] // 2
    dense = traced(rows.small("llama"), sequence=16, keep=False, answering=False)
    assert dense.active_parameters == dense.parameters.total
