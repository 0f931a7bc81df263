"""How a file says that its weights are stored: bits, scales, and the modules that stay as they are."""

import json
import re

import pytest

from cs336kit import predict
from cs336kit.command import main
from cs336kit.predict import packed_bytes
from cs336kit.predict.families.methods import ALGORITHMS, METHODS
from cs336kit.predict.hugging_face import read_hf
from cs336plan import ServingQuestion, serve

LLAMA = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
#: As files of Kimi-K2 have it, without the layers that predict further tokens.
KIMI = {
    "model_type": "deepseek_v3", "num_nextn_predict_layers": 0, "num_attention_heads": 64, "num_key_value_heads": 64,
    "first_k_dense_replace": 1, "n_routed_experts": 384, "vocab_size": 163840, "max_position_embeddings": 262144,
}  # fmt: skip


def stored(quantization, model=LLAMA):
    return read_hf({**model, "quantization_config": quantization}, abridged=True)[0]


def compressed(*weights, targets=("Linear",), **other):
    groups = {f"group_{i}": {"weights": one, "targets": list(targets)} for i, one in enumerate(weights)}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **other}


def quark(weight, **other):
    return {"quant_method": "quark", "global_quant_config": {"weight": weight}, "exclude": ["lm_head"], **other}


def torchao(name, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_version": 1, "_data": data}}}


#: What a file leaves as it is where no packing means it: norms are vectors, and tables, head and router stay in bf16.
NEVER = ["lm_head", "model.embed_tokens", "gate", "e_score_correction_bias", "model.layers.0.input_layernorm", "visual"]
MX = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        # fp8 with a scale for each matrix, each row, and each block.
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": NEVER}, "fp8-block"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8-channel"),
        (compressed({"type": "float", "num_bits": 8, "strategy": "tensor"}, ignore=["lm_head"]), "fp8"),
        (compressed({"type": "float", "num_bits": 8, "strategy": "channel"}), "fp8-channel"),
        (compressed({"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 128]}), "fp8-block"),
        (compressed({"type": "float", "num_bits": 8, "strategy": "group", "group_size": 128}), "fp8-g128"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8-block"),
        ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}, "quant_method": "modelopt"}, "fp8"),
        (quark({"dtype": "fp8_e4m3", "qscheme": "per_tensor"}), "fp8"),
        (quark({"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0}), "fp8-channel"),
        (torchao("Float8WeightOnlyConfig"), "fp8-channel"),
        (torchao("Float8DynamicActivationFloat8WeightConfig", granularity=[{"_type": "PerRow"}] * 2), "fp8-channel"),
        (torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8"),
        # Blocks of 4 bits.
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, "mxfp4"),
        (quark(MX), "mxfp4"),
        (compressed({"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32}), "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": NEVER}, "nvfp4"),
        ({"quant_method": "modelopt", **{k: v for k, v in compressed(
            {"type": "float", "num_bits": 4, "group_size": 16}).items() if k != "quant_method"}}, "nvfp4"),
        (compressed({"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}), "nvfp4"),
        (quark([{**MX, "group_size": 16}, {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}]), "nvfp4"),
        (torchao("NVFP4WeightOnlyConfig"), "nvfp4"),
        ({"quant_method": "fp_quant", "forward_dtype": "mxfp4"}, "mxfp4"),
        ({"quant_method": "mxfp8"}, "mxfp8"),
        # Integers.
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, "int4"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4-g64-zero"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "int4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, "int4-g32-zero"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "int3-g128-zero"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8"),
        ({"quant_method": "auto-round", "bits": 2, "group_size": 64}, "int2-g64-zero"),
        (compressed({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}), "int4-g32"),
        (compressed({"type": "int", "num_bits": 4, "group_size": 128, "symmetric": False}), "int4"),
        (compressed({"type": "int", "num_bits": 8, "strategy": "channel"}), "int8"),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 128}, "int4-g128"),
        (quark([{"dtype": "fp8_e4m3", "qscheme": "per_tensor"}, {"dtype": "int4", "qscheme": "per_channel"}]), "int4-channel"),
        (quark({"dtype": "uint4", "qscheme": "per_group", "group_size": 128, "symmetric": False}), "int4"),
        (torchao("Int4WeightOnlyConfig", group_size=32), "int4-g32-zero16"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {}}, "int4-g128-zero16"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}, "int4-g64-zero16"),
        ({"quant_method": "eetq", "weights": "int8"}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
          "bnb_4bit_use_double_quant": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4-fp32"),
        # Codebooks.
        ({"quant_method": "aqlm", "in_group_size": 8, "num_codebooks": 1, "nbits_per_codebook": 16,
          "linear_weights_not_to_quantize": ["lm_head.weight"]}, "aqlm-1x16-g8"),
        ({"quant_method": "bitnet", "quantization_mode": "offline"}, "bitnet"),
        ({"quant_method": "bitnet", "quantization_mode": "online"}, ""),
        ({}, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_quantization_config_says_how_weights_are_stored(config, name):
    read = stored(config)
    assert (read.stored, read.stored_apart, read.notes) == (name, (), ()) and read == predict.from_hf(LLAMA)
    assert serve(ServingQuestion(read, count=8)).question.weights == (name or "bf16")
    outer = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "quantization_config": config}
    assert predict.from_hf(outer).stored == name, "that of a model for several modalities is not in its text model"


def test_every_method_and_algorithm_has_a_case():
    cases = next(
        mark.args[1]
        for mark in test_a_quantization_config_says_how_weights_are_stored.pytestmark
        if mark.name == "parametrize"
    )
    said = {config["quant_method"] for config, _ in cases if config}
    assert said | {"nvfp4"} == set(METHODS)
    assert stored({"quant_method": "nvfp4"}).stored == "nvfp4"
    for algorithm, name in ALGORITHMS.items():
        if name is not None:
            assert stored({"quant_method": "modelopt", "quant_algo": algorithm}).stored == name


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("fp8", "quantization_config='fp8' is no object of names and values"),
        ({"bits": 4}, "quant_method=None of quantization_config is none of aqlm, auto-round, awq"),
        ({"quant_method": "sinq"}, "quant_method='sinq' of quantization_config is none of"),
        ({"quant_method": ["fp8"]}, r"quant_method=\['fp8'\] of quantization_config is none of"),
        ({"quant_method": "gptq", "bits": 9}, "bits=9 of quantization_config with group_size=128 is no storage of integers"),
        ({"quant_method": "awq", "bits": "four"}, "bits='four' of quantization_config"),
        ({"quant_method": "awq", "bits": 4, "group_size": {}}, "bits=4 of quantization_config with group_size={}"),
        ({"quant_method": "bitsandbytes"}, "bnb_4bit_quant_type=None of quantization_config is not nf4 or fp4"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "bits=8 of quantization_config with a scale for 4096 weights"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size=128 of quantization_config is no pair"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype='fp4' of quantization_config"),
        ({"quant_method": "compressed-tensors"}, "config_groups=None of quantization_config does not say"),
        (compressed({"type": "int", "num_bits": 4, "strategy": "magic"}), "strategy='magic' of quantization_config"),
        (compressed({"type": "float", "num_bits": 7, "group_size": 3}), "bits=7 .* with a scale for 3 weights is no storage"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo='FP3' of quantization_config is none of FP8, "),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 64}, "group_size=64 .* does not go with .* NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers=None of quantization_config"),
        ({"quant_method": "quark"}, "global_quant_config=None of quantization_config does not say"),
        (quark({"dtype": "posit8"}), "dtype='posit8' of quantization_config is none that is known"),
        (quark({"dtype": "fp4", "qscheme": "odd"}), "qscheme='odd' of quantization_config is none of per_tensor"),
        (torchao("Int1Config"), "quant_type='Int1Config' of quantization_config is none of Int4WeightOnlyConfig"),
        ({"quant_method": "torchao"}, "quant_type=None of quantization_config is none of"),
        ({"quant_method": "aqlm", "out_group_size": 2}, "num_codebooks=1 of quantization_config"),
        ({"quant_method": "hqq"}, "quant_config=None of quantization_config has no weight_quant_params"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "ignored_layers='lm_head' .* is no list of names of modules"),
        ({"quant_method": "fp8", "modules_to_not_convert": [3]}, r"modules_to_not_convert=\[3\] .* is no list of names"),
        (compressed({"type": "float", "num_bits": 8}, ignore=["re:(a"]), r"'re:\(a' of quantization_config is no regular expr"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": [1]}, r"dynamic=\[1\] of quantization_config"),
        ({"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": 3}, "modules_in_block_to_quantize=3 "),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused_by_name_and_never_sized_as_bf16(config, sentence, tmp_path, capsys):
    with pytest.raises(ValueError, match=sentence):
        stored(config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "quantization_config": config}))
    assert main(["serve", str(path)]) == 2
    said = capsys.readouterr()
    assert re.search(sentence, said.err) and said.out == "" and said.err.count("\n") == 1


# -- modules that stay as they are ------------------------------------------------------------------------------------------

FP8 = {"quant_method": "fp8"}
ATTENTION = {"query", "key", "value", "attention output"}
MLP = {"mlp gate", "mlp up", "mlp down"}


def apart(config, model=LLAMA):
    """Component → the share of it that is in bf16."""
    read = stored(config, model)
    assert all(name == "bf16" for _, name, _ in read.stored_apart) and read.notes == ()
    return {component: pytest.approx(share) for component, _, share in read.stored_apart}


@pytest.mark.parametrize(
    ("names", "wide"),
    [
        # By name: of some layers, of all layers, parts of a path, and a whole layer.
        (["model.layers.3.self_attn.q_proj"], {"query": 1 / 80}),
        (["model.layers.3.self_attn.q_proj.weight", "model.layers.4.self_attn"],
         dict.fromkeys(ATTENTION, 1 / 80) | {"query": 2 / 80}),
        (["self_attn"], dict.fromkeys(ATTENTION, 1)),
        (["o_proj", "mlp.down_proj"], {"attention output": 1, "mlp down": 1}),
        (["model.layers.0", "model.layers.79"], dict.fromkeys(ATTENTION | MLP, 2 / 80)),
        # Of layer 1 and not of 10 to 19.
        (["model.layers.1"], dict.fromkeys(ATTENTION | MLP, 1 / 80)),
        # With * and as regular expressions.
        (["model.layers.*.self_attn"], dict.fromkeys(ATTENTION, 1)),
        (["model.layers.7.self_attn*"], dict.fromkeys(ATTENTION, 1 / 80)),
        (["*self_attn*"], dict.fromkeys(ATTENTION, 1)),
        (["*.down_proj"], {"mlp down": 1}),
        (["re:.*self_attn.*"], dict.fromkeys(ATTENTION, 1)),
        ([r"re:.*layers\.(0|1)\.mlp\.(gate|up)_proj$"], {"mlp gate": 2 / 80, "mlp up": 2 / 80}),
        (["language_model.model.layers.2.mlp.up_proj"], {"mlp up": 1 / 80}),
        # None of the decoder's matrices: other towers, and layers behind the last one.
        (["vision_tower.encoder.layers.3.self_attn.q_proj", "model.visual.blocks.0.attn", "model.layers.80.eh_proj"], {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "exclude"])
def test_modules_that_stay_wide_are_counted(names, wide, field):
    assert apart({**FP8, field: [*NEVER, *names]}) == wide
    answer = serve(ServingQuestion(stored({**FP8, field: names}), count=8))
    of = {
        "query": 8192 * 8192,
        "key": 8192 * 1024,
        "value": 8192 * 1024,
        "attention output": 8192 * 8192,
    } | dict.fromkeys(MLP, 8192 * 28672)
    # In fp8 a byte each; what stays as it is has another.
    bytes_ = sum(80 * size * (1 + wide.get(name, 0)) for name, size in of.items()) + 4 * 128256 * 8192 + 2 * 161 * 8192
    # Norms are on every rank, and so is rounding.
    assert 8 * answer.weights.total == pytest.approx(bytes_ + 7 * 2 * 161 * 8192, abs=200)


def test_modules_that_no_component_is_are_named():
    (note,) = stored({**FP8, "modules_to_not_convert": ["lm_head", "model.layers.0.conv", "spam"]}).notes
    assert note == (
        "quantization_config names 'model.layers.0.conv' and 1 more: no module that is counted here is called so"
    )


def test_modules_of_bitsandbytes_and_aqlm_that_stay_wide():
    bnb = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    }
    assert apart({**bnb, "llm_int8_skip_modules": ["lm_head", "model.layers.2.mlp"]}) == dict.fromkeys(MLP, 1 / 80)
    aqlm = {"quant_method": "aqlm", "linear_weights_not_to_quantize": ["model.layers.0.self_attn.q_proj.weight"]}
    assert apart(aqlm) == {"query": 1 / 80}


def test_experts_alone_have_a_name():
    """As the files of openai/gpt-oss-120b and moonshotai/Kimi-K2-Thinking have them."""
    mxfp4 = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}  # fmt: skip
    assert stored(mxfp4, {"model_type": "gpt_oss"}).stored == "mxfp4-experts"
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    int4 = compressed({"type": "int", "num_bits": 4, "group_size": 32}, ignore=ignored)
    kimi = stored(int4, KIMI)
    assert (kimi.stored, kimi.stored_apart, kimi.notes) == ("int4-g32-experts", (), ())


def test_single_experts_that_stay_wide_are_counted():
    names = [f"model.layers.5.mlp.experts.{expert}.down_proj" for expert in range(96)] + [
        "model.layers.6.mlp.experts.0"
    ]
    sparse = 60
    expected = {"mlp down": (96 / 384 + 1 / 384) / sparse, "mlp gate": 1 / 384 / sparse, "mlp up": 1 / 384 / sparse}
    assert apart({**FP8, "ignore": names}, KIMI) == expected
    # The dense first layer and the shared experts are other modules.
    assert apart({**FP8, "ignore": ["model.layers.0.mlp.up_proj"]}, KIMI) == {"dense up": 1}
    assert apart({**FP8, "ignore": ["shared_experts"]}, KIMI) == dict.fromkeys(
        ("shared gate", "shared up", "shared down"), 1
    )


def test_modules_that_are_stored_in_other_types():
    """Mixed precision of modelopt, groups of compressed-tensors, layers of Quark, and what GPTQModel calls dynamic."""
    experts = {f"model.layers.{layer}.mlp.experts.{e}.{m}_proj": {"quant_algo": "NVFP4", "group_size": 16}
               for layer in range(1, 61) for e in range(384) for m in ("gate", "up", "down")}  # fmt: skip
    attention = {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "FP8"} for layer in range(61)}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": experts | attention}
    read = stored(mixed, KIMI)
    types = {component: name for component, name, share in read.stored_apart if share == 1}
    assert (
        read.stored == "nvfp4" and types["attention output"] == "fp8" and types["query"] == types["shared up"] == "bf16"
    )
    assert not {"mlp gate", "mlp up", "mlp down"} & types.keys()
    groups = {"a": {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}, "targets": ["re:.*self_attn.*"]},
              "b": {"weights": {"type": "float", "num_bits": 4, "group_size": 16}, "targets": ["Linear"]}}  # fmt: skip
    read = stored({"quant_method": "compressed-tensors", "config_groups": groups})
    assert read.stored == "nvfp4" and {(c, n) for c, n, _ in read.stored_apart} == {
        (c, "fp8-channel") for c in ATTENTION
    }
    read = stored(
        quark(MX, layer_quant_config={"*self_attn*": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}}})
    )
    assert read.stored == "mxfp4" and {(c, n) for c, n, _ in read.stored_apart} == {(c, "fp8") for c in ATTENTION}
    gptq = {
        "quant_method": "gptq",
        "bits": 4,
        "dynamic": {r"-:.*o_proj": {}, r".*\.down_proj": {"bits": 8, "group_size": 64}},
    }
    assert stored(gptq).stored_apart == (("attention output", "bf16", 1.0), ("mlp down", "int8-g64-zero", 1.0))
    inside = {"quant_method": "gptq", "bits": 4, "modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"]]}
    assert {c for c, name, _ in stored(inside).stored_apart if name == "bf16"} == ATTENTION | {"mlp down"}
    tuned = {"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.0.self_attn.q_proj": {"bits": 16}}}
    assert stored(tuned).stored_apart == (("query", "bf16", 1 / 80),)
    # What a module does not say is as in all others. Source: vLLM, quantization/utils/gptq_utils.py, override_config.
    for own, name in (({"bits": 8}, "int8-g32-zero"), ({"group_size": 64}, "int4-g64-zero")):
        told = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {r".*\.down_proj": own}}
        assert stored(told).stored_apart == (("mlp down", name, 1.0),)
    named = torchao("FqnToConfig")
    named["quant_type"]["default"]["_data"]["module_fqn_to_config"] = {
        "_default": {"_type": "Int4WeightOnlyConfig", "_data": {}}, "model.layers.0.mlp.up_proj": None}  # fmt: skip
    assert stored(named).stored_apart == (("mlp up", "bf16", 1 / 80),)
    assert stored({**FP8, "ignore": ["model.layers.*"]}).stored == ""


# -- sizes ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packing", "rows", "size"),
    [
        # 4 bits, a byte for 16 and 4 bytes; 4 bits and a byte for 32; a byte, and 4 for a row or for 128 × 128.
        ("nvfp4", 256, 2**18 + 2**15 + 4), ("mxfp4", 256, 2**18 + 2**14), ("mxfp8", 256, 2**19 + 2**14),
        ("fp8", 256, 2**19), ("fp8-channel", 256, 2**19 + 4 * 256), ("fp8-block", 256, 2**19 + 4 * 2 * 16),
        ("fp8-g128", 256, 2**19 + 2 * 2**12), ("nf4-fp32", 256, 2**18 + 4 * 2**13), ("int8", 256, 2**19), ("bitnet", 256, 2**17),
        ("int4-g64", 256, 2**18 + 2 * 2**13), ("int4-g64-zero", 256, 2**18 + 2 * 2**13 + 2**12),
        ("int4", 256, 2**18 + 20 * 2**12 // 8),
        ("int4-g64-zero16", 256, 2**18 + 4 * 2**13), ("int3-channel", 256, 3 * 2**16 + 2 * 256),
        # Two codes of a byte for eight weights, two books of 2⁸ · 8 fp16, and an fp16 for each row.
        ("aqlm-2x8-g8", 256, 2 * 2**16 + 2 * 2**8 * 8 * 2 + 2 * 256), ("aqlm-1x16-g8", 256, 2 * 2**16 + 2**16 * 8 * 2 + 2 * 256),
    ],
)  # fmt: skip
def test_bytes_of_a_matrix_of_256_rows_and_2048_columns(packing, rows, size):
    assert packed_bytes(2**19, packing, rows=rows) == size


@pytest.mark.parametrize(
    "name", ["int9-g64", "int4-g0", "int4-zero", "fp8-g128-zero", "aqlm-1x16-g7", "aqlm-1x17-g8", "", 3, None]
)
def test_a_name_that_says_no_sizes_is_refused(name):
    with pytest.raises(ValueError, match="unknown packing"):
        packed_bytes(64, name)


def test_modelopts_file_beside_config_json_is_read(tmp_path, capsys):
    """nvidia/Llama-3.1-70B-Instruct-FP8 on two accelerators: a byte for each weight of the blocks, two for table and head."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({
        "producer": {"name": "modelopt", "version": "0.15.1"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }))  # fmt: skip
    for given in (tmp_path, tmp_path / "config.json", str(tmp_path)):
        assert predict.from_hf(given).stored == "fp8"
    blocks = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    assert main(["serve", str(tmp_path / "config.json"), "--count", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["published_weights"] == "fp8"
    assert sum(answer["weight_bytes"].values()) == pytest.approx((blocks + 4 * 128256 * 8192) / 2, rel=1e-4)
    assert sum(answer["weight_bytes"].values()) / 2**30 == pytest.approx(33.8, abs=0.05)
    # What config.json says itself goes before it, and what says nothing is refused.
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "mxfp4"}}))
    assert predict.from_hf(tmp_path).stored == "mxfp4"
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for content, sentence in (
        ("{", "is not JSON"),
        ("{}", "does not say by a quant_algo"),
        ('{"a": 1, "a": 2}', "gives 'a' twice"),
    ):
        beside.write_text(content)
        assert main(["serve", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert str(beside) in said and sentence in said
    # A configuration of the kit has no such file.
    (tmp_path / "mine.json").write_text(json.dumps({"layers": 2, "d_model": 64, "heads": 8, "vocab": 9, "context": 8}))
    assert main(["plan", str(tmp_path / "mine.json")]) == 0


def test_kimi_k25_in_nvfp4_fits_on_eight_b200(capsys, tmp_path):
    ignore = ["language_model.lm_head", "mm_projector*", "vision_tower*"]
    ignore += [f"language_model.model.layers.{layer}.self_attn*" for layer in range(61)]
    group = {"weights": {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
    quantized = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "config_groups": {"group_0": group},
        "ignore": ignore,
    }
    text = {**KIMI, "model_type": "kimi_k2"}
    file = {
        "model_type": "kimi_k25",
        "vision_config": {"depth": 27},
        "text_config": text,
        "quantization_config": quantized,
    }
    config = read_hf(file, abridged=True)[0]
    assert config == predict.from_hf(KIMI)
    assert config.notes == (
        "of this kimi_k25, the text model is counted, and what reads images or sound is left out (vision_config)",
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(file))
    assert main(["serve", str(path), "--accelerator", "b200-sxm", "--count", "8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    # 384 + 1 experts of three matrices of 7,168 × 2,048 in 60 layers and three of 7,168 × 18,432 in one, at 4.5 bits.
    packed = 4.5 / 8 * 3 * 7168 * (60 * 385 * 2048 + 18432)
    assert 8 * answer["weight_bytes"]["matrices in nvfp4"] == pytest.approx(packed, rel=1e-4)
    assert answer["largest_batch"] > 100 and answer["bits_per_weight"] == 4.5


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("serve llama-3-8b --weights awq", "--weights: 'awq' is called int4 here: write --weights int4"),
        ("serve llama-3-8b --weights GPTQ-Int4", "write --weights int4"),
        ("serve llama-3-8b --weights w8a8", "write --weights int8"),
        ("serve llama-3-8b --weights fp4", "'fp4' is called nvfp4 here: write --weights nvfp4"),
        ("serve llama-3-8b --weights FP8_dynamic", "write --weights fp8-channel"),
        ("serve llama-3-8b --weights fp8_e4m3", "'fp8_e4m3' is called fp8 here"),
        ("serve llama-3-8b --weights Q4_K_M", "'Q4_K_M' is not modelled, and nearest to it is int4-g32 here"),
        ("serve llama-3-8b --weights NVFP4", "write --weights nvfp4"),
        ("serve llama-3-8b --weights bfloat16", "write --weights bf16"),
        ("serve llama-3-8b --weights int4-g0", "invalid choice: 'int4-g0'"),
        ("plan llama-3-8b --optimizer adamw_8bit", "'adamw_8bit' is called adamw8bit here: write --optimizer adamw8bit"),
        ("plan llama-3-8b --optimizer adamw_torch_fused", "write --optimizer adamw"),
        ("plan llama-3-8b --precision bfloat16", "write --precision bf16"),
        ("serve llama-3-8b --cache bfloat16", "write --cache bf16"),
    ],
)  # fmt: skip
def test_what_other_tools_call_a_value_is_answered_with_ours(line, sentence, capsys):
    with pytest.raises(SystemExit):
        main(line.split())
    assert sentence in capsys.readouterr().err


def test_a_packing_by_its_sizes_is_a_type_of_weights(capsys):
    for name, bits in (
        ("int3-g64", 3.25),
        ("int4-g32-zero-experts", 4.625),
        ("nvfp4", 4.5),
        ("fp8-block", 8 + 32 / 2**14),
    ):
        model = "mixtral-8x7b" if name.endswith("-experts") else "llama-3-8b"
        assert main(["serve", model, "--weights", name, "--count", "8", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["bits_per_weight"] == bits


def test_products_in_fp4_and_fp8_run_at_their_peaks():
    """NVFP4 is multiplied in fp4 on Blackwell, and unpacked to bf16 on Hopper, which the answer says."""
    for weights, chip, rate in (
        ("nvfp4", "b200-sxm", 9e15),
        ("fp8-block", "h100-sxm", 1978.9e12),
        ("nvfp4", "h100-sxm", 989.4e12),
    ):
        answer = serve(ServingQuestion("llama-3-8b", weights=weights, accelerator=chip))
        assert answer.as_dict()["peak_flops_per_second"] == rate
        assert any("no sourced fp4 peak: products in bf16" in note for note in answer.notes) == (
            chip[0] == "h" and "nv" in weights
        )


def test_what_is_stored_apart_is_checked():
    sizes = {"layers": 2, "d_model": 64, "heads": 8, "vocab": 9, "context": 8}
    config = predict.TransformerConfig.from_dict({**sizes, "stored": "fp8", "stored_apart": [["query", "bf16", 0.5]]})
    assert config.stored_apart == (("query", "bf16", 0.5),)
    for rows in (
        [3],
        [["query", "bf16"]],
        [["query", "bf17", 1.0]],
        [["query", "bf16", 0]],
        [["query", "bf16", True]],
        "query",
    ):
        with pytest.raises(
            ValueError, match="stored_apart must be rows of a component, a type of weights and the share"
        ):
            predict.TransformerConfig.from_dict({**sizes, "stored_apart": rows})
    with pytest.raises(ValueError, match="stored_apart gives 'query' shares of 1.2 together"):
        predict.TransformerConfig.from_dict({**sizes, "stored_apart": [["query", "bf16", 0.6], ["query", "fp8", 0.6]]})


def test_the_official_file_of_qwen3_coder_is_the_known_model():
    file = {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_dropout": 0.0, "decoder_sparse_step": 1,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 6144, "intermediate_size": 8192, "max_position_embeddings": 262144,
        "max_window_layers": 62, "mlp_only_layers": [], "moe_intermediate_size": 2560, "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts": 160, "num_experts_per_tok": 8, "num_hidden_layers": 62, "num_key_value_heads": 8, "qkv_bias": False,
        "rope_theta": 10000000, "router_aux_loss_coef": 0.0, "shared_expert_intermediate_size": 0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "use_qk_norm": True,
        "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip
    assert predict.from_hf(file) == predict.model("qwen3-coder-480b-a35b")
    for name, value, allowed in (("use_qk_norm", False, "True"), ("shared_expert_intermediate_size", 512, "0")):
        with pytest.raises(ValueError, match=f"{name}={value} of this qwen3_moe cannot be counted: give {allowed}"):
            predict.from_hf({**file, name: value})
