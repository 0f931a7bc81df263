"""`plan` and `serve` for files that the rules do not read: counted by tracing, and printed."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import traced as rows
from benchmarks import traced_files
from cs336kit import measure, predict
from cs336kit.command import main
from cs336kit.predict.families.fields import NotRead
from cs336kit.predict.optimizers import optimizer_state_bytes
from cs336plan.trace import build as modules
from cs336plan.trace import store, traced
from cs336plan.traced_answers import counted
from tests.plan.trace.chosen import few_first

pytestmark = pytest.mark.torch

#: State spaces, linear attention, convolutions, mixtures, latent attention with an indexer, a file with more than text.
KINDS = ("jamba", "qwen3_next", "lfm2_moe", "nemotron_h", "deepseek_v32", "gemma4")


def values_of(kind):
    if kind != "gemma4":
        return rows.small(kind)
    vision = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1, "model_type": "gemma4_vision"}
    return {"model_type": kind, "text_config": rows.small("gemma4_text"), "vision_config": vision}


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "kept"))


@pytest.fixture
def file(tmp_path):
    def write(values):
        (tmp_path / "mine").mkdir(exist_ok=True)
        (tmp_path / "mine" / "config.json").write_text(json.dumps(values))
        return str(tmp_path / "mine")

    return write


def answered(capsys, *words, code=0):
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kind", few_first(KINDS))
def test_a_file_that_no_rules_read_is_planned_and_served(kind, file, capsys):
    values = values_of(kind)
    with pytest.raises(NotRead):
        predict.from_hf(values)
    plan = answered(capsys, "plan", file(values), "--sequence", "24", "--tokens", "1B", "--count", "4", "--mfu", "0.5")
    real = traced(values, sequence=24, device=plan["device"], keep=False)
    by = plan["traced"]
    assert by["by"].startswith("transformers ") and torch.__version__ in by["by"]
    assert (plan["parameters"], plan["active_parameters"]) == (real.parameters.total, real.active_parameters)
    assert (by["training_flops"], by["saved_bytes"]) == (real.training_flops, real.saved_bytes)
    assert by["components"] == dict(real.parameters.items())
    rate = 4 * 0.5 * plan["peak_flops_per_second"] * 86400
    assert plan["days"] == pytest.approx(real.training_flops / 24 * 1e9 / rate)
    assert plan["fits"] is True and plan["layout"] == "dp=4" and plan["model"] == "mine"
    serve = answered(capsys, "serve", file(values), "--prompt", "24", "--output", "8")
    assert serve["cache_bytes"] == real.cache_bytes(32) and serve["traced"]["state_bytes"] == real.state_bytes
    assert (serve["traced"]["prefill_flops"], serve["traced"]["decode_flops"]) == (
        real.prefill_flops,
        real.decode_flops,
    )
    assert serve["weight_bytes"] == {"weights": real.parameter_bytes}
    for command in ("plan", "serve"):
        assert main([command, file(values)]) == 0
        out = capsys.readouterr().out
        assert f"mine: {real.parameters.total:,} parameters" in out and "counted on transformers" in out
        assert all(len(line) <= 80 for line in out.splitlines())
        assert ("note: the text model is counted, and vision_config left out" in out) is (kind == "gemma4")


def test_the_step_is_that_of_the_rules_where_both_count(file, capsys):
    values = {**rows.small("llama"), "tie_word_embeddings": True}
    words = ("plan", file(values), "--sequence", "8", "--precision", "mixed")
    ruled = answered(capsys, *words)
    found = answered(capsys, *words, "--modules", "transformers")
    assert ruled["traced"] is None and ruled["parameters"] == found["parameters"]
    assert ruled["peak_moment"] == "optimizer step" and found["peak_moment"] == "the optimizer's step"
    # The rules also have the loss, a number in fp32, which whoever trains still holds.
    for bucket, size in found["memory_bytes"].items():
        assert ruled["memory_bytes"][bucket] - 4 * (bucket == "temporary tensors") == size, bucket


def test_zero1_divides_the_states_by_rows(file, capsys):
    values = rows.small("jamba")
    found = answered(capsys, "plan", file(values), "--layout", "zero1=3", "--precision", "fp32")
    shapes = [shape for shape, _ in traced(values, sequence=64, precision="fp32", answering=False).trained]
    state = optimizer_state_bytes(
        "adamw", shapes=[(-(-shape[0] // 3), *shape[1:]) for shape in shapes if len(shape) < 3]
    )
    experts = [min((-(-e // 3), r, c), (e, -(-r // 3), c), key=lambda s: s[0] * s[1] * s[2]) for e, r, c in
               (shape for shape in shapes if len(shape) == 3)]  # fmt: skip
    more = optimizer_state_bytes("adamw", shapes=experts).total
    assert found["memory_bytes"]["optimizer state"] == state.total + more
    assert found["count"] == 3 and found["memory_bytes"]["parameters"] == 4 * found["parameters"]


def test_ranks_that_share_gradients_and_parameters(file, capsys):
    values = rows.small("llama")
    words = ("plan", file(values), "--modules", "transformers", "--sequence", "8", "--precision", "fp32", "--layout")
    found = {text: answered(capsys, *words, text) for text in ("zero2=8", "fsdp=8", "fsdp=8,dp=2")}
    held = {text: answer["memory_bytes"] for text, answer in found.items()}
    # Every size divides by eight: a rank has an eighth of each state that is shared, and AdamW's counters of 21 parameters.
    whole = 4 * found["fsdp=8"]["parameters"]
    assert [each["parameters"] for each in held.values()] == [whole, whole // 8, whole // 8]
    assert {each["optimizer state"] for each in held.values()} == {2 * whole // 8 + 4 * 21}
    assert held["fsdp=8,dp=2"] == held["fsdp=8"]
    assert [answer["count"] for answer in found.values()] == [8, 8, 16]
    assert [answer["sharded"] for answer in found.values()] == [False, True, True]
    notes = {text: " ".join(answer["notes"]) for text, answer in found.items()}
    assert "torch's fully_shard" in notes["fsdp=8"] and "whole gradients of a layer" in notes["zero2=8"]
    assert "fully_shard" not in notes["zero2=8"]


def test_gradients_that_accumulate_are_there_in_later_rounds(file, capsys):
    values = rows.small("llama")
    words = (
        "plan",
        file(values),
        "--modules",
        "transformers",
        "--sequence",
        "24",
        "--optimizer",
        "sgd",
        "--tokens",
        "1B",
    )
    once, thrice = answered(capsys, *words), answered(capsys, *words, "--accumulate", "3")
    assert (once["accumulate"], thrice["accumulate"]) == (1, 3) and thrice["days"] == once["days"]
    assert thrice["traced"]["step_flops"] == 3 * once["traced"]["step_flops"]
    config = modules.configuration(modules.read(values).values)
    model, _ = modules.model_of(config, precision="bf16", attention="sdpa")
    tokens = torch.zeros(1, 24, dtype=torch.long)
    real = measure.peak_bytes(
        lambda: [model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward() for _ in range(2)]
    )
    assert thrice["memory_bytes"]["gradients, activations"] == real > once["memory_bytes"]["gradients, activations"]
    other = answered(capsys, *words, "--layout", "dp=2,microbatches=3")
    assert other["memory_bytes"] == thrice["memory_bytes"] and other["count"] == 2


def test_checkpointing_is_no_part_of_an_mfu(file, capsys):
    words = ("plan", file(rows.small("jamba")), "--sequence", "24")
    usual, again = answered(capsys, *words), answered(capsys, *words, "--checkpointing")
    assert again["traced"]["training_flops"] > usual["traced"]["training_flops"] == again["traced"]["step_flops"]
    assert again["traced"]["saved_bytes"] < usual["traced"]["saved_bytes"]


def test_adapters_of_a_traced_file(file, capsys):
    path = file(rows.small("jamba"))
    found = answered(capsys, "plan", path, "--lora", "2", "--targets", "q_proj")
    held = found["memory_bytes"]
    assert found["trainable_parameters"] == found["traced"]["components"]["adapters"]
    assert "master weights" not in held  # adapters are in fp32 already
    assert held["optimizer state"] == 8 * found["trainable_parameters"] + 4 * 2
    # A module in bf16 has them in fp32, too, and the optimizer's two states have the type of their parameter.
    half = answered(capsys, "plan", path, "--lora", "2", "--targets", "q_proj", "--precision", "bf16")["memory_bytes"]
    assert half["optimizer state"] == held["optimizer state"]
    every = answered(capsys, "plan", path, "--lora", "2", "--targets", "all")
    assert every["trainable_parameters"] > found["trainable_parameters"]


def test_weights_of_fewer_bits(file, capsys):
    path = file(rows.small("llama"))
    words = ("serve", path, "--modules", "transformers", "--weights")
    wide, packed = (answered(capsys, *words, name) for name in ("bf16", "fp8"))
    parts = wide["traced"]["components"]
    assert packed["weight_bytes"] == {
        "matrices in fp8": parts["attention"] + parts["mlp"], "all else": 2 * (parts["embeddings"] + parts["norms"]),
    }  # fmt: skip
    assert any("those that a published file leaves as they are" in note for note in packed["notes"])


def test_a_token_is_bound_by_what_is_read(file, capsys):
    values = {**rows.small("llama"), "tie_word_embeddings": False}
    found = answered(capsys, "serve", file(values), "--modules", "transformers", "--efficiency", "50%", "--batch", "3")
    table = values["vocab_size"] * values["hidden_size"]
    read = 2 * (found["parameters"] - table) + 3 * found["cache_bytes"]
    (row,) = [row for row in found["tokens"] if row["batch"] == 3]
    assert (
        row["least"] == pytest.approx(read / (0.5 * found["bandwidth_bytes_per_second"])) and row["bound"] == "memory"
    )


@pytest.mark.parametrize("line, sentence", [
    ("plan FILE --find --days 3", "--days and --find cannot be counted by tracing, which this file needs: leave them out"),
    ("plan FILE --layout fsdp=4,tp=2", "tracing counts replicas (dp) and what they share of a whole model (zero1, zero2, fsdp)"),
    ("plan FILE --layout fsdp=4,microbatches=2 --accumulate 3", "set the same number: leave one out"),
    ("plan FILE --precision mixed-fp32-gradients", "in mixed-fp32-gradients cannot be counted by tracing: give bf16, mixed"),
    ("plan FILE --optimizer muon", "muon takes some of the matrices only"),
    ("plan FILE --attention flash_attention", "attention in flash_attention cannot be counted by tracing: give sdpa, eager"),
    ("serve FILE --count 2", "--count cannot be counted by tracing"),
    ("serve FILE --cache fp8", "in bf16, and not in fp8: leave --cache out"),
    ("serve FILE --weights nvfp4", "weights in nvfp4 cannot be counted by tracing: give bf16"),
    ("plan llama-3-8b --modules transformers", "--modules counts the model of a file, and llama-3-8b is none"),
    ("serve 70B --modules transformers", "--modules counts the model of a file, and 70B is none"),
])  # fmt: skip
def test_what_tracing_does_not_count_is_refused_by_name(line, sentence, file, capsys):
    path = file(rows.small("jamba"))
    assert main([path if word == "FILE" else word for word in line.split()]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_files_that_cannot_be_counted_say_why(file, capsys):
    own = {"model_type": "brand_new", "auto_map": {"AutoModel": "own.Own"}}
    for values, sentence in (
        (own, "code of its own (auto_map), which is never executed"),
        ({"model_type": "lama"}, "Nor do the rules read it: model_type 'lama' is not known. Did you mean llama"),
        # A misspelled size would be passed over by transformers, and its default counted.
        ({**rows.small("llama"), "hiden_size": 7}, "hiden_size=7 of this llama is not understood"),
        (
            {**rows.small("llama"), "hidden_size": "7"},
            "hidden_size='7' of this llama cannot be counted: give a whole number",
        ),
    ):
        assert main(["plan", file(values)]) == 2
        assert sentence in capsys.readouterr().err


def test_a_field_that_only_transformers_knows_is_counted_and_others_are_noted(file, capsys):
    found = answered(capsys, "plan", file({**rows.small("jamba"), "of_nobody": 3}))
    assert "transformers' configuration has no field of_nobody: not counted" in found["notes"]


def test_an_upper_bound_that_does_not_fit_only_may(file, capsys, monkeypatch):
    small = traced(rows.small("jamba"), answering=False, keep=False)
    upper = replace(small, upper_bound=True, passes_peak_bytes=2 * 10**11)
    monkeypatch.setattr("cs336plan.trace.traced", lambda values, **options: upper)
    path = file(rows.small("jamba"))
    assert main(["plan", path, "--check"]) == 1
    out = capsys.readouterr().out
    assert "it may fit: this upper bound is" in out and "does not fit" not in out and "at most" in out
    assert answered(capsys, "plan", path)["fits"] is None
    # What is certain does not fit, whatever kernels save.
    assert answered(capsys, "plan", path, "--memory", "2MB", "--allowance", "1MB", "--peak", "1T")["fits"] is False
    monkeypatch.setattr("cs336plan.trace.traced", lambda values, **options: replace(upper, upper_bound=False))
    assert answered(capsys, "plan", path)["fits"] is False


def test_a_result_is_kept_and_said_to_be(file, capsys):
    path = file(rows.small("jamba"))
    assert not answered(capsys, "plan", path)["traced"]["kept"]
    assert answered(capsys, "plan", path)["traced"]["kept"]
    assert main(["plan", path]) == 0
    assert "counted before, and kept" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_the_packages_one_sentence_says_what_to_install(package, file, capsys, monkeypatch):
    monkeypatch.setattr(counted, "find_spec", lambda name: None if name == package else object())
    assert main(["plan", file(rows.small("jamba"))]) == 2
    error = capsys.readouterr().err
    assert "This file needs transformers" in error and 'to be counted: pip install "cs336kit[plan]"' in error
    assert main(["plan", file(rows.small("llama"))]) == 0  # the rules need neither


def test_an_interrupt_ends_it_with_a_word_and_leaves_nothing(file, capsys, monkeypatch, tmp_path):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(modules, "model_of", interrupted)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["serve", file(rows.small("jamba"))]) == 130
    error = capsys.readouterr().err
    assert "mine: building the module (0 %)" in error and error.endswith("\r\x1b[KStopped.\n")
    assert not (tmp_path / "kept").exists()


#: What makers say is rounded; of GLM-4.5-Air, it has a layer that transformers leaves out.
ROUNDED = 0.03


@pytest.mark.parametrize("name", few_first(name for name, (_, published, _) in traced_files.FILES.items() if published))
def test_files_at_full_size_have_their_published_parameters(name):
    _, published, fields = traced_files.FILES[name]
    read = modules.read({"model_type": name, **fields})
    with modules.fake():
        model, _ = modules.model_of(modules.configuration(read.values), precision="bf16", attention="sdpa")
        count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e9 == pytest.approx(published, rel=ROUNDED)


@pytest.mark.proof
def test_twenty_kinds_of_files_are_answered_at_full_size_and_one_of_them_here(capsys, monkeypatch):
    assert len(traced_files.FILES) >= 20
    monkeypatch.setenv(store.VARIABLE, "")
    found = traced_files.answered("lfm2")
    assert found["plan"]["parameters"] == found["serve"]["parameters"] == 1_170_340_608
    # Six layers of attention with 8 heads of keys and of values, 64 wide.
    assert found["serve"]["cache_bytes_per_token"] == 6 * 2 * 8 * 64 * 2 and found["gigabytes"] < 4
