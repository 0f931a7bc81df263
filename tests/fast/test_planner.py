import dataclasses
import itertools
from math import prod

import pytest

from cs336kit.predict import (
    MODELS,
    Plan,
    Question,
    TransformerConfig,
    accelerator,
    parameter_shapes,
    parameters,
    plan,
    step_peak,
)
from cs336kit.predict.napkin import NAPKIN_OPTIMIZERS


def test_seventy_billion_on_fifteen_trillion_tokens_takes_144_days():
    answer = plan(Question(70e9, tokens=15e12, count=1024, mfu=0.5))
    assert answer.flops == answer.six_nd_flops == 6300 * 10**21
    assert answer.days == pytest.approx(143.9, abs=0.1)
    assert plan(Question(70e9, tokens=15e12, count=512, mfu=0.5)).days == 2 * answer.days


def test_eight_h100_hold_forty_billion_sharded_and_five_replicated():
    room = accelerator("h100-sxm").memory_bytes
    assert plan(Question(70e9, count=8)).largest_model == 8 * room // 16
    assert plan(Question(70e9, count=8, sharded=False)).largest_model == room // 16


def test_time_of_a_configuration_counts_attention_which_six_pn_leaves_out():
    short = plan(Question(MODELS["llama-3-8b"], tokens=1e12, sequence=1024))
    long = plan(Question(MODELS["llama-3-8b"], tokens=1e12, sequence=8192))
    assert short.six_nd_flops == long.six_nd_flops and short.flops < long.flops
    assert plan(Question(MODELS["mixtral-8x7b"], tokens=1e12)).six_nd_flops == 6 * 12_879_925_248 * 10**12


def test_buckets_are_those_of_the_peak_and_sharding_divides_what_lasts():
    config = MODELS["gpt2-xl"]
    one = plan(Question(config, sequence=1024))
    buckets = step_peak(config, batch=1, sequence=1024, precision="mixed", attention="sdpa", foreach=True)
    assert one.memory == buckets
    eight = plan(Question(config, sequence=1024, count=8))
    # Of each parameter the rows of its first axis, rounded up.
    mine = sum(-(-shape[0] // 8) * prod(shape[1:]) for shape in parameter_shapes(config))
    assert eight.memory["parameters"] == 2 * mine
    assert eight.memory["master weights"] == 4 * mine
    assert eight.memory["optimizer state"] == 8 * mine + 4 * len(parameter_shapes(config))
    assert eight.memory["gradients"] < buckets["gradients"] or not buckets["gradients"]
    assert "gathered parameters" in eight.memory
    replicated = plan(Question(config, sequence=1024, count=8, sharded=False))
    assert replicated.memory == one.memory


def test_experts_that_share_unequally_need_more():
    answer = plan(Question(MODELS["mixtral-8x7b"], batch=2, sequence=4096, count=64, checkpointing=True))
    assert answer.uneven > answer.memory.total == answer.as_dict()["total_bytes"]
    assert plan(Question(MODELS["gpt2"])).uneven is None


@pytest.mark.parametrize(
    "question",
    [
        Question(MODELS["llama-3-8b"], batch=16, sequence=8192, count=8),
        Question(MODELS["gpt3-175b"], batch=4, sequence=2048, attention="eager", count=8),
        Question(MODELS["llama-2-70b"], count=8, sharded=False),
        Question(70e9),
        Question(70e9, count=64, sharded=False),
    ],
)
def test_what_does_not_fit_gets_advice_that_makes_it_fit(question):
    answer = plan(question)
    assert not answer.fits and answer.advice
    changes = {
        "--attention sdpa": {"attention": "sdpa"},
        "--checkpointing": {"checkpointing": True},
        "--replicated": {"sharded": True},
    }
    for sentence in answer.advice:
        change = {}
        for words, values in changes.items():
            if words in sentence:
                change |= values
        for option in ("batch", "count"):
            if f"--{option} " in sentence:
                change[option] = int(sentence.split(f"--{option} ")[-1].split(")")[0])
        if "count" in change:
            change["sharded"] = True
        assert plan(dataclasses.replace(question, **change)).fits, sentence


@pytest.mark.parametrize("optimizer", NAPKIN_OPTIMIZERS)
def test_every_optimizer_works_with_and_without_a_configuration(optimizer):
    memory = plan(Question(MODELS["gpt2"], optimizer=optimizer)).memory
    assert memory.total > memory["parameters"] + memory["optimizer state"] > 0
    assert plan(Question(1e9, optimizer=optimizer)).largest_model


def test_what_fits_needs_no_advice():
    answer = plan(Question(MODELS["gpt2"]))
    assert answer.fits and answer.advice == ()
    assert "it fits" in str(answer) and "124,439,808 parameters" in str(answer)


def test_text_and_dictionary_of_every_kind_of_question():
    policies = itertools.product(("fp32", "bf16", "autocast", "mixed"), ("eager", "sdpa"), (False, True))
    for precision, attention, checkpointing in policies:
        for name in ("gpt2", "mixtral-8x7b", "falcon-7b"):
            question = Question(
                MODELS[name],
                name=name,
                precision=precision,
                attention=attention,
                checkpointing=checkpointing,
                sequence=1024,
                tokens=10**9,
            )
            answer = plan(question)
            assert isinstance(answer, Plan) and answer.as_dict()["total_bytes"] == answer.memory.total
            assert answer.parameters == parameters(MODELS[name]).total
            assert str(answer).startswith(name)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": 0}, "parameters must be"),
        ({"model": "70B"}, "parameters must be"),
        ({"count": 0}, "count must be"),
        ({"mfu": 50}, "divide it by 100"),
        ({"tokens": 0}, "tokens must be"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"optimizer": "sophia"}, "unknown optimizer 'sophia'"),
        ({"accelerator": "h100"}, "name one of them"),
        ({"accelerator": "tpu-v5e", "precision": "fp32"}, "no sourced fp32"),
        ({"batch": 2}, "batch is about activations"),
        ({"checkpointing": True}, "checkpointing is about activations"),
        ({"model": MODELS["gpt2"], "sequence": 2048}, "longer than context=1024"),
        ({"model": MODELS["gpt2"], "batch": -1}, "batch must be"),
    ],
)
def test_impossible_and_contradictory_questions_get_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        plan(Question(**{"model": 70e9, **changes}))


def test_a_layer_too_wide_for_any_number_of_devices():
    config = TransformerConfig(layers=1, d_model=2**17, heads=8, vocab=100, context=2**17, positions="none")
    answer = plan(Question(config, sequence=2**17, attention="eager"))
    assert not answer.fits and "shorter sequence" in answer.advice[-1]
