"""What from_hf says of a config.json against transformers' own module on the meta device; the rest is in benchmarks."""

import json
import warnings
from importlib.resources import files

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks import architectures, hf_fields
from cs336kit import predict
from cs336kit.predict.families import FAMILIES, LACKING

pytestmark = pytest.mark.torch

#: One of each kind of block: built, run forward and backward, and asked for its cache.
RUN = ("gpt2", "gemma3_text", "deepseek_v2", "gpt_oss")


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("model_type", RUN)
def test_parameters_flops_and_cache_of_a_tiny_model(model_type):
    values = architectures.tiny(model_type)
    assert architectures.predicted(values) == architectures.counted(values)


def test_parameters_of_every_family():
    for model_type in FAMILIES:
        values = architectures.tiny(model_type)
        assert predict.parameters(predict.from_hf(values)).total == architectures.parameters(values), model_type


@pytest.mark.parametrize("query_latent", [24, None])
@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu"])
def test_biases_of_latent_attention(model_type, query_latent):
    """The two latents and the output have one, and no matrix that makes heads of a latent."""
    values = architectures.tiny(model_type) | {"attention_bias": True, "q_lora_rank": query_latent}
    assert predict.parameters(predict.from_hf(values)).total == architectures.parameters(values)


def test_files_that_transformers_saves_anew_say_the_same():
    """It adds what it has computed: sums of widths, and what each layer is."""
    for name, values in architectures.architectures().items():
        try:
            config = predict.from_hf(values)
        except ValueError:
            continue  # refused in any case
        given = {field: value for field, value in values.items() if field != "model_type"}
        saved = CONFIG_MAPPING[values["model_type"]](**given).to_json_string()
        assert predict.from_hf(saved) == config, name


def test_the_table_of_fields_is_that_of_the_installed_transformers():
    assert (files("cs336kit.predict") / "hf_fields.json").read_text("utf-8") == hf_fields.text(), (
        "python -m benchmarks.hf_fields writes it anew"
    )
    assert not FAMILIES.keys() & LACKING.keys()


def test_most_published_architectures_are_read_and_the_rest_refused_by_name():
    refused = {}
    for name, values in architectures.architectures().items():
        try:
            config = predict.from_hf(json.loads(json.dumps(values)))
        except ValueError as error:
            refused[name] = str(error)
        else:
            assert predict.parameters(config).total > 1e7
    assert all("cannot be counted: no support for" in sentence for sentence in refused.values())
    assert len(architectures.architectures()) - len(refused) >= 140
