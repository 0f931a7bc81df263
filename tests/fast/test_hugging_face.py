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


@pytest.mark.parametrize(
    ("model_type", "change", "sentence"),
    [
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention=True of this gpt2 cannot be counted: give False"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "of this bloom cannot be counted: give False"),
        ("mpt", {"attn_config": {"qk_ln": True}}, r"attn_config\.qk_ln=True of this mpt cannot be counted: give False"),
        ("mpt", {"no_bias": False}, "no_bias=False of this mpt cannot be counted: give True: transformers builds it"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True of this gemma2 cannot"),
        ("gemma2", {"layer_types": ["linear_attention"] * 26}, "give full_attention, sliding_attention or chunked_att"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window=True of this qwen2_moe cannot be counted"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq=2 of this deepseek_v3 cannot be counted: give 1"),
        ("deepseek_v3", {"mlp_bias": True}, "mlp_bias=True .* give False: its experts have no biases"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias=True .* give False: its experts have no biases"),
        ("hunyuan_v1_moe", {"num_experts": [4, 8]}, r"num_experts=\[4, 8\] .* give one number for all layers"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, r"moe_topk=\[1, 2\] .* give one number for all layers"),
    ],
)
def test_a_switch_that_no_configuration_can_say_is_refused(model_type, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.from_hf({"model_type": model_type, **change})


@pytest.mark.parametrize(
    ("model_type", "change", "read"),
    [
        ("qwen2", {"sliding_window": 64, "max_window_layers": 1}, {"window": None}),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            {"window": 64, "window_layers": (False, True)},
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
            {"window": 64, "window_layers": (True, False)},
        ),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 64}, {"window": 64, "window_layers": None}),
        ("qwen2_moe", {"num_experts": 0}, {"experts": 0, "shared_d_ff": 0, "d_ff": 5632}),
        ("gpt_neox", {"rotary_pct": 0.5}, {"rotary_dim": 6144 // 64 // 2}),
        ("opt", {"layer_norm_elementwise_affine": False}, {"norm_scale": False, "norm_bias": False}),
        ("phi", {"qk_layernorm": True}, {"qk_norm": "head", "qk_norm_bias": True, "norms_per_block": 1}),
        ("persimmon", {"qk_layernorm": False}, {"qk_norm": "none", "qk_norm_bias": False}),
        ("stablelm", {"use_parallel_residual": True}, {"norms_per_block": 1, "qk_norm": "none"}),
        ("stablelm", {"qk_layernorm": True}, {"norms_per_block": 2, "qk_norm": "heads"}),
        ("cohere", {"use_qk_norm": True}, {"qk_norm": "heads", "norm_bias": False}),
        ("cohere2", {"sliding_window_pattern": 2}, {"window": 4096, "rope_layers": (True, False)}),
        ("gemma2", {"attn_logit_softcapping": None}, {"attention_softcap": None, "logit_softcap": 30.0}),
        ("gemma2", {"query_pre_attn_scalar": 64}, {"attention_scale": 1 / 8}),
        ("vaultgemma", {"query_pre_attn_scalar": 64}, {"attention_scale": 1 / 8}),
        ("exaone4", {"sliding_window_pattern": "LG", "sliding_window": 64}, {"window_layers": (True, False)}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 64}, {"window": 64}),
        ("dots1", {"sliding_window": 64, "max_window_layers": 1}, {"window": 64, "window_layers": (False, True)}),
        (
            "deepseek_v3",
            {"mlp_layer_types": ["dense", "sparse"]},
            {"sparse_layers": (False, True), "shared_d_ff": 2048},
        ),
        ("hunyuan_v1_moe", {"num_experts": [4, 4], "moe_topk": [2, 2]}, {"experts": 4, "experts_per_token": 2}),
        ("granitemoe", {"num_local_experts": 0}, {"experts": 0, "shared_d_ff": 0}),
        (
            "llama4_text",
            {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": 64},
            {"window": 64, "window_kind": "chunked", "window_layers": (True, False)},
        ),
    ],
)
def test_switches_are_read_as_their_family_means_them(model_type, change, read):
    config = predict.from_hf({"model_type": model_type, "num_hidden_layers": 2, **change})
    assert {name: getattr(config, name) for name in read} == read


def test_further_tokens_are_left_out_and_noted():
    for model_type in ("deepseek_v3", "glm4_moe"):
        config = predict.from_hf({"model_type": model_type, "num_nextn_predict_layers": 1, "num_attention_heads": 32})
        assert "1 layer(s) that predict further tokens (num_nextn_predict_layers) are left out" in config.notes


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (3, "config is int: give a dictionary, the path of a config.json, or its text"),
        ("no/such/config.json", "no/such/config.json cannot be read: No such file or directory"),
        ("{broken", "config.json is not JSON: give a config.json of Hugging Face"),
        ({}, "config.json has no model_type: give a config.json of Hugging Face, which says for instance 'llama'"),
    ],
)
def test_the_sentence_about_what_is_no_config(given, sentence):
    with pytest.raises(ValueError) as caught:
        predict.from_hf(given)
    assert str(caught.value) == sentence


def test_a_file_that_holds_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json holds list: give an object of names and values"):
        predict.from_hf(tmp_path)


def test_of_several_modalities_the_text_model_is_read():
    text = {name: value for name, value in LLAMA.items() if name not in ("architectures",)}
    config = predict.from_hf({"model_type": "llava", "tie_word_embeddings": True, "text_config": text})
    assert config.tied_head and config.d_model == 4096
    assert "of this llava, the text model is counted, and what reads images or sound is left out" in config.notes
