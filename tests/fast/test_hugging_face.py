"""from_hf: what a config.json says, and what it refuses by name. What it counts is compared in tests/torch/predict."""

import json

import pytest

from cs336kit import predict
from cs336kit.cli import main

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "architectures": ["LlamaForCausalLM"], "rope_theta": 500000.0, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "bos_token_id": 128000, "use_cache": True,
}  # fmt: skip


def test_a_published_config_is_the_known_model(tmp_path):
    config = predict.from_hf(LLAMA)
    assert predict.parameters(config).total == 8_030_261_248
    assert predict.kv_cache_bytes(config, batch=1, sequence=8192) == 1_073_741_824
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert predict.from_hf(path) == predict.from_hf(str(path)) == predict.from_hf(tmp_path) == config
    assert predict.from_hf(json.dumps(LLAMA)) == config
    assert predict.from_hf(path).source == str(path)


def test_what_is_left_out_of_a_file_has_transformers_defaults():
    assert predict.from_hf({"model_type": "gpt2"}) == predict.MODELS["gpt2"].__class__(
        layers=12, d_model=768, heads=12, vocab=50257, context=1024, mlp="gelu_new"
    )
    assert predict.parameters(predict.from_hf({"model_type": "gpt2"})).total == 124_439_808


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not known. Did you mean llama"),
        ({"model_type": "mamba"}, "a mamba cannot be counted: it has state-space layers"),
        ({"hyper_connections": 4}, "hyper_connections=4 of this llama is not understood and could change the answer"),
        ({"hidden_act": "mish"}, "hidden_act='mish' of this llama cannot be counted"),
        ({"hidden_size": "wide"}, "wide"),
        ({"hidden_size": None, "head_dim": 7}, "d_model"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.from_hf({**LLAMA, **change})


@pytest.mark.parametrize("given", [3, None, "no/such/config.json", "{broken", "[]", {}, {"model_type": 3}])
def test_what_is_no_config_is_refused(given):
    with pytest.raises(ValueError):
        predict.from_hf(given)


def test_what_is_left_out_knowingly_is_noted():
    config = predict.from_hf({**LLAMA, "attention_dropout": 0.1, "quantization_config": {"quant_method": "fp8"}})
    assert config == predict.from_hf(LLAMA) and config.dropout == 0
    assert [note.split(" is left out")[0] for note in config.notes] == ["attention_dropout=0.1", "quantization_config"]


def test_letters_name_the_layers_with_a_window_and_the_last_layer_never_has_one():
    given = {"model_type": "exaone4", "num_hidden_layers": 6, "sliding_window": 512, "sliding_window_pattern": "LLLG"}
    config = predict.from_hf(given)
    assert config.window == 512 and config.window_layers == (True, True, True, False, True, False)
    kinds = ["full_attention", "sliding_attention"] * 3
    assert predict.from_hf({**given, "layer_types": kinds}).window_layers == (False, True) * 3
    assert predict.from_hf({**given, "sliding_window": None}).window is None


@pytest.mark.parametrize(("grouped", "given", "norms"), [(True, None, 2), (True, 2, 2), (True, 1, 1), (False, None, 1)])
def test_how_many_norms_a_parallel_block_of_falcon_has(grouped, given, norms):
    said = {"model_type": "falcon", "new_decoder_architecture": grouped, "num_ln_in_parallel_attn": given}
    assert predict.from_hf(said).norms_per_block == norms


def test_the_command_reads_a_config_json(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert main(["plan", str(path), "--batch", "1", "--sequence", "8192", "--tokens", "1T"]) == 0
    read = capsys.readouterr().out
    assert main(["plan", "llama-3-8b", "--batch", "1", "--sequence", "8192", "--tokens", "1T"]) == 0
    assert read.splitlines()[3:] == capsys.readouterr().out.splitlines()[3:]
