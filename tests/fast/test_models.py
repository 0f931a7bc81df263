import json

import pytest

from cs336kit.predict import MODELS, TransformerConfig, model


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
    ],
)
def test_names_are_found_as_people_write_them(written, name):
    assert written in MODELS and MODELS[written] is MODELS[name] is model(written) is MODELS.get(written)


def test_no_two_names_are_read_as_one():
    assert len({"".join(filter(str.isalnum, name)) for name in MODELS}) == len(MODELS)


@pytest.mark.parametrize("name", ["llama-9-1b", "", None, 7, ("gpt2",)])
def test_unknown_names_list_the_known_ones(name):
    assert name not in MODELS and MODELS.get(name, "nothing") == "nothing"
    with pytest.raises(ValueError, match=r"unknown model .*gpt2, gpt2-medium"):
        MODELS[name]


def test_the_table_is_read_only_and_shows_its_names():
    with pytest.raises(TypeError):
        MODELS["mine"] = MODELS["gpt2"]
    assert repr(MODELS).startswith("MODELS(gpt2, ")
    assert json.dumps(list(MODELS))
