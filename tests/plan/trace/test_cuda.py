"""Traced by CUDA's rules: with PyTorch's CUDA build and no GPU by `make cuda-rules`; a CPU build says what it lacks."""

import dataclasses
import json

import pytest
import transformers

from benchmarks import kept
from benchmarks import traced as rows
from cs336kit.command import main
from cs336kit.predict import program, saved_activation_bytes
from cs336kit.predict.hugging_face import from_hf
from cs336kit.predict.layouts import Layout
from cs336kit.predict.training import _walked
from cs336plan.trace import counting, cuda, store, traced
from cs336plan.traced_answers.counted import rules_of
from tests.kit.predict.test_cuda_rules import MODELS, PRECISIONS, loss_on_cuda

pytestmark = pytest.mark.torch
LACKING = cuda.lacking()
needs_cuda = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
SIZE = {"batch": 2, "sequence": 24}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    transformers.logging.set_verbosity_error()
    monkeypatch.setenv(store.VARIABLE, "")


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(rows.small("llama")))
    return str(tmp_path / "mine")


@pytest.mark.skipif(LACKING is None, reason="this is a CUDA build")
def test_a_build_without_cuda_is_said_in_a_sentence(file, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "kept"))
    with pytest.raises(ValueError, match=r"is a build without CUDA.*also without a GPU$") as error:
        traced(rows.small("llama"), device="cuda", keep=False)
    assert "\n" not in str(error.value)
    words = file, "--modules", "transformers", "--sequence", "8"
    assert main(["plan", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"] == "cpu"
    assert found["notes"][0].startswith("what operations save is counted by a CPU's rules: torch ")
    assert main(["plan", *words, "--device", "cpu", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert asked["notes"] == found["notes"][1:] and asked["memory_bytes"] == found["memory_bytes"]


@needs_cuda
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_peak_of_the_kits_decoder_is_that_of_its_rules(name, precision, attention, dropout):
    """With what kernels have for a moment; GPUs have requested what these rules say, to the byte."""
    config = dataclasses.replace(MODELS[name], dropout=dropout)
    walk = _walked(program(config, batch=3, sequence=12, precision=precision, attention=attention, device="cuda"))
    with loss_on_cuda(config, 3, 12, precision=precision, attention=attention) as loss:
        peaks = counting._peaks((), loss, faked=True)
    assert max(peaks.values()) == max(peak.bytes for peak in walk.ledger.peaks.values())


def saved(values, precision, attention):
    """Bytes that a module saves on CUDA beyond those on a CPU: of transformers' module, and by the kit's rules for its own."""
    how = {"precision": precision, "attention": attention, **SIZE}
    there, here = (traced(values, device=d, answering=False, keep=False, **how) for d in ("cuda", "cpu"))
    how["attention"] = there.attention  # some have no fused one
    rules = [saved_activation_bytes(from_hf(values), device=d, **how).total for d in ("cuda", "cpu")]
    return there.saved_bytes - here.saved_bytes, rules[0] - rules[1]


@needs_cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "phi", "gpt_neox", "opt", "bloom", "gpt2"])
def test_modules_differ_between_devices_as_the_rules_do(name, attention, precision):
    """Written otherwise than the kit's, they use the same fused attention, norms, softmax and cross entropy."""
    theirs, ours = saved(kept.config_of(name, dropout=0.0), precision, attention)
    assert theirs == ours


@needs_cuda
def test_under_autocast_modules_differ_where_they_are_written_otherwise():
    """Autocast on CUDA runs softmax and powers in fp32. What the kit leaves to one function, transformers writes out."""
    tokens, (L, A, F) = SIZE["batch"] * SIZE["sequence"], (2, 4, 96)
    theirs, ours = saved(rows.small("llama"), "autocast", "sdpa")
    assert theirs == ours
    # transformers' eager attention has its softmax in fp32 on every device, and the kit's only where autocast says so.
    theirs, ours = saved(rows.small("llama"), "autocast", "eager")
    weights = 2 * L * A * tokens * SIZE["sequence"]
    assert (theirs, ours) == (0, 2 * weights)
    # gelu_new is written out: x³ and what follows are in fp32, of whose tensors six more bytes a feature are saved.
    phi = {**rows.small("phi"), "hidden_act": "gelu_new"}
    theirs, ours = saved(phi, "autocast", "sdpa")
    assert theirs - ours == 6 * tokens * L * F
    theirs, ours = saved({**phi, "hidden_act": "gelu_pytorch_tanh"}, "autocast", "sdpa")
    assert theirs == ours


@needs_cuda
@pytest.mark.parametrize("policy", [
    {"precision": "bf16"}, {"precision": "autocast", "checkpointing": True},
    {"precision": "fp16", "lora_rank": 2, "lora_targets": "all-linear"},
], ids=["bf16", "autocast", "adapters"])  # fmt: skip
@pytest.mark.parametrize(
    "name",
    ["gemma3_text", "qwen3_moe", "deepseek_v3", "jamba", "qwen3_next", "lfm2_moe", "falcon", "gpt_oss", "diffllama"],
)
def test_products_parameters_and_caches_are_those_of_a_cpu(name, policy):
    values = rows.small(name)
    if "v_head_dim" in values:
        values["v_head_dim"] = 16  # of 12, no kernel on CUDA takes the values
    here, there = (traced(values, device=device, keep=False, **SIZE, **policy) for device in ("cpu", "cuda"))
    assert there.device == "cuda" and here.device == "cpu"
    for each in ("components", "trained", "forward_flops", "training_flops", "cache", "prefill_flops", "decode_flops"):
        assert getattr(here, each) == getattr(there, each), each


@needs_cuda
def test_few_layers_say_what_many_need_on_cuda():
    values = {**rows.small("llama"), "num_hidden_layers": 12}
    few, many = (traced(values, device="cuda", whole=w, answering=False, keep=False, **SIZE) for w in (False, True))
    assert (few.saved_bytes, few.passes_peak_bytes) == (many.saved_bytes, many.passes_peak_bytes)
    assert many.whole and not few.whole


@needs_cuda
def test_a_plan_is_by_cudas_rules_unless_asked_otherwise(file, capsys):
    found = {}
    for words in ((), ("--device", "cuda"), ("--device", "cpu")):
        assert main(["plan", file, "--modules", "transformers", "--sequence", "24", "--json", *words]) == 0
        found[words] = json.loads(capsys.readouterr().out)
    assert [plan["device"] for plan in found.values()] == ["cuda", "cuda", "cpu"]
    expected = traced(rows.small("llama"), sequence=24, device="cuda", answering=False, keep=False)
    assert found[()]["traced"]["saved_bytes"] == expected.saved_bytes
    assert main(["plan", file, "--modules", "transformers"]) == 0
    assert "by CUDA's rules" in " ".join(capsys.readouterr().out.split())


def test_ranks_that_share_are_counted_by_a_cpus_rules_on_every_build(monkeypatch):
    monkeypatch.setattr(cuda, "lacking", lambda: None)
    assert rules_of("cuda", Layout(dp=2)) == rules_of("cuda", Layout(zero1=2)) == ("cuda", ())
    for layout in (Layout(zero2=2), Layout(fsdp=2)):
        device, (note,) = rules_of("cuda", layout)
        assert device == "cpu" and note.endswith(f"what ranks of {layout} share cannot be counted without a GPU")
        with pytest.raises(ValueError, match=f"{layout} is counted by a CPU's rules"):
            traced(rows.small("llama"), device="cuda", layout=layout, keep=False)


@needs_cuda
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_later_round_has_the_gradients_of_the_first_beside_it(device):
    once, often = (
        traced(rows.small("llama"), device=device, accumulating=a, answering=False, keep=False, **SIZE)
        for a in (False, True)
    )
    assert once.saved_bytes == often.saved_bytes
    # A new gradient is added to the old one as soon as it is there.
    assert once.passes_peak_bytes < often.passes_peak_bytes <= once.passes_peak_bytes + once.gradient_bytes
