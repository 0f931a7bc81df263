"""The config.json files that lesson 17 reads describe the models whose names they have, as transformers builds them."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cs336kit import predict, teach

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["gpt2", "qwen3-8b", "llama-3.1-8b", "mixtral-8x7b", "gpt-oss-20b"])
def test_a_published_file_has_the_parameters_of_the_real_module(name):
    fields = json.loads(teach.config_file(name).read_text())
    config = CONFIG_MAPPING[fields["model_type"]](
        **{key: value for key, value in fields.items() if key != "model_type"}
    )
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    module.tie_weights()
    assert predict.parameters(predict.from_hf(fields)).total == sum(p.numel() for p in module.parameters())


def test_an_unknown_file_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="there is no config.json of 'gpt5' here; there are those of .*gpt2"):
        teach.config_file("gpt5")
