import dataclasses
import json
import re
from importlib.resources import files

import pytest

from cs336kit.predict import MODELS, TransformerConfig, from_hf, model, parameters
from cs336kit.predict.names import _fold, _folded, names, published, variants
from cs336plan import ServingQuestion, serve


def test_every_model_names_its_source():
    assert len(MODELS) >= 30
    for name, config in MODELS.items():
        assert isinstance(config, TransformerConfig) and len(config.source) > 15, name
        assert config.dropout == 0


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama-3-8b", "llama-3-8b"),
        ("Llama-3 8B", "llama-3-8b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("GPT-2", "gpt2"),
        ("GPT-2 XL", "gpt2-xl"),
        ("gpt3", "gpt3-175b"),
        ("Qwen2.5-0.5B", "qwen2.5-0.5b"),
        ("Mixtral 8x7B", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("llama3.1-8b-instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("allenai/OLMo-2-1124-7B", "olmo-2-7b"),
        ("bigscience/bloom", "bloom-176b"),
        ("microsoft/phi-1_5", "phi-1.5"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("Qwen/Qwen3-14B-Base", "qwen3-14b"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
    ],
)
def test_names_are_found_as_people_write_them(written, name):
    assert written in MODELS and MODELS[written] is MODELS[name] is model(written) is MODELS.get(written)


@pytest.mark.parametrize(
    ("written", "near"),
    [
        # Another vocabulary and no window, a longer context, or both.
        ("mistralai/Mistral-7B-v0.4", "mistral-7b-v0.3"),
        ("microsoft/Phi-3-mini-128k-instruct", "phi-3-mini"),
        ("01-ai/Yi-34B-200K", "yi-34b"),
        ("togethercomputer/LLaMA-2-7B-32K", "llama-2-7b"),
        ("mosaicml/mpt-7b-8k", "mpt-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2509x", "qwen3-30b-a3b"),
    ],
)
def test_another_version_is_not_taken_for_the_one_that_is_known(written, near):
    assert written not in MODELS and near in MODELS
    with pytest.raises(ValueError, match=f"no model is called .* Did you mean '{near}'"):
        MODELS[written]


@pytest.mark.parametrize(
    ("written", "shape", "context", "stored"),
    [
        ("mistralai/Mistral-7B-v0.1", "mistral-7b", 32_768, ""),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama-4-scout", 262_144, ""),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama-4-scout", 10_485_760, ""),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama-4-maverick", 1_048_576, ""),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama-4-maverick", 1_048_576, "fp8"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2", 131_072, "fp8-block"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2", 262_144, "fp8-block"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2", 262_144, "int4-g32-experts"),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", 40_960, "fp8"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b", 40_960, ""),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1", 163_840, "fp8-block"),
        ("unsloth/DeepSeek-R1-BF16", "deepseek-r1", 163_840, ""),
        ("MiniMaxAI/MiniMax-M2", "minimax-m2", MODELS["minimax-m2"].context, "fp8-block"),
        ("unsloth/gpt-oss-120b-BF16", "gpt-oss-120b", 131_072, ""),
        ("openai/gpt-oss-120b", "gpt-oss-120b", 131_072, "mxfp4-experts"),
        ("deepseek-ai/DeepSeek-V3-FP8", "deepseek-v3", 163_840, "fp8-block"),
        ("moonshotai/Kimi-K2.5", "kimi-k2", 262_144, "int4-g32-experts"),
        ("nvidia/Kimi-K2.5-NVFP4", "kimi-k2", 262_144, "nvfp4"),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-r1", 163_840, "nvfp4"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b", 131_072, "fp8-channel"),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b", 131_072, "int4"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", 262_144, ""),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b", 262_144, "fp8"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b", 262_144, ""),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "qwen2.5-32b", 131_072, ""),
    ],
)
def test_context_and_storage_are_those_of_the_id(written, shape, context, stored):
    found = MODELS[written]
    assert written in MODELS and dataclasses.replace(found, context=1) == dataclasses.replace(MODELS[shape], context=1)
    assert (found.context, found.stored) == (context, stored)
    # An id alone does not say what its file leaves as it is, unless its publisher's file is known.
    by_id = written.endswith(("-FP8", "-FP4", "-AWQ")) and stored not in ("fp8-channel", "fp8-block")
    assert ("as its id says" in " ".join(found.notes)) == by_id


def test_every_variant_is_found_by_the_words_of_its_id():
    for name, values in variants().items():
        shape, said = MODELS[values["of"]], {field: value for field, value in values.items() if field != "of"}
        assert said and {field: _plain(getattr(MODELS[name], field)) for field in said} == said
        assert (
            any(getattr(shape, field) != getattr(MODELS[name], field) for field in said)
            or shape.context == said["context"]
        )


def _plain(value):
    return [list(row) for row in value] if isinstance(value, tuple) else value


def test_models_that_are_published_in_parts_count_what_their_files_leave_wide():
    """Meta's 405B leaves attention and two of 126 MLPs as they are: see benchmarks/published.toml for what an engine needs."""
    attention = 126 * (2 * 16384 * 16384 + 2 * 16384 * 1024)
    one = 3 * 16384 * 53248
    scales = 4 * 124 * (2 * 53248 + 16384)
    norms = 2 * 16384 * (2 * 126 + 1)
    answer = serve(ServingQuestion("meta-llama/Llama-3.1-405B-FP8", accelerator="b200-sxm"))
    expected = 2 * attention + 2 * 2 * one + 124 * one + scales + 2 * 2 * 128256 * 16384 + norms
    assert answer.weights.total == pytest.approx(expected, abs=16)
    parts = dict(answer.weights.items())
    assert parts["matrices left in bf16"] == pytest.approx(2 * attention + 2 * 2 * one, abs=16)
    # Distilled, with a head of its own: 1.78 billion parameters.
    assert parameters(MODELS["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]).total == 1_777_088_000


def test_every_stored_hub_id_is_found():
    for name, values in published().items():
        assert _folded()[_fold(values["_name_or_path"])] == name


def test_a_model_of_the_course_is_what_its_published_configuration_says():
    """Papers give another context, vocabularies grew with later versions; all else counts bytes or FLOPs."""
    published = json.loads((files("cs336kit.predict") / "models_hf.json").read_text("utf-8"))
    both = [name for name in MODELS if name in published]
    assert len(both) > 20
    for name in both:
        read = from_hf(published[name])
        assert dataclasses.replace(read, context=MODELS[name].context, vocab=MODELS[name].vocab) == MODELS[name], name


def test_no_two_names_are_read_as_one():
    assert len({"".join(filter(str.isalnum, name)) for name in MODELS}) == len(MODELS)


@pytest.mark.parametrize("name", ["xyzzy", "", None, 7, ("gpt2",)])
def test_an_unknown_name_says_where_the_known_ones_are_listed(name):
    assert name not in MODELS and MODELS.get(name, "nothing") == "nothing"
    sentence = rf"no model is called .*\. `cs336kit models` lists the {len(names())} that are known; predict\.from_hf reads a c"
    with pytest.raises(ValueError, match=sentence):
        MODELS[name]


@pytest.mark.parametrize(
    ("written", "word"),
    [("qwen3-9b", "qwen3"), ("Qwen/Qwen3-235B-A22B-Instruct-2509x", "qwen3"), ("lama-3-8b", "llama")],
)
def test_the_sentence_is_short_and_the_word_that_it_names_lists_those_that_it_proposes(written, word):
    with pytest.raises(ValueError, match=rf"`cs336kit models {word}` lists more") as refused:
        MODELS[written]
    near = re.search(r"Did you mean ('.*')\?", str(refused.value))[1]
    proposed = re.findall("'([^']+)'", near)
    assert len(proposed) == 3 and {*proposed} <= {*names(word)} and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("written", "near"),
    [("lama-3-8b", "llama-3-8b"), ("qwen-3-8b-x", "qwen3-8b"), ("deepseek-v4", "deepseek-v3"), ("gpt5", "gpt2")],
)
def test_near_misses_are_answered_with_the_nearest(written, near):
    with pytest.raises(ValueError, match=f"Did you mean .*'{near}'"):
        MODELS[written]


def test_published_models_have_the_parameters_of_their_names():
    published = {"llama-3.1-8b": 8.03, "qwen3-235b-a22b": 235.09, "deepseek-v3": 671.03, "gpt-oss-120b": 116.83}
    published |= {"kimi-k2": 1026.41, "qwen3-coder-480b-a35b": 480.15, "mistral-large-2407": 122.61, "qwen3-14b": 14.77}
    published |= {"gemma-2-27b": 27.23, "command-r-plus": 103.81, "falcon-180b": 178.56, "opt-350m": 0.331}
    for name, billions in published.items():
        assert round(parameters(MODELS[name]).total / 1e9, 2 if billions > 1 else 3) == billions
    with pytest.raises(ValueError, match="a jamba cannot be counted: no support for state-space layers"):
        MODELS["ai21labs/AI21-Jamba-Mini-1.5"]


def test_the_table_is_read_only_and_shows_its_names():
    with pytest.raises(TypeError):
        MODELS["mine"] = MODELS["gpt2"]
    assert repr(MODELS).startswith("MODELS(gpt2, ")
    assert json.dumps(list(MODELS))


def test_llama_2_has_the_parameters_that_its_files_hold():
    """Counted in the published checkpoints; a vocabulary of 32,001 would have 10,240 more."""
    assert parameters(MODELS["llama-2-13b"]).total == 13_015_864_320
