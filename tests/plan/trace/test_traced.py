"""`traced` as the planner calls it: files, refusals in a sentence, results kept on disk, interrupts."""

import builtins
import inspect
import json
import sys
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import transformers
import transformers.masking_utils as masks
from few import one_in
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks import traced as rows
from cs336kit import measure
from cs336plan.trace import CacheLayer, build, counting, store, traced
from cs336plan.trace.lora import adapt
from cs336plan.trace.result import Traced

pytestmark = pytest.mark.torch

TINY = rows.small("llama")
QUICK = {"sequence": 16, "answering": False}


@cache
def tiny():
    """What is counted of it; it does not change, so the tests share it."""
    return traced(TINY, keep=False, **QUICK)


@pytest.mark.parametrize("values, sentence", [
    ({"hidden_size": 3}, "no config.json of a model: it has no model_type"),
    ({"model_type": "nobodys", "auto_map": {"AutoConfig": "own.py"}}, r"code of its own \(auto_map\), which is never executed"),
    ({"model_type": "nobodys"}, "does not know the architecture 'nobodys'"),
    ({"model_type": "vit"}, "no causal language model for 'vit'"),
    ({**TINY, "num_attention_heads": 3, "hidden_size": 64, "head_dim": None}, "refuses this file: "),
    ({**TINY, "num_hidden_layers": 100_000}, "100,000 layers are more than any model has"),
    ({**TINY, "hidden_size": 2**40, "intermediate_size": 2**40}, "sizes exceed what memory can address"),
    ({"model_type": "biogpt", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4}, "biogpt reads values"),
])  # fmt: skip
def test_what_cannot_be_counted_is_said_in_a_sentence(values, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        traced(values, keep=False, **QUICK)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_a_file_that_names_code_of_its_own_is_counted_by_that_of_transformers():
    own = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
    assert traced({**TINY, **own}, keep=False, **QUICK) == tiny()


def test_files_and_folders(tmp_path):
    with pytest.raises(ValueError, match=r"missing\.json cannot be read: No such file"):
        traced(tmp_path / "missing.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        traced(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "quantization_config": {"quant_method": "fp8"}}))
    found = traced(tmp_path, keep=False, **QUICK)
    assert found.notes == ("the file's quantization is left aside: weights are counted in the precision asked for",)
    assert found.parameters == tiny().parameters


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_named(package, monkeypatch):
    real = builtins.__import__

    def lacking(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=package)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(ValueError, match=f"torch and transformers are needed, and {package} is missing: pip install"):
        traced(TINY, keep=False)


def test_of_a_file_with_more_than_text_the_text_model_is_counted():
    text = rows.small("gemma3_text")
    whole = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"hidden_size": 48, "num_attention_heads": 4},
    }
    found = traced(whole, keep=False, **QUICK)
    assert found.left_out == ("vision_config",) and found.architecture == "gemma3_text"
    assert found.parameters == traced(text, keep=False, **QUICK).parameters


@pytest.mark.parametrize("tied", one_in(2, [False, True]))
def test_a_text_model_that_has_no_head_of_its_own_gets_that_of_the_whole(tied):
    text = {name: value for name, value in TINY.items() if name != "model_type"} | {"model_type": "qwen3_vl_text"}
    vision = {"hidden_size": 32, "num_heads": 2, "depth": 1, "intermediate_size": 32, "out_hidden_size": 64}
    whole = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision, "tie_word_embeddings": tied}
    found = traced(whole, keep=False, sequence=16)
    assert found.left_out == ("vision_config",) and found.architecture == "qwen3_vl_text"
    with torch.device("meta"):
        config = CONFIG_MAPPING["qwen3_vl"](**{name: value for name, value in whole.items() if name != "model_type"})
        model = transformers.AutoModelForImageTextToText.from_config(config)
    parts = dict(model.named_parameters())
    assert found.parameters.total == sum(p.numel() for name, p in parts.items() if ".visual." not in name)
    assert ("lm_head.weight" in parts) is not tied
    # The same layers as Qwen3's, one token of which has keys and values of two heads.
    qwen = traced({**TINY, "model_type": "qwen3", "tie_word_embeddings": tied}, keep=False, sequence=16)
    assert (found.parameters, found.forward_flops, found.cache) == (qwen.parameters, qwen.forward_flops, qwen.cache)


def test_a_result_is_kept_by_configuration_and_options(tmp_path, monkeypatch):
    first = traced(TINY, keep=tmp_path, **QUICK)
    (file,) = tmp_path.iterdir()
    built = []
    original = build.model_of
    monkeypatch.setattr(build, "model_of", lambda *args, **kwargs: built.append(1) or original(*args, **kwargs))
    assert traced(TINY, keep=tmp_path, **QUICK) == first and not built
    assert traced(TINY, keep=tmp_path, sequence=17, answering=False) != first and len(built) == 1
    file.write_text(file.read_text()[:-9])  # half of a file is none
    assert traced(TINY, keep=tmp_path, **QUICK) == first and len(built) == 2
    assert Traced.from_json(json.loads(file.read_text())) == first


def test_every_option_has_a_result_of_its_own(tmp_path):
    changes = {
        "batch": 2, "sequence": 17, "precision": "fp32", "attention": "eager", "checkpointing": True, "lora_rank": 2,
        "lora_targets": "all-linear", "layout": "zero2=2", "accumulating": True, "kernels": False, "answering": True,
        "whole": True,
    }  # fmt: skip
    if torch.version.cuda is not None:
        changes["device"] = "cuda"
    assert changes.keys() == inspect.signature(traced).parameters.keys() - {"config", "progress", "keep"} - (
        {"device"} - changes.keys()
    )
    traced(TINY, keep=tmp_path, **QUICK)
    for number, (name, value) in enumerate(changes.items(), 2):
        adapters = {"lora_rank": 2} if name == "lora_targets" else {}
        traced(TINY, keep=tmp_path, **QUICK | adapters | {name: value})
        assert len([*tmp_path.iterdir()]) == number, name


def test_where_results_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "there"))
    found = traced(TINY, **QUICK)
    assert [Traced.from_json(json.loads(f.read_text())) for f in (tmp_path / "there").iterdir()] == [found]
    monkeypatch.setenv(store.VARIABLE, "")
    assert store.folder() is None


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    before = masks.is_tracing, masks.find_packed_sequence_indices, torch.nn.functional.scaled_dot_product_attention
    steps = []

    def interrupting(what, share):
        steps.append((what, share))
        if what == "the cache":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        traced(TINY, keep=tmp_path / "kept", progress=interrupting)
    assert [share for _, share in steps] == sorted(share for _, share in steps) and len(steps) >= 3
    assert not (tmp_path / "kept").exists()
    assert before == (
        masks.is_tracing, masks.find_packed_sequence_indices, torch.nn.functional.scaled_dot_product_attention,
    )  # fmt: skip
    assert type(torch.zeros(1)) is torch.Tensor


@pytest.mark.proof
def test_an_architecture_without_fused_attention_is_counted():
    assert traced(
        {"model_type": "rwkv", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50}, keep=False, **QUICK
    )


def test_attention_that_is_not_fused_is_counted_eager():
    found = traced(TINY, keep=False, attention="eager", **QUICK)
    assert found.attention == "eager" and found.saved_bytes > tiny().saved_bytes


def test_results_of_the_same_file_need_no_torch(tmp_path):
    found = traced(TINY, keep=False, sequence=16)
    assert "torch" not in {n for n in vars(sys.modules["cs336plan.trace.result"])}
    assert Traced.from_json(json.loads(json.dumps(found.as_json()))) == found


class Cached(nn.Module):
    """Keeps a number of four bytes for each token, and says that it does so for the last four; `kept` may do otherwise."""

    def __init__(self, kept):
        super().__init__()
        self.kept, self.weight = kept, nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache):
        layer = SimpleNamespace(sliding_window=5, keys=torch.zeros(1, self.kept(input_ids.shape[1])))
        return {"past_key_values": SimpleNamespace(layers=[layer])}


def test_a_cache_that_grows_beyond_its_window_is_not_taken_for_one_that_slides():
    assert counting.cache_layers(Cached(lambda tokens: min(tokens, 4)), "fp32") == [CacheLayer(4, 4, 0)]
    assert counting.cache_layers(Cached(lambda tokens: 3 + min(tokens, 4)), "fp32") == [CacheLayer(4, 4, 12)]
    with pytest.raises(ValueError, match="does not grow evenly: at 6 tokens"):
        counting.cache_layers(Cached(lambda tokens: tokens), "fp32")


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_adapters_are_those_of_peft():
    found = traced(TINY, keep=False, lora_rank=3, lora_targets=["q_proj", "down_proj"], **QUICK)
    D, F, L, heads, h = (
        TINY[n] for n in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    )
    adapters = L * 3 * ((D + heads * h) + (F + D))
    assert found.parameters["adapters"] == found.trainable_parameters == adapters
    assert found.gradient_bytes == 4 * adapters  # in fp32, whatever the model is in
    assert found.optimizer_state_bytes("adamw")["exp_avg"] == 4 * adapters
    every = traced(TINY, keep=False, lora_rank=1, lora_targets="all-linear", **QUICK)
    assert len(every.trained) == 2 * 7 * L
    with pytest.raises(ValueError, match="no linear layer is called .*'q'.*; layers that can have adapters: down_proj"):
        traced(TINY, keep=False, lora_rank=3, lora_targets=["q"], **QUICK)


def test_an_adapted_model_counts_as_it_runs():
    found = traced(TINY, keep=False, lora_rank=3, **QUICK)
    model, _ = build.model_of(build.configuration(TINY), precision="bf16", attention="sdpa")
    adapt(model, 3, ["q_proj", "v_proj"])
    real = counting.passes(model, (), batch=1, sequence=16, precision="bf16")
    assert (found.forward_flops, found.training_flops, found.saved_bytes, found.passes_peak_bytes) == (
        real.forward_flops, real.training_flops, real.saved_bytes, real.peak_bytes,
    )  # fmt: skip
    assert found.saved_bytes < tiny().saved_bytes


def test_an_adapter_adds_its_product():
    layer = nn.Linear(5, 4, dtype=torch.bfloat16)
    model = nn.Sequential(layer)
    adapt(model, 2, ["0"])
    nn.init.ones_(model[0].lora_B.weight)
    x = torch.randn(3, 5).bfloat16()
    expected = layer(x) + (x.float() @ model[0].lora_A.weight.T @ model[0].lora_B.weight.T)
    assert torch.equal(model(x), expected.bfloat16())
    assert measure.saved_activation_bytes(lambda: model(x).sum()).total > 0
