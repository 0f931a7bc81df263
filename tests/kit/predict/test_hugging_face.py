"""from_hf: what a config.json says, and what it refuses by name. What it counts is compared in test_hugging_face_counts.py."""

import json
import os

import pytest

from cs336kit import predict
from cs336kit.command import main
from cs336kit.predict.families import FAMILIES
from cs336kit.predict.hugging_face import read_hf

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


def test_a_file_may_begin_with_the_mark_of_its_encoding(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert predict.from_hf(path) == predict.from_hf(LLAMA)


def test_what_is_left_out_of_a_file_has_transformers_defaults():
    assert predict.from_hf({"model_type": "gpt2"}) == predict.MODELS["gpt2"].__class__(
        layers=12, d_model=768, heads=12, vocab=50257, context=1024, mlp="gelu_new"
    )
    assert predict.parameters(predict.from_hf({"model_type": "gpt2"})).total == 124_439_808


def test_sizes_that_are_not_given_are_noted_with_the_defaults_that_they_have():
    config = predict.from_hf({name: value for name, value in LLAMA.items() if name != "num_hidden_layers"})
    assert config.layers == 32 and config.notes == (
        "sizes that are not given have transformers' defaults: num_hidden_layers=32",
    )
    # By the family's own name of a size, and not where the model was abridged on purpose.
    (note,) = predict.from_hf({"model_type": "gpt2", "hidden_size": 768, "n_head": 12}).notes
    assert note.endswith(": n_layer=12, vocab_size=50257, n_positions=1024")
    assert predict.MODELS["mistral-7b"].notes == predict.from_hf(LLAMA).notes == ()


def test_a_new_family_without_its_fields_says_what_writes_them(monkeypatch):
    monkeypatch.setitem(FAMILIES, "brand_new", FAMILIES["llama"])
    with pytest.raises(ValueError, match="hf_fields.json has no brand_new, .*: run python -m benchmarks.hf_fields"):
        predict.from_hf({**LLAMA, "model_type": "brand_new"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not known. Did you mean llama"),
        ({"model_type": "mamba"}, "a mamba cannot be counted: no support for state-space layers"),
        ({"hyper_connections": 4}, "hyper_connections=4 of this llama is not understood and could change the answer"),
        ({"hidden_act": "mish"}, "hidden_act='mish' of this llama cannot be counted"),
        ({"hidden_size": "wide"}, "hidden_size='wide' of this llama cannot be counted: give a whole number"),
        ({"hidden_size": 4096.0}, "hidden_size=4096.0 of this llama cannot be counted: give a whole number"),
        ({"hidden_size": -1}, r"hidden_size must be a positive whole number \(int\), got -1"),
        ({"vocab_size": 10**10}, r"vocab_size must be at most 10\*\*9, got 10000000000"),
        ({"hidden_size": None}, "hidden_size=None of this llama cannot be counted: give a positive whole number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false' of this llama cannot be counted: give true or"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.from_hf({**LLAMA, **change})


@pytest.mark.parametrize("given", [3, None, "no/such/config.json", "{broken", "[]", {}, {"model_type": 3}])
def test_what_is_no_config_is_refused(given):
    with pytest.raises(ValueError):
        predict.from_hf(given)


def test_the_fields_from_which_a_configuration_follows():
    sizes = {"hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"}
    counts = {"num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    assert read_hf(LLAMA) == (predict.from_hf(LLAMA), sizes | counts)
    # Also under the name that another family has for it.
    assert read_hf({"model_type": "gpt2", "num_hidden_layers": 3, "n_head": 2})[1] == {"num_hidden_layers", "n_head"}


def test_what_is_left_out_knowingly_is_noted():
    config = predict.from_hf({**LLAMA, "attention_dropout": 0.1})
    assert config == predict.from_hf(LLAMA) and config.dropout == 0
    assert config.notes == ("attention_dropout=0.1 is left out: dropout is a choice of the run",)


def test_the_commands_print_what_was_left_out_of_a_file(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "attention_dropout": 0.1}))
    (left_out,) = predict.from_hf(path).notes
    for command in ("plan", "serve"):
        assert main([command, str(path), "--json"]) == 0
        assert left_out in json.loads(capsys.readouterr().out)["notes"]
        assert main([command, str(path)]) == 0
        assert f"note: {left_out}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("is_so", [True, "yes"])
def test_an_encoder_is_refused_where_only_decoders_are_counted(is_so):
    with pytest.raises(
        ValueError, match=r"is_encoder_decoder=.* of this llama cannot be counted: give False: only decoders"
    ):
        predict.from_hf({**LLAMA, "is_encoder_decoder": is_so})
    assert predict.from_hf({**LLAMA, "is_encoder_decoder": False}) == predict.from_hf(LLAMA)


@pytest.mark.parametrize("field", ["hidden_size", "rope_theta"])
def test_a_name_that_is_given_twice_is_refused(field, tmp_path):
    text = json.dumps(LLAMA)[:-1] + f', "{field}": 1}}'
    path = tmp_path / "config.json"
    path.write_text(text)
    for given in (text, path, str(path), tmp_path):
        with pytest.raises(ValueError, match=f"the configuration gives '{field}' twice: leave one of them out"):
            predict.from_hf(given)
    with pytest.raises(ValueError, match="gives 'factor' twice"):
        predict.from_hf('{"model_type": "llama", "rope_scaling": {"factor": 1, "factor": 2}}')


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with a name on this system")
def test_a_pipe_and_a_device_are_refused_at_once(tmp_path, capsys):
    """Reading the pipe would wait for a writer for ever."""
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for given in (pipe, "/dev/zero"):
        with pytest.raises(ValueError, match="cannot be read: it is no file, but a folder, a pipe or a device"):
            predict.from_hf(given)
    for command in ("plan", "serve"):
        assert main([command, str(pipe)]) == 2
        assert "a pipe or a device" in capsys.readouterr().err
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "config.json").write_text(json.dumps(LLAMA))
    os.mkfifo(tmp_path / "sub" / "hf_quant_config.json")
    assert main(["plan", str(tmp_path / "sub")]) == 2
    assert "hf_quant_config.json cannot be read" in capsys.readouterr().err


def test_a_file_is_called_by_its_own_name_and_not_by_a_path_inside(tmp_path, capsys):
    folder = tmp_path / "Llama-FP8"
    folder.mkdir()
    for name in ("config.json", "mine.json"):
        (folder / name).write_text(json.dumps({**LLAMA, "_name_or_path": "/home/somebody/checkpoints"}))
    for given, name in ((folder, "Llama-FP8"), (folder / "config.json", "Llama-FP8"), (folder / "mine.json", "mine")):
        assert main(["serve", str(given), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["model"] == name
        assert str(folder) in predict.from_hf(given).source and "somebody" not in predict.from_hf(given).source


#: What the published file of openai/gpt-oss-20b has beside the defaults of transformers, and says twice.
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4,
    "experts_per_token": 4, "initial_context_length": 4096, "max_position_embeddings": 131072, "swiglu_limit": 7.0,
    "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False},
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
}  # fmt: skip


def test_the_published_file_of_gpt_oss_is_the_known_model():
    assert predict.from_hf(GPT_OSS) == predict.model("gpt-oss-20b")
    without = {name: value for name, value in GPT_OSS.items() if name != "rope_scaling"}
    assert predict.from_hf(without) == predict.model("gpt-oss-20b")
    for change, sentence in (
        ({"experts_per_token": 8}, "experts_per_token=8 of this gpt_oss cannot be counted: give 4, as num_experts_per"),
        ({"initial_context_length": 8192}, "initial_context_length=8192 .* give 4096, as original_max_position_embed"),
    ):
        with pytest.raises(ValueError, match=sentence):
            predict.from_hf({**GPT_OSS, **change})


def test_all_that_is_not_understood_is_named_at_once():
    with pytest.raises(ValueError) as refused:
        predict.from_hf({**LLAMA, "hyper_connections": 4, "loops": 2, "depth_map": [1]})
    assert str(refused.value) == (
        "hyper_connections=4, loops=2 and depth_map=[1] of this llama are not understood and could change the answer: "
        "take them out of the configuration if they do not"
    )


def test_of_many_that_are_not_understood_the_first_are_named():
    strange = [f"knob_{i}=1" for i in range(8)]
    for count, said in (
        (8, f"{', '.join(strange[:7])} and knob_7=1"),
        (2_000, f"{', '.join(strange[:7])} and 1,993 more"),
    ):
        with pytest.raises(ValueError) as refused:
            predict.from_hf({**LLAMA, **{f"knob_{i}": 1 for i in range(count)}})
        assert str(refused.value).startswith(f"{said} of this llama are not understood")


#: What the published files of some models have beside the defaults of transformers, which does not read it.
PUBLISHED = {
    "starcoder2": {"mlp_type": "default", "norm_type": "layer_norm"},
    "smollm3": {"max_window_layers": 28, "use_sliding_window": False, "sliding_window": None},
    "minimax_m2": {
        "attn_type_list": [1] * 62, "use_qk_norm": True, "qk_norm_type": "per_layer", "use_routing_bias": True,
        "use_mtp": True, "num_mtp_modules": 3, "mtp_transformer_layers": 1, "scoring_func": "sigmoid",
        "shared_intermediate_size": 0, "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_beta": 1.0,
        "layernorm_mlp_beta": 1.0, "rotary_dim": 128,
    },
}  # fmt: skip


@pytest.mark.parametrize("model_type", PUBLISHED)
def test_what_published_files_have_and_transformers_does_not_read_may_say_what_is_so(model_type):
    given = {"model_type": model_type, **PUBLISHED[model_type]}
    assert predict.from_hf(given) == predict.from_hf({"model_type": model_type})
    notes = ("the 3 multi-token prediction (MTP) layers are left out",) if "use_mtp" in given else ()
    assert read_hf(given, abridged=True)[0].notes == notes
    assert read_hf({**given, "use_mtp": False}, abridged=True)[0].notes == ()


@pytest.mark.parametrize(
    ("model_type", "change", "sentence"),
    [
        ("starcoder2", {"mlp_type": "gated"}, "mlp_type='gated' of this starcoder2 cannot be counted: give 'default'"),
        ("starcoder2", {"norm_type": "rms_norm"}, "norm_type='rms_norm' .* give 'layer_norm'"),
        ("minimax_m2", {"attn_type_list": [0, 1]}, r"attn_type_list=\[0, 1\] .* give 1, attention to everything, for each"),
        ("minimax_m2", {"attn_type_list": [1]}, "give one entry for each of the 2 layers"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm=False .* give True"),
        ("minimax_m2", {"qk_norm_type": "per_head"}, "qk_norm_type='per_head' .* give 'per_layer'"),
        ("minimax_m2", {"layernorm_mlp_beta": 2.0}, "layernorm_mlp_beta=2.0 .* give 1.0"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size=8 of this minimax_m2 is not understood"),
        ("minimax_m2", {"use_mtp": True, "mtp_transformer_layers": 2}, "mtp_transformer_layers=2 .* give 1"),
        # Lists with another number of entries than there are layers, which transformers refuses too.
        ("gpt_oss", {"layer_types": ["full_attention"]}, "layer_types=.* of this gpt_oss .* one entry for each of the 2 layers"),
        ("qwen3", {"layer_types": ["full_attention"] * 3}, "one entry for each of the 2 layers"),
        ("qwen2_moe", {"layer_types": ["full_attention"] * 3}, "one entry for each of the 2 layers"),
        ("deepseek_v3", {"mlp_layer_types": ["sparse"]}, "mlp_layer_types=.* one entry for each of the 2 layers"),
        ("smollm3", {"no_rope_layers": [1]}, r"no_rope_layers=\[1\] .* one entry for each of the 2 layers"),
        ("llama4_text", {"no_rope_layers": [1]}, "one entry for each of the 2 layers"),
        ("gpt_neo", {"attention_types": [[["local"], 3]]}, "attention_types=.* give kinds for 2 layers, as num_layers says"),
        # What transformers computes from other fields and writes into the files that it saves.
        (
            "gpt_neo",
            {"attention_types": [[["global", "local"], 1]], "attention_layers": ["local"] * 2},
            r"attention_layers=.* give \['global', 'local'\]",
        ),
        ("deepseek_v3", {"qk_head_dim": 128}, "qk_head_dim=128 of this deepseek_v3 cannot be counted: give 192"),
        # Its router takes two, whatever a file says.
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok=3 of this phimoe cannot be counted: give 2"),
        # A window in a layer, and no window.
        *(
            (family, {"sliding_window": 64, "layer_types": ["sliding_attention"] * 2}, "or use_sliding_window=True")
            for family in ("qwen2", "qwen3", "qwen2_moe", "smollm3")
        ),
        ("cohere", {"logit_scale": 0.0}, "logit_scale must be a finite number above 0"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other_are_refused(model_type, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        predict.from_hf({"model_type": model_type, "num_hidden_layers": 2, **change})


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


OBEYED = "\x1b[2J\nit fits"  # clears a terminal, and then says what the command might say


@pytest.mark.parametrize(
    "change",
    [
        {"_name_or_path": OBEYED},
        {"name_or_path": [OBEYED]},
        {OBEYED: 3},
        {"foo_dropout": OBEYED},
        {"model_type": OBEYED, "text_config": LLAMA},
        {"model_type": "some_vlm", "text_config": {**LLAMA, OBEYED: 3}},
        {"model_type": "deepseek_v3", "num_hidden_layers": 4, "num_nextn_predict_layers": OBEYED},
    ],
)
def test_what_others_write_is_never_obeyed_by_a_terminal(change, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**(LLAMA if "model_type" not in change else {}), **change}))
    main(["plan", str(path)])
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\nit fits" not in said.out + said.err
    try:
        config, _ = read_hf(json.loads(path.read_text()))
    except ValueError as error:
        assert "\x1b" not in str(error)
    else:
        assert "\x1b" not in config.source + "".join(config.notes)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"layers": 2, "d_model": 64, "heads": 4, "vocab": 100, "context": 64, "notes": [OBEYED]}),
        '{"\\u001b": 1, "\\u001b": 2}',
    ],
)
def test_nor_what_stands_in_a_configuration_of_the_kit(text, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert main(["plan", str(path)]) == 2
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "\\x1b" in said.err


def test_a_text_model_of_a_type_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match=r"model_type 'some_vlm' is not known"):
        read_hf({"model_type": "some_vlm", "text_config": {"model_type": ["llama"]}})


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
        (
            "mpt",
            {"attn_config": {"prefix_lm": True}},
            r"attn_config\.prefix_lm=True of this mpt cannot be counted: give False",
        ),
        ("mpt", {"no_bias": False}, "no_bias=False of this mpt cannot be counted: give True: transformers builds it"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True of this gemma2 cannot"),
        ("gemma2", {"layer_types": ["linear_attention"] * 26}, "give full_attention, sliding_attention or chunked_att"),
        (
            "gemma2",
            {"layer_types": True},
            "layer_types=True of this gemma2 cannot be counted: give one entry for each of",
        ),
        ("gemma2", {"sliding_window_size": 64}, "sliding_window_size=64 of this gemma2 cannot be counted: give 4096"),
        ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window=True of this qwen2_moe cannot be counted"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq=2 of this deepseek_v3 cannot be counted: give 1"),
        ("deepseek_v3", {"mlp_bias": True}, "mlp_bias=True .* give False: its experts have no biases"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias=True .* give False: its experts have no biases"),
        ("hunyuan_v1_moe", {"num_experts": [4, 8]}, r"num_experts=\[4, 8\] .* give one number for all layers"),
        ("phi3", {"partial_rotary_factor": 2.0}, "rotary_dim=192 is more than head_dim=96"),
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
        ("cwm", {"num_hidden_layers": 5}, {"window": 8192, "window_layers": (False, True, True, True, False)}),
        ("cwm", {"layer_types": ["sliding_attention"] * 2}, {"window": 8192, "window_layers": None}),
        # No layer has experts: what the file says of them does not matter.
        (
            "glm4_moe_lite",
            {"first_k_dense_replace": 2, "moe_intermediate_size": 7, "n_shared_experts": 3},
            {"experts": 0},
        ),
        (
            "qwen3_moe",
            {"mlp_only_layers": [0, 1], "moe_intermediate_size": 7, "num_experts_per_tok": 3},
            {"experts": 0},
        ),
        (
            "qwen2_moe",
            {"decoder_sparse_step": 3, "shared_expert_intermediate_size": 7},
            {"experts": 0, "shared_d_ff": 0},
        ),
        ("gemma", {"hidden_act": "gelu_new"}, {"mlp": "geglu_new"}),
        ("gemma2", {"attn_logit_softcapping": None}, {"attention_softcap": None, "logit_softcap": 30.0}),
        ("gemma2", {"query_pre_attn_scalar": 64}, {"attention_scale": 1 / 8}),
        # As google/gemma-2-9b and google/gemma-2b have them.
        (
            "gemma2",
            {"hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 4096},
            {"mlp": "geglu_tanh", "window": 4096},
        ),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, {"mlp": "geglu_tanh"}),
        ("vaultgemma", {"query_pre_attn_scalar": 64}, {"attention_scale": 1 / 8}),
        ("exaone4", {"sliding_window_pattern": "LG", "sliding_window": 64}, {"window_layers": (True, False)}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 64}, {"window": None}),
        (
            "smollm3",
            {"use_sliding_window": True, "sliding_window": 64, "no_rope_layers": [1, 0, 0]},
            {"window": 64, "window_layers": (False, True), "rope_layers": (True, False)},
        ),
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


T, F = True, False
ATTENTION = ("query", "key", "value", "output")


@pytest.mark.parametrize(
    ("model_type", "change", "read"),
    [
        ("llama", {"attention_bias": T}, {"bias": ATTENTION}),
        ("llama", {"mlp_bias": T}, {"bias": ("gate", "up", "down")}),
        ("llama", {"attention_bias": T, "mlp_bias": T}, {"bias": "all"}),
        ("arcee", {"mlp_bias": T}, {"bias": ("up", "down"), "mlp": "relu2"}),
        ("helium", {"attention_bias": T, "mlp_bias": T}, {"bias": ("query", "key", "value", "gate", "up", "down")}),
        ("seed_oss", {"attention_bias": T, "attention_out_bias": T, "mlp_bias": F}, {"bias": ATTENTION}),
        ("seed_oss", {"attention_bias": T, "attention_out_bias": F, "mlp_bias": F}, {"bias": "qkv"}),
        ("glm", {"attention_bias": T}, {"bias": "qkv", "rotary_dim": 128 // 2}),
        ("glm", {"rope_parameters": {"partial_rotary_factor": 0.25}}, {"rotary_dim": 128 // 4}),
        ("glm", {"partial_rotary_factor": 1.0}, {"rotary_dim": None}),
        (
            "nemotron",
            {"hidden_size": 64, "num_attention_heads": 2, "head_dim": None},
            {"rotary_dim": 32 // 2, "norm_unit_offset": T},
        ),
        ("stablelm", {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}, {"rotary_dim": 32 // 4}),
        ("persimmon", {"hidden_size": 64, "num_attention_heads": 2}, {"rotary_dim": 32 // 2}),
        ("phi", {"hidden_size": 64, "num_attention_heads": 2}, {"rotary_dim": 32 // 2, "head_bias": T}),
        ("gpt_neox", {"hidden_size": 64, "num_attention_heads": 2}, {"rotary_dim": 32 // 4, "parallel": T}),
        ("gpt_neox", {"use_parallel_residual": F, "attention_bias": F}, {"parallel": F, "bias": ("up", "down")}),
        ("gptj", {"rotary_dim": 16}, {"rotary_dim": 16, "norms_per_block": 1, "bias": ("up", "down"), "head_bias": T}),
        ("openai-gpt", {}, {"norm_placement": "residual", "final_norm": F}),
        ("openai-gpt", {"afn": "relu"}, {"mlp": "relu"}),
        ("gpt_bigcode", {"multi_query": F}, {"kv_heads": 12}),
        ("gpt_bigcode", {"multi_query": T}, {"kv_heads": 1}),
        (
            "gpt_neo",
            {"attention_types": [[["global", "local"], 1]]},
            {"window": 256, "window_layers": (F, T), "bias": ("output", "up", "down")},
        ),
        (
            "gpt_neo",
            {"num_layers": 3, "num_hidden_layers": None, "attention_types": [[["local"], 1], [["global", "local"], 1]]},
            {"window_layers": (T, F, T)},
        ),
        ("opt", {"do_layer_norm_before": F}, {"norm_placement": "residual", "final_norm": F, "extra_positions": 2}),
        ("opt", {"_remove_final_layer_norm": T, "enable_bias": F}, {"final_norm": F, "bias": "none", "norm_placement": "pre"}),
        ("opt", {"word_embed_proj_dim": 512}, {"final_norm": T, "bias": "all", "embedding_dim": 512}),
        ("bloom", {"seq_length": 128}, {"context": 128}),
        ("bloom", {}, {"context": 2048, "embedding_norm": T, "positions": "alibi"}),
        ("falcon", {}, {"kv_heads": 1, "norms_per_block": 1, "parallel": F, "positions": "rope", "bias": "none"}),
        ("falcon", {"multi_query": F, "alibi": T, "bias": T}, {"kv_heads": 71, "positions": "alibi", "bias": "all"}),
        ("falcon", {"parallel_attn": F}, {"norms_per_block": 2, "parallel": F}),
        (
            "falcon",
            {"new_decoder_architecture": T, "num_kv_heads": 1, "parallel_attn": F},
            {"norms_per_block": 2, "parallel": T},
        ),
        ("mpt", {"attn_config": {"attn_type": "multihead_attention", "qk_ln": F, "prefix_lm": F}}, {"positions": "alibi"}),
        ("mpt", {"expansion_ratio": 3}, {"d_ff": 3 * 2048, "norm_bias": F, "bias": "none"}),
        ("starcoder2", {"use_bias": F, "sliding_window": 64}, {"bias": "none", "window": 64, "window_layers": None}),
        ("apertus", {}, {"mlp": "xielu", "qk_norm": "head"}),
        ("bitnet", {}, {"inner_norms": T}),
        ("olmo", {}, {"norm": "layernorm", "norm_scale": F}),
        ("jais2", {}, {"norm": "layernorm", "mlp": "relu2"}),
        ("nanochat", {}, {"norm_scale": F, "qk_norm": "plain", "logit_softcap": 15.0}),
        ("gemma", {"hidden_size": 64, "head_dim": 16}, {"embedding_scale": 8.0, "norm_unit_offset": T}),
        ("gemma2", {"num_hidden_layers": 3}, {"window_layers": (T, F, T), "norm_placement": "sandwich"}),
        ("gemma3_text", {"num_hidden_layers": 7}, {"window_layers": (T, T, T, T, T, F, T), "qk_norm": "head"}),
        ("gemma3_text", {"sliding_window_pattern": 2}, {"window_layers": (T, F)}),
        ("cohere", {"logit_scale": 0.5}, {"logit_scale": 0.5, "norms_per_block": 1}),
        ("cohere", {"logit_scale": None}, {"logit_scale": 1.0}),
        ("cohere2", {"num_hidden_layers": 5}, {"window_layers": (T, T, T, F, T), "rope_layers": (T, T, T, F, T)}),
        ("cohere2", {"layer_types": ["full_attention"] * 2}, {"window": None, "rope_layers": (F, F)}),
        ("minimax_m2", {"rotary_dim": 64}, {"rotary_dim": 64, "qk_norm": "width"}),
        ("olmo3", {"num_hidden_layers": 5}, {"window_layers": (T, T, T, F, T), "norm_placement": "post"}),
        ("exaone4", {"num_hidden_layers": 5}, {"window_layers": (T, T, T, F, T), "qk_norm": "head"}),
        # The last layer has no window whatever the letters say, and so a single one has none.
        ("exaone4", {"num_hidden_layers": 1, "sliding_window_pattern": "L"}, {"window": None, "rope_layers": (F,)}),
        # Beside a window that no layer has, all see everything, and go without positions.
        ("exaone4", {"layer_types": ["full_attention"] * 2}, {"window": None, "rope_layers": (F, F)}),
        ("smollm3", {"num_hidden_layers": 5}, {"rope_layers": (T, T, T, F, T), "window": None}),
        ("smollm3", {"no_rope_layers": [0, 1]}, {"rope_layers": (F, T)}),
        ("phi3", {"sliding_window": 64, "partial_rotary_factor": 0.5}, {"window": 64, "rotary_dim": 3072 // 32 // 2}),
        (
            "granite",
            {"embedding_multiplier": 12.0, "residual_multiplier": 0.5, "attention_multiplier": 2.0, "logits_scaling": 8.0},
            {"embedding_scale": 12.0, "residual_scale": 0.5, "attention_scale": 2.0, "logit_scale": 1 / 8},
        ),
        ("granitemoeshared", {"shared_intermediate_size": 100}, {"shared_d_ff": 100, "experts": 8}),
        ("granitemoeshared", {"num_local_experts": 0}, {"shared_d_ff": 0, "experts": 0}),
        ("granitemoe", {}, {"shared_d_ff": 0, "experts": 8}),
        ("gpt_oss", {"num_hidden_layers": 3}, {"window_layers": (T, F, T), "sinks": T, "router_bias": T}),
        ("gpt_oss", {"attention_bias": F}, {"bias": ("gate", "up", "down"), "mlp": "swiglu_clipped"}),
        ("mixtral", {"sliding_window": 64}, {"window": 64, "experts": 8, "experts_per_token": 2}),
        ("phimoe", {"lm_head_bias": T}, {"norm": "layernorm", "head_bias": T}),
        ("olmoe", {}, {"qk_norm": "width", "experts": 64}),
        ("flex_olmo", {}, {"norm_placement": "post"}),
        (
            "qwen2_moe",
            {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
            {"sparse_layers": (F, T, F, F), "dense_d_ff": 5632, "d_ff": 1408, "shared_d_ff": 5632, "shared_gate": T},
        ),
        ("qwen2_moe", {"qkv_bias": F, "shared_expert_intermediate_size": 100}, {"bias": "none", "shared_d_ff": 100}),
        ("qwen2_moe", {"num_hidden_layers": 4, "decoder_sparse_step": 3}, {"sparse_layers": (F, F, T, F)}),
        ("llama4_text", {"num_hidden_layers": 4, "interleave_moe_layer_step": 3}, {"sparse_layers": (F, F, T, F)}),
        ("qwen2_moe", {"mlp_only_layers": [0, 1]}, {"experts": 0, "shared_d_ff": 0, "d_ff": 5632}),
        (
            "llama4_text",
            {"num_hidden_layers": 5, "interleave_moe_layer_step": 2},
            {
                "rope_layers": (T, T, T, F, T), "window_layers": (T, T, T, F, T), "window": 8192, "window_kind": "chunked",
                "sparse_layers": (F, T, F, T, F), "d_ff": 8192, "dense_d_ff": 16384, "shared_d_ff": 8192, "qk_norm": "plain",
            },
        ),
        ("llama4_text", {"moe_layers": [1]}, {"sparse_layers": (F, T)}),
        ("llama4_text", {"moe_layers": []}, {"experts": 0, "d_ff": 16384, "shared_d_ff": 0}),
        (
            "llama4_text",
            {"layer_types": ["chunked_attention", "full_attention"], "attention_chunk_size": None},
            {"window": None, "window_kind": "sliding"},
        ),
        ("llama4_text", {"attention_chunk_size": None, "use_qk_norm": F}, {"window": None, "qk_norm": "none"}),
        (
            "deepseek_v3",
            {"num_hidden_layers": 5, "n_shared_experts": 2},
            {
                "sparse_layers": (F, F, F, T, T), "head_dim": 128 + 64, "value_dim": 128, "rotary_dim": 64,
                "kv_latent": 512, "query_latent": 1536, "d_ff": 2048, "dense_d_ff": 18432, "shared_d_ff": 2 * 2048,
            },
        ),
        ("deepseek_v3", {"first_k_dense_replace": None, "n_shared_experts": None}, {"sparse_layers": None, "shared_d_ff": 0}),
        ("deepseek_v3", {"attention_bias": T, "q_lora_rank": None}, {"bias": ("key", "output"), "query_latent": 0}),
        (
            "glm4_moe",
            {"num_attention_heads": 32, "num_hidden_layers": 3, "use_qk_norm": T},
            {"sparse_layers": (F, T, T), "qk_norm": "head"},
        ),
        ("glm4_moe_lite", {"num_hidden_layers": 3}, {"sparse_layers": (F, T, T)}),
        (
            "dots1",
            {"sliding_window": 64, "max_window_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
            {"window": 64, "window_layers": (T, F)},
        ),
        ("dots1", {"n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1}, {"sparse_layers": (F, T)}),
        (
            "ernie4_5_moe",
            {"num_hidden_layers": 6, "moe_layer_interval": 2},
            {"sparse_layers": (F, T, F, T, F, T), "shared_d_ff": 2 * 1536, "router_bias": T},
        ),
        ("ernie4_5_moe", {"num_hidden_layers": 4, "moe_layer_interval": 3}, {"sparse_layers": (F, F, T, F)}),
        ("ernie4_5_moe", {"num_hidden_layers": 4, "moe_layer_end_index": 2}, {"sparse_layers": (F, T, T, F)}),
        ("ernie4_5_moe", {"num_hidden_layers": 3, "moe_layer_start_index": 2}, {"sparse_layers": (F, F, T)}),
        ("hunyuan_v1_moe", {"num_experts": [4], "moe_topk": [2]}, {"experts": 4, "experts_per_token": 2}),
        ("hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, "intermediate_size": 96}, {"experts": 4, "shared_d_ff": 96}),
    ],
)  # fmt: skip
def test_what_a_family_says_by_fields_of_its_own(model_type, change, read):
    config = predict.from_hf({"model_type": model_type, "num_hidden_layers": 2, **change})
    assert {name: getattr(config, name) for name in read} == read


#: MLP → the model types whose modules have it where nothing is said.
MLPS = {
    "gelu": "falcon gpt_neox mpt",
    "gelu_new": "bloom codegen gpt2 gpt_neo gptj openai-gpt phi",
    "gelu_tanh": "gpt_bigcode starcoder2",
    "geglu_tanh": "gemma gemma2 gemma3_text vaultgemma",
    "relu": "opt",
    "relu2": "arcee jais2 nanochat nemotron persimmon",
    "relu2glu": "bitnet",
    "xielu": "apertus",
    "swiglu_clipped": "gpt_oss",
    "swiglu": "cohere cohere2 cwm deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4 flex_olmo glm glm4 glm4_moe_lite granite "
    "granitemoe granitemoeshared helium hunyuan_v1_dense llama llama4_text minimax_m2 ministral ministral3 mistral mixtral "
    "olmo olmo2 olmo3 olmoe phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 stablelm youtu",
}


def test_the_mlp_of_each_family():
    for mlp, families in MLPS.items():
        for model_type in families.split():
            assert predict.from_hf({"model_type": model_type}).mlp == mlp, model_type


def test_a_gelu_that_is_written_out_in_another_way_is_noted():
    config = predict.from_hf({"model_type": "gpt2", "activation_function": "gelu_fast"})
    assert config.mlp == "gelu_new" and "activation_function=gelu_fast is counted as gelu_new" in config.notes[0]


def test_what_is_not_understood_may_say_nothing():
    for nothing in (None, False, 0, [], {}, ""):
        assert predict.from_hf({**LLAMA, "hyper_connections": nothing}) == predict.from_hf(LLAMA)
    for something in (True, 1, [0], {"a": 0}, "no"):
        with pytest.raises(ValueError, match="hyper_connections=.* is not understood"):
            predict.from_hf({**LLAMA, "hyper_connections": something})


def test_three_near_names_are_offered_and_switches_are_truth_values():
    with pytest.raises(ValueError, match=r"not known\. Did you mean (\w+) or (\w+) or (\w+)\? \d+ are, such as gpt2"):
        predict.from_hf({"model_type": "qwen3_mo"})
    assert predict.from_hf({**LLAMA, "tie_word_embeddings": 1}).tied_head is True


def test_more_layers_than_any_model_has_are_refused_before_their_pattern_is_written_out():
    with pytest.raises(ValueError, match=r"num_hidden_layers must be at most 10\*\*5"):
        predict.from_hf({"model_type": "gemma2", "num_hidden_layers": 10**5 + 1})


def test_kimi_k2_has_no_layer_for_further_tokens():
    """By hand 1,026 billion parameters, as its published files have; a 62nd layer would bring 17 billion more."""
    d, heads, experts = 7168, 64, 384
    attention = d * 1536 + 1536 + 1536 * heads * 192 + d * 576 + 512 + 512 * heads * 256 + heads * 128 * d
    mixture = (experts + 1) * 3 * d * 2048 + d * experts
    by_hand = 2 * 163840 * d + d + 61 * (attention + 2 * d) + 3 * d * 18432 + 60 * mixture
    for name in ("kimi-k2", "moonshotai/Kimi-K2-Thinking"):
        assert predict.parameters(predict.model(name)).total == by_hand
        assert not any("MTP" in note for note in predict.model(name).notes)
    assert round(by_hand / 1e9) == 1026 and any("MTP" in note for note in predict.model("deepseek-v3").notes)


def test_further_tokens_are_left_out_and_noted():
    for model_type in ("deepseek_v3", "glm4_moe"):
        config = predict.from_hf({"model_type": model_type, "num_nextn_predict_layers": 1, "num_attention_heads": 32})
        assert "the multi-token prediction (MTP) layer is left out" in config.notes


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (3, "config is int: give a dictionary, the path of a config.json, or its text"),
        ("no/such/config.json", "no/such/config.json cannot be read: No such file or directory"),
        (
            "Qwen/Qwen3-8B",
            "Qwen/Qwen3-8B cannot be read: No such file or directory; predict.model knows it by this name",
        ),
        ("{broken", "config.json is not JSON: give a config.json of Hugging Face"),
        ({}, "config.json has no model_type: give a config.json of Hugging Face, which says for instance 'llama'"),
    ],
)
def test_the_sentence_about_what_is_no_config(given, sentence):
    with pytest.raises(ValueError) as caught:
        predict.from_hf(given)
    assert str(caught.value) == sentence


def test_of_a_text_that_is_no_path_the_beginning_is_said():
    with pytest.raises(ValueError, match=r"^a{255} cannot be read"):
        predict.from_hf("a" * 1000)


def test_a_file_that_holds_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"config\.json: a configuration is an object of names and values, not list"):
        predict.from_hf(tmp_path)


def test_of_several_modalities_the_text_model_is_read():
    text = {name: value for name, value in LLAMA.items() if name not in ("architectures",)}
    config = predict.from_hf({"model_type": "llava", "tie_word_embeddings": True, "text_config": text})
    assert config.tied_head and config.d_model == 4096
    assert "of this llava, the text model is counted, and what reads images or sound is left out" in config.notes


def test_an_architecture_under_another_name_is_that_architecture():
    """Kimi K2: DeepSeek V3 with more experts and fewer heads, of a trillion parameters, 32 billion of them for a token."""
    file = {
        "first_k_dense_replace": 1, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "n_group": 1,
        "max_position_embeddings": 131072, "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1,
        "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": 1,
        "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "v_head_dim": 128,
        "aux_loss_alpha": 0.001, "seq_aux": True, "norm_topk_prob": True, "moe_layer_freq": 1, "vocab_size": 163840,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "tie_word_embeddings": False,
    }  # fmt: skip
    kimi = predict.from_hf({"model_type": "kimi_k2", **file})
    assert kimi == predict.from_hf({"model_type": "deepseek_v3", **file})
    assert round(predict.parameters(kimi).total / 1e12, 2) == 1.03
    assert round(predict.active_parameters(kimi).total / 1e9) in (32, 33)


def test_the_text_model_inside_may_leave_its_name_out():
    assert predict.from_hf({"model_type": "gemma3", "text_config": {}}) == predict.from_hf(
        {"model_type": "gemma3_text"}
    )
    with pytest.raises(ValueError, match="model_type 'llava' is not known"):
        predict.from_hf({"model_type": "llava", "text_config": {}})


def test_how_text_is_sampled_changes_no_count():
    # transformers 4 has these in the configuration of every model, and 5 in that of none.
    sampled = {"max_length": 20, "num_beams": 1, "top_k": 50, "typical_p": 1.0, "length_penalty": 1.0}
    assert predict.from_hf({**LLAMA, **sampled}) == predict.from_hf(LLAMA)


@pytest.mark.parametrize("name", ["_name_or_path", "name_or_path"])
def test_the_source_is_the_name_that_the_file_says(name):
    named, unnamed = predict.from_hf({**LLAMA, name: "some/model", "attention_dropout": 0.1}), predict.from_hf(LLAMA)
    assert (named.source, unnamed.source) == ("config.json of some/model", "config.json")
    # Where it comes from, and what was left out, is no part of what it is.
    assert named == unnamed and repr(named) == repr(unnamed) and named.notes and not unnamed.notes
