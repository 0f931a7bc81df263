import dataclasses
import itertools
import json
import re
from functools import partial
from math import prod
from types import SimpleNamespace

import pytest

from cs336kit.predict import (
    MODELS,
    TransformerConfig,
    accelerator,
    accelerators,
    find_layouts,
    parameter_shapes,
    parameters,
    step_peak,
    step_seconds,
    training_flops,
)
from cs336kit.predict.layouts import as_layout
from cs336kit.predict.napkin import NAPKIN_OPTIMIZERS
from cs336plan import Plan, Question, ServingQuestion, plan, serve
from cs336plan.training.answer import KEYS
from cs336plan.training.find import _in_order, found
from cs336plan.training.plan import days_and_bytes
from cs336plan.training.sensitivity import sensitivity
from cs336plan.training.text import explanations


def test_seventy_billion_on_fifteen_trillion_tokens_takes_144_days():
    answer = plan(Question(70e9, tokens=15e12, count=1024, mfu=0.5))
    assert answer.flops == answer.six_nd_flops == 6300 * 10**21
    assert answer.days == pytest.approx(143.9, abs=0.1)
    assert "1,024 × h100-sxm (989.4 TFLOP/s each) at an MFU of 0.5" in str(answer)
    assert plan(Question(70e9, tokens=15e12, count=512, mfu=0.5)).days == 2 * answer.days


def test_eight_h100_hold_forty_billion_sharded_and_five_replicated():
    room = accelerator("h100-sxm").memory_bytes
    fused = Question(70e9, count=8, allowance=0, fused=True)
    assert plan(fused).largest_model == 8 * room // 16
    assert plan(dataclasses.replace(fused, sharded=False)).largest_model == room // 16
    # In the step of torch's foreach implementation, each parameter has four bytes more.
    assert plan(dataclasses.replace(fused, fused=False)).largest_model == 8 * room // 20


def test_a_number_of_parameters_has_the_temporary_tensors_of_a_step():
    answer = plan(Question(32e9, count=8))
    # 2 + 2 + 4 + 8 bytes, and √v̂ in fp32; the same with a shape, whose activations are few.
    assert dict(answer.memory.items()) == {
        "parameters": 8e9, "gradients": 8e9, "optimizer state": 32e9, "master weights": 16e9, "temporary tensors": 16e9,
    }  # fmt: skip
    assert "temporary tensors = 32,000,000,000 × 4 (torch's foreach" in explanations(answer)
    assert not answer.fits and [one.changes for one in answer.advice] == [
        {"fused": True},
        {"sharded": True, "count": 16, "global_batch": None},
    ]
    # What is sharded already sends no more with another optimizer.
    assert answer.advice[0].cost.sent == 0 and "on the wire" not in answer.advice[0].costs
    shaped = plan(Question(MODELS["qwen3-32b"], count=8, checkpointing=True, sequence=128))
    assert shaped.moment == "optimizer step" and not shaped.fits
    each = shaped.memory["temporary tensors"] / shaped.parameters
    assert answer.memory["temporary tensors"] / 32e9 == 0.5 == pytest.approx(each, rel=0.01)
    fused = plan(Question(32e9, count=8, fused=True))
    assert fused.fits and fused.memory.total == 64e9 and "for them\n" in str(fused)
    left = fused.chip.memory_bytes - fused.allowance.total - fused.memory.total
    more = plan(Question(24e9, count=8))
    for size in (left + 16e9, left + 4e9):  # before and in the optimizer's step
        assert f"{size / 2**30:,.2f} GiB" in str(more).partition("it fits")[2]
    # Momentum has none without weight decay, and what runs one tensor at a time needs to know how large they are.
    assert "temporary tensors" not in plan(Question(1e9, optimizer="momentum")).memory
    assert "temporary tensors" not in plan(Question(1e9, device="cpu")).memory
    assert plan(Question(1e9, precision="bf16")).memory["temporary tensors"] == 2e9
    assert any(
        "temporary tensors of a step of lion are not known" in note
        for note in plan(Question(1e9, optimizer="lion")).notes
    )


def test_time_of_a_configuration_counts_attention_which_six_pn_leaves_out():
    short = plan(Question(MODELS["llama-3-8b"], tokens=1e12, sequence=1024))
    long = plan(Question(MODELS["llama-3-8b"], tokens=1e12, sequence=8192))
    assert short.six_nd_flops == long.six_nd_flops and short.flops < long.flops
    assert plan(Question(MODELS["mixtral-8x7b"], tokens=1e12)).six_nd_flops == 6 * 12_879_925_248 * 10**12


def test_buckets_are_those_of_the_peak_and_sharding_divides_what_lasts():
    config = MODELS["gpt2-xl"]
    one = plan(Question(config, sequence=1024))
    buckets = step_peak(
        config, batch=1, sequence=1024, precision="mixed", attention="sdpa", device="cuda", foreach=True
    )
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


def test_parameters_that_are_active_for_a_token_are_said():
    """DeepSeek-AI 2024, "DeepSeek-V3 Technical Report": 671 billion, of which 37 are activated for each token."""
    answer = plan(Question(MODELS["deepseek-v3"], name="deepseek-v3", count=2048, checkpointing=True))
    assert answer.as_dict()["active_parameters"] == 37_552_282_624
    first = " ".join(str(answer).split("micro-batch:")[0].split())
    assert first == "deepseek-v3: 671,026,404,352 parameters, 37,552,282,624 of them active for a token"
    tuned = " ".join(str(plan(Question(MODELS["mixtral-8x7b"], lora_rank=8))).split())
    assert "12,879,925,248 of them active for a token, and 3,407,872 of adapters (rank 8) micro-batch" in tuned
    for dense in (plan(Question(MODELS["gpt2"])), plan(Question(7e9))):
        assert dense.as_dict()["active_parameters"] == dense.parameters and "active" not in str(dense)


def test_shares_of_experts_are_spoken_of_where_they_matter():
    moe = Question(MODELS["mixtral-8x7b"], batch=2, sequence=4096, count=64, checkpointing=True)
    same = "if all chose the same: "
    assert f"{same}{plan(moe).uneven / 2**30:.2f} GiB" in " ".join(str(plan(moe)).split())
    # With few tokens and many layers it is the same, within a twentieth.
    few = plan(dataclasses.replace(moe, batch=1, sequence=16))
    assert few.uneven < 1.05 * few.memory.total and same not in str(few)
    for layout, who in (("ep=8,fsdp=8", "each of the 8 ranks of ep"), ("fsdp=32,cp=2", "each expert")):
        answer = plan(dataclasses.replace(moe, count=1, layout=layout))
        assert answer.uneven is None
        said = (
            f"({who} is taken to get an equal share of the tokens; one that gets more needs more, which is not counted)"
        )
        assert said in " ".join(str(answer).split())
    assert "equal share" not in str(plan(Question(MODELS["gpt2"]))) + str(plan(Question(7e9)))


@pytest.mark.parametrize(
    "question",
    [
        Question(MODELS["llama-3-8b"], batch=16, sequence=8192, count=8),
        Question(MODELS["gpt3-175b"], batch=4, sequence=2048, attention="eager", count=8),
        Question(MODELS["llama-2-70b"], count=8, sharded=False),
        Question(70e9),
        Question(70e9, count=64, sharded=False),
        Question(MODELS["llama-3-70b"], layout="fsdp=8", checkpointing=True),
        Question(MODELS["llama-3-70b"], layout="pp=4,dp=2,microbatches=16", accumulate=16, sequence=2048),
        Question(MODELS["llama-3-8b"], layout="dp=8", sequence=2048),
        Question(MODELS["llama-2-70b"], lora_rank=16),
        Question(MODELS["llama-3-8b"], count=2),
        Question(MODELS["llama-3-8b"], count=2, global_batch=2, checkpointing=True),
        Question(MODELS["llama-3-8b"], count=2, batch=2, global_batch=8),
        Question(MODELS["llama-3-8b"], count=2, batch=2, accumulate=2, global_batch=8),
    ],
)
def test_what_does_not_fit_gets_advice_that_makes_it_fit(question):
    answer = plan(question)
    assert not answer.fits and answer.advice
    for one in answer.advice:
        assert plan(dataclasses.replace(question, **one.changes)).fits, one.change
    costs = [one.slower for one in answer.advice if one.slower is not None]
    assert costs == sorted(costs)


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
    # Two layers of Mixtral, because those of 32 take long: each of their experts is walked for unequal shares.
    models = {**MODELS, "mixtral-8x7b": dataclasses.replace(MODELS["mixtral-8x7b"], layers=2)}
    names = itertools.cycle(("gpt2", "mixtral-8x7b", "falcon-7b"))
    for (precision, attention, checkpointing), name in zip(policies, names, strict=False):
        question = Question(
            models[name], name=name, precision=precision, attention=attention, checkpointing=checkpointing, sequence=1024,
            tokens=10**9,
        )  # fmt: skip
        answer = plan(question)
        assert isinstance(answer, Plan) and answer.as_dict()["total_bytes"] == answer.memory.total
        assert answer.parameters == parameters(models[name]).total
        assert str(answer).startswith(name)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": 0}, "parameters must be"),
        (
            {"model": "70B"},
            r"no model is called '70B'.*a number such as 70e9 is parameters",
        ),
        ({"count": 0}, "count must be"),
        ({"count": 10**9}, r"count must be at most 10\*\*8"),
        ({"mfu": 50}, "divide it by 100"),
        ({"tokens": 0}, "tokens must be"),
        ({"precision": "fp8"}, "unknown precision 'fp8'"),
        ({"optimizer": "sophia"}, "unknown optimizer 'sophia'"),
        ({"accelerator": "h100"}, "name one of them"),
        ({"accelerator": "tpu-v5e", "precision": "fp32", "tokens": 1e9}, "no sourced fp32.*give the peak yourself"),
        ({"accelerator": None, "tokens": 1e9, "memory_bytes": 80e9}, "give its memory_bytes and peak_flops_per_second"),
        ({"memory_bytes": -1}, "memory_bytes must be"),
        ({"peak_flops_per_second": 0}, "peak_flops_per_second must be"),
        ({"allowance": 90 * 2**30}, "leaves nothing"),
        ({"allowance": 1.5}, "allowance must be a fraction"),
        ({"price_per_hour": 2}, "a cost needs a time"),
        ({"watts": 700}, "a cost needs a time"),
        ({"steps": 0}, "steps must be"),
        ({"steps": 1000}, "steps need a batch of tokens, which a number of parameters does not have: give tokens, or"),
        ({"steps": 1000, "price_per_hour": 2}, "steps need a batch of tokens"),
        ({"optimizer": "muon"}, "keeps state by shape"),
        ({"lora_rank": 8}, "lora_rank is about the parts"),
        ({"model": MODELS["gpt2"], "global_batch": 12, "batch": 5}, "multiple of 5, such as 10"),
        ({"model": MODELS["gpt2"], "global_batch": 12, "batch": 5, "accumulate": 2}, "are 10 sequences a step"),
        ({"model": MODELS["gpt2"], "chunks": 0}, "chunks must be"),
        ({"model": MODELS["gpt2"], "lora_rank": 8, "lora_targets": ("quary",)}, "Did you mean 'query'"),
        ({"model": MODELS["gpt2"], "lora_rank": 8, "frozen": ("query",)}, "already freezes everything"),
        ({"model": MODELS["gpt2"], "base": "nf4"}, "give lora_rank"),
        ({"model": MODELS["gpt2"], "base": "nf3", "lora_rank": 1}, "unknown packing 'nf3'"),
        ({"model": MODELS["gpt2"], "frozen": ("querry",)}, "unknown component 'querry'"),
        (
            {"model": MODELS["gpt2"], "frozen": tuple(parameters(MODELS["gpt2"]))},
            "nothing to train|unknown component 'head'",
        ),
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
    assert not answer.fits and not answer.advice and "shorter sequence" in str(answer)


def test_the_lower_bound_of_a_step_leaves_out_what_a_causal_mask_hides():
    question = Question(MODELS["llama-3.1-8b"], sequence=2**17, count=8, checkpointing=True, tokens=10**9)
    answer = plan(question)
    options = {
        "layout": "fsdp=8", "batch": 1, "sequence": 2**17, "accelerator": "h100-sxm", "checkpointing": True, "device": "cuda",
        "matmul_efficiency": 0.8,
    }  # fmt: skip
    all_pairs, causal = (step_seconds(question.model, **options, causal=causal) for causal in (False, True))
    values = answer.as_dict()
    assert values["step_seconds"]["lower"] == causal.lower < 0.6 * all_pairs.lower
    assert values["step_seconds"]["upper"] == all_pairs.upper and values["step_seconds"]["compute"] == all_pairs.compute
    steps = -(-(10**9) // 2**20)
    assert values["run_days"] == {"lower": steps * causal.lower / 86400, "upper": steps * all_pairs.upper / 86400}
    pairs, half = (
        training_flops(question.model, batch=1, sequence=2**17, causal=causal).total for causal in (0 > 1, 1 > 0)
    )
    note = next(note for note in answer.notes if "all pairs" in note)
    assert note.endswith(f"they are {100 * (1 - half / pairs):.0f} % fewer, as in the lower bound of a step")
    # Eager attention computes all of them, the step of one accelerator says so itself, and short sequences have few pairs.
    eager = plan(dataclasses.replace(question, attention="eager"))
    assert eager.causal is None and eager.as_dict()["step_seconds"]["lower"] == eager.seconds.lower
    alone = plan(dataclasses.replace(question, count=1))
    assert any(note.endswith("% fewer, as in the lower bound of a step") for note in alone.notes)
    unbounded = plan(dataclasses.replace(question, count=16))
    assert unbounded.seconds is None and any(note.endswith("% fewer") for note in unbounded.notes)
    short = plan(dataclasses.replace(question, sequence=1024))
    untold = plan(dataclasses.replace(question, count=1, tokens=None))
    for other in (eager, short, untold):
        assert not any("all pairs" in note for note in other.notes)
    assert short.causal.lower < short.seconds.lower


@pytest.mark.parametrize(
    "how", [{}, {"fused": True}, {"optimizer": "sgd"}, {"precision": "bf16"}, {"product_rate": 0.5}]
)
def test_layouts_that_are_found_have_the_bounds_and_bytes_of_their_own_answers(how):
    question = Question(MODELS["llama-3-8b"], count=8, sequence=512, checkpointing=True, **how)
    for one in found(plan(question), limit=2):
        answer = plan(dataclasses.replace(question, layout=one.layout))
        values = answer.as_dict()["step_seconds"]
        assert (one.seconds.lower, one.seconds.upper) == (values["lower"], values["upper"])
        assert one.peak.total == answer.memory.total
    if how == {"fused": True}:  # else it is the optimizer's step that needs the most
        assert plan(dataclasses.replace(question, layout=one.layout, fused=False)).memory.total > one.peak.total


def test_a_link_may_be_given():
    """Of a card without a sourced link, and in place of the table's."""
    for name in ("rtx-4090", "h100-sxm"):
        answer = plan(Question("gpt2", accelerator=name, count=2, link=32e9))
        assert answer.seconds.inside == pytest.approx(answer.wire.total / 32e9) and answer.seconds.between == 0
    own = Question("gpt2", accelerator=None, memory_bytes=80e9, peak_flops_per_second=1e15, count=2, link=32e9)
    assert plan(own).seconds.inside == pytest.approx(plan(own).wire.total / 32e9)
    assert "links as given; memory, peak and bandwidth are those of h100-sxm" in answer.notes
    with pytest.raises(ValueError, match="link must be"):
        plan(Question("gpt2", link=0))
    with pytest.raises(
        ValueError, match="no sourced link to its neighbors: give link, that of one accelerator each way"
    ):
        serve(ServingQuestion("gpt2", accelerator="rtx-4090", count=2))
    (_, bounds), *_ = serve(ServingQuestion("gpt2", accelerator="rtx-4090", count=2, link=1e6)).tokens
    # An all-reduce of two: at best each sends its half, and gets one sum.
    assert bounds.bound == "links" and bounds.links == pytest.approx(bounds.sent / 1e6)


def test_links_that_nobody_has_measured_have_a_way_out():
    question = Question(
        MODELS["llama-3-8b"], count=2, accelerator="rtx-4090", lora_rank=16, base="nf4", between_nodes=25e9
    )
    (note,) = [note for note in plan(question).notes if note.startswith("seconds")]
    assert "inside a node, which is not known of NVIDIA GeForce RTX 4090: give --link 32GB/s" in note
    assert plan(dataclasses.replace(question, node=1)).seconds is not None
    (note,) = [note for note in plan(Question(MODELS["llama-3-8b"], count=16)).notes if note.startswith("seconds")]
    assert (
        note
        == "seconds of a step need the speed between nodes, which no table has: give --between-nodes 400Gb/s or what yours is"
    )
    far = plan(Question(MODELS["llama-3-8b"], count=16, accelerator="rtx-4090"))
    assert any("give --between-nodes" in note for note in far.notes), "all of it is between nodes"


@pytest.mark.parametrize("speed", ["fast", float("nan"), -1, 0, True])
def test_a_speed_between_nodes_is_checked_where_nothing_leaves_a_node(speed):
    step = {"accelerator": "h100-sxm", "batch": 1, "sequence": 64, "between_nodes": speed}
    for ask in (partial(step_seconds, layout="fsdp=2"), partial(find_layouts, count=1)):
        with pytest.raises(ValueError, match="between_nodes must be"):
            ask(MODELS["gpt2"], **step)


def test_fits_means_the_peak_and_what_was_left_out():
    question = Question(MODELS["gpt2-xl"], sequence=1024)
    answer = plan(question)
    need, free = answer.memory.total, answer.allowance.total
    assert free == 2**30 + int(0.05 * answer.chip.memory_bytes)
    assert "rule of thumb, change it with --allowance" in answer.allowance_reason
    enough = dataclasses.replace(question, memory_bytes=need + 2**30, allowance=2**30)
    assert plan(enough).fits and not plan(dataclasses.replace(enough, memory_bytes=need + 2**30 - 1)).fits
    share = plan(dataclasses.replace(question, allowance=0.08))
    assert share.allowance.total == int(0.08 * share.chip.memory_bytes)
    assert plan(dataclasses.replace(question, count=8)).allowance["communication buffers"] == 2**30


@pytest.mark.parametrize("device", accelerators(), ids=lambda device: device.name)
def test_every_listed_chip_answers(device):
    answer = plan(Question(MODELS["llama-3-8b"], accelerator=device.name, tokens=1e12, count=64))
    assert answer.days > 0 and answer.chip.memory_bytes > 0
    exact = "memory_bytes" in device.facts
    assert exact == (not any("GB of the datasheet" in note for note in answer.notes))
    assert answer.chip.memory_bytes == (device.memory_bytes if exact else device.memory_label_bytes)
    assert ("bf16" in device.precisions) == (not any("no bf16" in note for note in answer.notes))


def test_any_other_chip_is_two_numbers():
    answer = plan(Question(7e9, accelerator=None, memory_bytes=96e9, peak_flops_per_second=5e14, tokens=1e12, mfu=0.5))
    assert answer.days == 6 * 7e9 * 1e12 / (5e14 * 0.5 * 86400) and answer.chip.memory_bytes == 96 * 10**9
    replaced = plan(Question(7e9, memory_bytes=96e9))
    assert "memory as given; peak, bandwidth and links are those of h100-sxm" in replaced.notes


def test_on_a_cpu_the_optimizer_goes_tensor_by_tensor_as_torchs_does_there():
    config, size = MODELS["gpt2"], {"batch": 1, "sequence": 16}
    answers = [plan(Question(config, device=name, precision="fp32", **size)) for name in ("cpu", "cuda")]
    assert [answer.moment for answer in answers] == ["embedding backward", "optimizer step"]
    assert answers[0].memory == step_peak(config, **size, device="cpu", attention="sdpa")
    (one,) = find_layouts(
        config, count=1, accelerator="h100-sxm", global_batch=1, precision="fp32", device="cpu", **size
    )
    assert one.peak == answers[0].memory


def test_global_batch_is_batch_times_passes_times_accelerators():
    config = MODELS["gpt2"]
    answer = plan(Question(config, count=8, batch=4, global_batch=256, sequence=1024, steps=1000))
    assert answer.question.accumulate == 8 and answer.question.tokens == 1000 * 256 * 1024
    assert answer.steps == 1000 and answer.implied_batch == 256 * 1024
    assert "8 a step (gradient accumulation)" in str(answer) and "256 sequences, 262,144 tokens" in str(answer)
    other = plan(Question(config, count=8, batch=4, sequence=1024, tokens=10**9, steps=1000))
    text = " ".join(str(other).split())
    assert other.implied_batch == 10**6 and "imply 1,000,000 tokens a step, 977 sequences of 1,024: another" in text
    # 8 accelerators with 4 sequences each make 31 times 32 of them at once, and that is taken.
    assert "than this one (--global-batch 992)" in text
    assert plan(dataclasses.replace(other.question, global_batch=992, accumulate=None)).question.accumulate == 31
    taken = str(plan(dataclasses.replace(other.question, global_batch=992, accumulate=None)))
    assert "than this one, the nearest of whole micro-batches" in " ".join(taken.split())
    single = Question(config, sequence=1024, tokens=10**9, steps=1000, global_batch=977)
    assert "977 sequences" in str(plan(single)) and "another" not in str(plan(single))
    agreeing = plan(Question(config, batch=4, sequence=1024, tokens=4096 * 1000, steps=1000))
    assert "imply 4,096 tokens a step" in str(agreeing) and "another" not in str(agreeing)
    assert plan(Question(config, batch=4, sequence=1024, tokens=10**9)).steps == -(-(10**9) // 4096)


def test_passes_hold_the_gradients_and_chunks_hold_less():
    question = Question(MODELS["llama-3.2-1b"], batch=4, sequence=2048, precision="bf16")
    one, two = plan(question), plan(dataclasses.replace(question, accumulate=2))
    assert two.memory.total > one.memory.total
    assert plan(dataclasses.replace(question, chunks=8)).memory.total < one.memory.total


def test_advice_says_what_it_costs():
    answer = plan(Question(MODELS["llama-3-8b"], batch=2, sequence=8192, precision="bf16", optimizer="sgd"))
    checkpointed = next(one for one in answer.advice if "--checkpointing" in one.change)
    config, size = MODELS["llama-3-8b"], {"batch": 2, "sequence": 8192}
    again = training_flops(config, checkpointing=True, **size).total / training_flops(config, **size).total - 1
    assert checkpointed.slower == pytest.approx(again) and f"{100 * again:.1f} % more FLOPs" in checkpointed.costs


def test_advice_splits_a_batch_into_the_largest_parts_that_fit():
    question = Question(MODELS["llama-3.2-1b"], batch=45, sequence=2048, precision="bf16")
    more_passes = next(one for one in plan(question).advice if "accumulate" in one.changes)
    parts = [dataclasses.replace(question, batch=size, accumulate=45 // size) for size in (15, 9, 5, 3, 1)]
    largest = next(part for part in parts if plan(part).fits)
    assert more_passes.changes == {"batch": largest.batch, "accumulate": largest.accumulate, "global_batch": None}
    assert 1 < largest.batch < 15


def test_sharding_a_number_of_parameters_gathers_the_weights_twice_and_saves_half_of_the_sums():
    answer = plan(Question(20e9, count=8, sharded=False))
    sharded = next(one for one in answer.advice if one.changes == {"sharded": True})
    # Of two bytes each: gathered forward and backward, and gradients scattered instead of scattered and gathered.
    assert f"{(2 + 1 - 2) * 2 * 20e9 * 7 / 8 / 1e9:.1f} GB more on the wire" in sharded.costs


def test_cost_and_energy_are_those_of_the_given_numbers():
    answer = plan(Question(70e9, tokens=1e12, count=512, price_per_hour=2.5, watts=900))
    hours = 24 * answer.days * 512
    assert answer.cost == pytest.approx(2.5 * hours) and answer.energy_kwh == pytest.approx(0.9 * hours)
    free = plan(Question(70e9, tokens=1e12, count=512))
    assert free.cost is None and free.energy_kwh is None and "cost" not in str(free)


def test_a_time_that_no_step_reaches_says_so():
    question = Question(
        MODELS["gpt-oss-120b"], count=64, checkpointing=True, attention="flash_attention", between_nodes=50e9, tokens=10**12,
        price_per_hour=2.5, watts=900,
    )  # fmt: skip
    answer = plan(question)
    values, (least, most) = answer.as_dict(), answer.run_days
    assert answer.days < least / 2
    cost, energy = ({"lower": 24 * 64 * least * each, "upper": 24 * 64 * most * each} for each in (2.5, 0.9))
    assert values["run_cost"] == pytest.approx(cost) and values["run_energy_kwh"] == pytest.approx(energy)
    # Links bound the step: 17.4 days at 0.4 are as many FLOPs as 48.1 days at 0.144, however fast the products are.
    assert least == pytest.approx(48.1, abs=0.05) and values["step_mfu"]["upper"] == pytest.approx(0.144, abs=5e-4)
    assert values["asked_product_rate"] == {"lower": None, "upper": None}
    said = " ".join(str(answer).split())
    assert f"takes {least:.1f} to {most:.1f} days, costs {cost['lower']:,.0f} to {cost['upper']:,.0f} and uses" in said
    assert "an MFU of 0.4 is out of reach with this layout and network: with matrix products at the peak and" in said
    assert "overlapping it is 0.144 each" in said
    free = plan(dataclasses.replace(question, price_per_hour=None, watts=None)).as_dict()
    assert free["run_cost"] is None is free["run_energy_kwh"] and free["run_days"]


def test_what_meta_measured_with_405_billion_parameters_is_in_reach():
    """38 to 43 % on 16,384 H100. Source: Llama team 2024, "The Llama 3 Herd of Models", table 4."""
    question = Question(
        MODELS["llama-3.1-405b"], layout="tp=8,pp=16,dp=128,microbatches=16", sequence=8192, tokens=15.6e12, mfu=0.41,
        between_nodes=50e9, price_per_hour=2, checkpointing=False,
    )  # fmt: skip
    answer, values = plan(question), plan(question).as_dict()
    least, most = answer.step_mfu
    assert least < 0.38 < 0.43 < most and "out of reach" not in str(answer)
    # By hand: a stage of 16 computes 1/16 of the products of 16 sequences, and waits for 15 turns more of 31; causal attention
    # has half of the pairs. At an MFU of 0.41 the same FLOPs over all ranks take so long.
    step = 2048 * training_flops(question.model, batch=1, sequence=8192).total / (16_384 * 989.4e12 * 0.41)
    causal = training_flops(question.model, batch=1, sequence=8192, causal=True).total
    filled = (16 + 15) / 16 * 16 * causal / 16 / 8 / 989.4e12
    assert answer.mfu_seconds == pytest.approx(step) == pytest.approx(answer.days * 86400 / 929_832, rel=1e-5)
    assert (
        values["asked_product_rate"]["lower"]
        == pytest.approx(filled / step, rel=0.02)
        == pytest.approx(0.755, abs=0.01)
    )


@pytest.mark.parametrize(
    "question",
    [
        Question(MODELS["llama-3.1-405b"], layout="tp=8,pp=16,dp=128,microbatches=32", between_nodes=50e9, mfu=0.35),
        Question(MODELS["llama-3-8b"], count=8, checkpointing=True),
        Question(MODELS["gpt2"], attention="eager", checkpointing=True, mfu=0.3),
    ],
)
def test_products_at_the_rate_that_an_mfu_asks_for_reach_it(question):
    answer = plan(question)
    for bound, rate in enumerate((answer.asked.lower, answer.asked.upper)):
        again = plan(dataclasses.replace(question, product_rate=rate))
        assert again.step_bounds[bound] == pytest.approx(answer.mfu_seconds)
        assert again.step_mfu[1 - bound] == pytest.approx(question.mfu)
    at_peak = plan(dataclasses.replace(question, product_rate=1))
    assert answer.asked.highest_mfu == pytest.approx(at_peak.step_mfu[1])


def test_time_and_steps_each_have_a_rate_of_their_own():
    question = Question(MODELS["llama-3-8b"], count=8, tokens=1e12, price_per_hour=2)
    answer = plan(question)
    quick = plan(dataclasses.replace(question, product_rate=0.4))
    assert (quick.days, quick.cost) == (
        answer.days,
        answer.cost,
    ) and quick.seconds.compute == 2 * answer.seconds.compute
    slow = plan(dataclasses.replace(question, mfu=0.2))
    assert slow.days == 2 * answer.days and slow.seconds == answer.seconds and slow.run_cost == answer.run_cost
    assert slow.asked.lower == pytest.approx(answer.asked.lower / 2)
    with pytest.raises(ValueError, match="product_rate must be a fraction"):
        plan(dataclasses.replace(question, product_rate=0))


def test_a_step_of_one_accelerator_has_seconds_and_tokens_and_sends_nothing():
    question = Question(
        MODELS["llama-3-8b"], accelerator="rtx-4090", lora_rank=16, base="nf4", checkpointing=True, tokens=10**7
    )
    answer = plan(question)
    lower, upper = answer.step_bounds
    rates = {"lower": 4096 / upper, "upper": 4096 / lower}
    assert (
        answer.as_dict()["tokens_per_second"] == rates == {"lower": answer.tokens_per_second[0], "upper": 4096 / lower}
    )
    said = " ".join(str(answer).split())
    assert (
        "with matrix products at 0.8 of the peak (--product-rate) and nothing else: "
        f"{lower:.3g} s with causal attention (an MFU of {answer.step_mfu[1]:.3g}), {upper:.3g} s over all pairs "
        f"({answer.step_mfu[0]:.3g}, which leaves out what the backward pass computes again) "
        "in such steps the run takes 56.83 minutes to 1.05 hours an MFU of 0.4 asks for"
    ) in said
    assert "links" not in said and "sends" not in said and "overlaps" not in said
    eager = " ".join(str(plan(dataclasses.replace(question, attention="eager"))).split())
    assert re.search(
        r"and nothing else: [\d.]+ s \(an MFU of [\d.]+, which leaves out [a-z ]+\) in such steps the run takes [\d.]+ hours an",
        eager,
    )
    many = plan(Question(MODELS["llama-3-8b"], count=8))
    least, most = many.tokens_per_second
    assert (least, most) == (8 * 4096 / many.step_bounds[1], 8 * 4096 / many.step_bounds[0])
    # A step at the MFU: the FLOPs of 8 sequences over what 8 accelerators deliver.
    rate = 4096 * 0.4 * many.chip.peak("bf16") / training_flops(MODELS["llama-3-8b"], batch=1, sequence=4096).total
    assert f"at an MFU of 0.4: {8 * rate:,.0f} tokens per second, {rate:,.0f} on each accelerator" in " ".join(
        str(many).split()
    )
    assert plan(Question(70e9)).as_dict()["tokens_per_second"] is None


def test_a_model_may_be_named():
    named, given = (
        plan(Question("Llama-3 8B", count=8)),
        plan(Question(MODELS["llama-3-8b"], name="Llama-3 8B", count=8)),
    )
    assert named == given and named.question.model is MODELS["llama-3-8b"]
    assert plan(Question("gpt2", name="mine")).question.name == "mine"
    assert days_and_bytes(Question("gpt2", tokens=1e9)) == days_and_bytes(Question(MODELS["gpt2"], tokens=1e9))
    with pytest.raises(ValueError, match="no model is called 'llama-3-9b'. Did you mean 'llama-3-8b'"):
        plan(Question("llama-3-9b"))


def test_how_many_accelerators_a_number_of_days_asks_for():
    question = Question(70e9, tokens=15e12, mfu=0.5, within_days=30)
    answer = plan(question)
    # 6 · 70e9 · 15e12 FLOPs in 30 days at half of 989.4 TFLOP/s.
    assert -(-6300 * 10**21 // int(989.4e12 * 0.5 * 86400 * 30)) == 4914
    # In whole nodes.
    assert answer.as_dict()["accelerators_within_days"] == 4920 == 8 * -(-4914 // 8)
    assert answer.question.count == 1 and answer.as_dict()["within_days"] == 30
    assert (
        "within 30 days it takes 4,920 of them (615 nodes of 8) at this MFU; all else here is for 1, and --count 4920 plans those"
        in " ".join(str(answer).split())
    )
    # Nobody is sent back from as many or from more.
    for enough in (4920, 5000):
        assert "at this MFU\n" in str(plan(dataclasses.replace(question, count=enough)))
    assert "× 86,400 s × 30), rounded up to whole nodes of 8: 4,920" in " ".join(explanations(answer).split())
    assert plan(dataclasses.replace(question, node=3)).accelerators_within_days == 4914
    assert plan(dataclasses.replace(question, node=10**4)).accelerators_within_days == 4914
    # They are as many as the time says, also where it is met exactly, and where the quotient of two times is 472 and a bit.
    for count in (1, 2, 7, 472, 4912):
        exactly = plan(dataclasses.replace(question, count=count)).days
        assert plan(dataclasses.replace(question, within_days=exactly)).accelerators_within_days == count
    assert plan(dataclasses.replace(question, within_days=None)).as_dict()["accelerators_within_days"] is None
    steps = Question(MODELS["gpt2"], steps=1000, batch=8, within_days=0.001)
    assert plan(dataclasses.replace(steps, count=plan(steps).accelerators_within_days, batch=8)).days > 0
    for within, sentence in ((0, "within_days must be"), (True, "within_days must be"), (5e-324, "no float can hold")):
        with pytest.raises(ValueError, match=sentence):
            plan(dataclasses.replace(question, within_days=within))
    with pytest.raises(ValueError, match=r"depends on the tokens to train on: give tokens \(or steps\)"):
        plan(Question(70e9, within_days=30))


def test_adapters_have_states_and_the_base_has_none():
    config = MODELS["llama-3-8b"]
    question = Question(config, lora_rank=16, sequence=2048, checkpointing=True, precision="bf16")
    full = plan(question)
    trained = 32 * 16 * ((4096 + 4096) + (4096 + 1024))
    assert full.trainable == trained and full.memory["parameters"] == 2 * (full.parameters + trained)
    assert full.memory["optimizer state"] == 4 * trained + 4 * 2 * 2 * 32
    packed = plan(dataclasses.replace(question, base="nf4"))
    matrices = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    assert full.memory["parameters"] - packed.memory["parameters"] == matrices * (16 - (4 + 8 / 64 + 32 / 64 / 256)) / 8
    # Two tables of 128,256 rows and 65 norms, of two bytes each here; peft makes them fp32 (its utils/other.py).
    kept = (2 * 128256 * 4096 + 65 * 4096) * 2 / 2**30
    assert any(f"keeps in fp32: {kept:.2f} GiB more" in note for note in packed.notes)
    assert any(note.startswith("unpacking the frozen matrices") for note in packed.notes)
    fp32 = plan(dataclasses.replace(question, base="nf4", precision="fp32"))
    assert not any("keeps in fp32" in note for note in fp32.notes) and not any("packed" in note for note in full.notes)
    every = plan(dataclasses.replace(question, lora_targets=("all",)))
    assert every.trainable == trained + 32 * 16 * ((4096 + 1024) + (4096 + 4096) + 3 * (4096 + 14336))
    frozen = plan(dataclasses.replace(question, lora_rank=None, frozen=("token embedding",)))
    assert frozen.trainable == frozen.parameters - 128256 * 4096


@pytest.mark.parametrize(
    "question",
    [
        Question(70e9),
        Question(70e9, tokens=1e12, price_per_hour=1, watts=1),
        Question(MODELS["mixtral-8x7b"], tokens=1e12, steps=10**5, count=8),
        Question(MODELS["gpt2"], lora_rank=4, base="nf4"),
        Question(MODELS["llama-3-8b"], batch=8, count=4, chunks=4),
    ],
)
def test_json_has_all_keys_in_every_answer(question):
    answer = plan(question)
    values = answer.as_dict()
    assert list(values) == list(KEYS) and values["schema"] == 4
    assert json.loads(json.dumps(values)) == values
    assert all(len(line) <= 80 for line in str(answer).splitlines())
    assert all(len(line) <= 80 for line in explanations(answer).splitlines())
    assert "\nfits" not in explanations(answer) and "fits = " in explanations(answer)
    factors = [change.largest for change in sensitivity(answer)]
    assert factors and factors == sorted(factors, reverse=True)


#: What others rely on: a key that goes, or is renamed, is a new schema.
SCHEMA_KEYS = """schema command model parameters trainable_parameters accelerator count sharded precision optimizer
attention checkpointing chunks lora_rank base batch sequence accumulate global_batch tokens steps implied_global_batch mfu
device layout step_seconds wire_bytes layouts peak_flops_per_second flops six_nd_flops recomputed_fraction days
memory_bytes peak_moment total_bytes uneven_experts_bytes
allowance_bytes available_bytes fits advice largest_model accelerator_hours cost energy_kwh notes"""


def test_the_keys_of_the_schema_stay():
    assert set(SCHEMA_KEYS.split()) <= set(KEYS)


def test_sensitivity_changes_one_input_at_a_time():
    changes = {change.what: change for change in sensitivity(plan(Question(70e9, tokens=1e12, count=64)))}
    assert changes["tokens +10%"].days == pytest.approx(1.1) and changes["tokens +10%"].bytes == 1
    assert changes["accelerators × 2 (128)"].days == pytest.approx(0.5)
    assert changes["MFU -10%"].days == pytest.approx(1 / 0.9)
    assert changes["parameters +10%"].days == pytest.approx(1.1) == changes["parameters +10%"].bytes
    assert "sharded" not in {change.what for change in sensitivity(plan(Question(MODELS["gpt2"], tokens=1e9)))}
    most = {change.what: change for change in sensitivity(plan(Question(70e9, tokens=1e12, mfu=0.95)))}
    assert most["MFU +5%"].days == pytest.approx(0.95), "no more than all"
    assert "MFU +10%" not in most
    for mfu in (1.0, 0.9999):
        least = {change.what for change in sensitivity(plan(Question(70e9, tokens=1e12, mfu=mfu)))}
        assert {what for what in least if what.startswith("MFU")} == {"MFU -10%"}


def test_more_layers_are_like_the_last_ones():
    """A pattern of layers would begin anew, and the layer beyond the tenth be dense like the first."""
    ten = TransformerConfig(
        layers=10, d_model=64, heads=4, d_ff=256, vocab=100, context=64, experts=8, experts_per_token=2,
        sparse_layers=(False, *[True] * 9), positions="rope", window=16, window_layers=(True, False) * 5,
    )  # fmt: skip
    changed = {change.what: change for change in sensitivity(plan(Question(ten, batch=1, tokens=1e9)))}
    kinds = {"sparse_layers": (False, *[True] * 10), "window_layers": (*ten.window_layers, False)}
    eleven = dataclasses.replace(ten, layers=11, **kinds)
    more = plan(Question(eleven, batch=1, tokens=1e9)).memory.total / plan(Question(ten, batch=1)).memory.total
    assert changed["layers +10%"].bytes == more > 1.05


def test_the_answer_says_whose_modules_its_bytes_are_for():
    question = Question(MODELS["gpt2"], sequence=256, batch=8, optimizer="sgd")
    course, cpu = (plan(dataclasses.replace(question, device=device)) for device in ("cuda", "cpu"))
    assert "activation bytes: this kit's PyTorch modules, not fused, by CUDA's rules" in " ".join(str(course).split())
    assert "not fused, by a CPU's rules" in " ".join(str(cpu).split())
    tpu = " ".join(str(plan(dataclasses.replace(question, accelerator="tpu-v5e"))).split())
    assert "computed, not measured, and nothing of it on Google" in tpu and "nothing of it on" not in str(course)
    # Gradients are not forgotten where the peak is before them.
    assert course.moment == "loss" and "gradients                     0.00 GiB  (none at this moment)" in str(course)


def test_a_fused_optimizer_is_advised_where_its_step_is_the_peak():
    step = {"precision": "bf16", "batch": 1, "sequence": 512, "checkpointing": True, "memory_bytes": 29e9, "chunks": 8}
    answer = plan(Question(MODELS["llama-3.2-3b"], allowance=0, **step))
    assert answer.moment == "optimizer step" and not answer.fits
    assert str(answer.advice[0]) == "a fused optimizer (--fused): no more FLOPs, and one kernel for the whole step"
    fused = plan(Question(MODELS["llama-3.2-3b"], allowance=0, fused=True, **step))
    assert fused.fits and fused.as_dict()["fused"] and "(bf16, fused adamw, batch 1 × 512" in str(fused)
    with pytest.raises(ValueError, match="torch has no fused 'lion': take one of sgd, momentum, adagrad, adam, adamw"):
        plan(Question(MODELS["gpt2"], optimizer="lion", fused=True))
    # So is what --find shows.
    cluster = {"count": 8, "accelerator": "h100-sxm", "sequence": 512, "checkpointing": True, "chunks": 8, "limit": 1}
    peaks = [find_layouts(MODELS["llama-3.2-3b"], fused=fused, **cluster)[0].peak.total for fused in (False, True)]
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("accelerator", ["gb300", "gb200"])
def test_a_rack_of_72_is_one_node(accelerator):
    """Experts shared by 64 of them send nothing between nodes; a row of benchmarks/published.toml could not be so quick else."""
    question = Question(
        MODELS["gpt-oss-120b"], accelerator=accelerator, memory_bytes=186e9, layout="ep=64,microbatches=5", batch=1,
        sequence=4096, mfu=1, attention="flash_attention",
    )  # fmt: skip
    answer = plan(question)
    assert answer.question.per_node == 72 and answer.link_bytes == 0 and answer.seconds.between == 0
    assert plan(dataclasses.replace(question, accelerator="h100-sxm")).seconds is None, "that has eight"
    # Of several racks, layouts of powers of two have 64 each.
    many = dataclasses.replace(question, layout="ep=64,dp=2,microbatches=5", between_nodes=50e9)
    assert plan(many).question.per_node == 64


@pytest.mark.parametrize("states", [{"optimizer": "sgd"}, {"optimizer": "adamw", "fused": True}])
def test_what_find_shows_is_of_the_question_that_was_asked(states):
    model, machine = MODELS["llama-3.2-1b"], {"between_nodes": 10e9, "node": 4}
    step = {"batch": 2, "sequence": 64, "precision": "bf16", "attention": "sdpa", "checkpointing": True, "chunks": 2}
    asked = plan(
        Question(
            model,
            count=8,
            global_batch=64,
            accelerator="a100-sxm-40gb",
            allowance=0,
            product_rate=0.2,
            **machine,
            **step,
            **states,
        )
    )
    machine["matmul_efficiency"] = 0.2
    rows = found(asked, limit=6)
    chip = accelerator("a100-sxm-40gb")
    for one in rows:
        assert one.peak == step_peak(model, layout=one.layout, device="cuda", **step, **states)
        seconds = step_seconds(model, layout=one.layout, accelerator=chip, device="cuda", **machine, **step)
        assert one.seconds.upper == pytest.approx(seconds.upper)
        assert one.layout.data_ranks * one.layout.microbatches * 2 == 64
    direct = find_layouts(
        model, count=8, accelerator=chip, global_batch=64, memory_bytes=chip.memory_bytes, limit=99, by="likely", device="cuda",
        **machine, **step, **states,
    )  # fmt: skip
    assert rows[0].seconds.likely <= 1.05 * direct[0].seconds.likely
    assert {one.layout for one in rows} <= {one.layout for one in direct}


def test_a_step_at_the_mfu_in_json():
    """gpt2: 3 · 2 FLOPs a parameter of the products, and of pairs 6 · 2 · 12 · 1024 · 768, on a tenth of 989.4 TFLOP/s."""
    answer = plan(Question("gpt2", mfu=0.1, batch=4, sequence=1024)).as_dict()
    products = 12 * 12 * 768**2 + 50257 * 768
    step = 4096 * (6 * products + 6 * 2 * 12 * 1024 * 768) / (0.1 * 989.4e12)
    assert answer["mfu_step_seconds"] == pytest.approx(step)
    assert answer["mfu_tokens_per_second"] == pytest.approx(4096 / step)
    assert plan(Question(1e9)).as_dict()["mfu_tokens_per_second"] is None


def test_where_no_change_helps_the_verdict_says_what_may():
    answer = plan(Question("deepseek-v3", count=64))
    text = " ".join(str(answer).split())
    pointer = "layouts that divide a sequence or a layer may fit on these 64 accelerators: --checkpointing --find"
    assert answer.advice == () and f"GiB too much, and no change that was tried is enough; {pointer}" in text
    assert text.count("may fit on these") == 1


def test_the_peak_is_that_of_the_products_and_the_mfu_is_the_one_given():
    run = Question(MODELS["gpt2"], tokens=1e9, batch=1, sequence=512)
    chip = accelerator("h100-sxm")
    for precision, peak in (("autocast", chip.peak("bf16")), ("fp32", chip.peak("fp32"))):
        one = plan(dataclasses.replace(run, precision=precision))
        assert one.days == pytest.approx(one.flops / (0.4 * peak * 86400))
    half, whole = (plan(dataclasses.replace(run, product_rate=rate)).seconds.compute for rate in (0.25, 0.5))
    assert half == pytest.approx(2 * whole)


def test_an_optimizer_is_known_by_its_name_in_any_case_and_fused_where_torch_has_it():
    run = Question(MODELS["gpt2"], batch=1, sequence=64, fused=True)
    assert plan(dataclasses.replace(run, optimizer="AdamW")).memory == plan(run).memory
    with pytest.raises(
        ValueError, match=r"torch has no fused 'nadam': take one of sgd, momentum, adagrad, adam, adamw"
    ):
        plan(dataclasses.replace(run, optimizer="nadam"))


def test_adapters_everywhere_leave_the_router_alone():
    tuned = plan(Question(MODELS["mixtral-8x7b"], batch=1, sequence=64, lora_rank=8, lora_targets=("all",)))
    assert "router" not in tuned.question.lora_targets and len(tuned.question.lora_targets) == 7


def test_a_pipeline_says_what_interleaved_stages_would_wait():
    """By hand, 4 stages and 8 micro-batches: of 4 groups on each rank a stage waits as long as 3/4 of a micro-batch takes."""
    question = Question(MODELS["llama-3-8b"], layout="pp=4,fsdp=2,microbatches=8", sequence=512)
    said = " ".join(str(plan(question)).split())
    assert f"{100 * (3 / 4) / (8 + 3 / 4):.1f} % for v = 4" in said
    alone = dataclasses.replace(question, layout="fsdp=8")
    many = dataclasses.replace(question, layout="pp=2,fsdp=4,microbatches=64")
    assert not [note for each in (alone, many) for note in plan(each).notes if "interleaved" in note]


def test_a_layout_that_another_outdoes_is_not_shown():
    question = Question("llama-3-8b", count=64, checkpointing=True, between_nodes=50e9)
    rows = found(plan(question), limit=6)
    every = find_layouts(
        MODELS["llama-3-8b"], count=64, accelerator="h100-sxm", sequence=4096, checkpointing=True, between_nodes=50e9,
        matmul_efficiency=0.8, device="cuda", memory_bytes=rows[0].peak.total + rows[0].margin, limit=10**6, by="likely",
    )  # fmt: skip

    def numbers(one):
        kinds = sum(getattr(one.layout, axis) > 1 for axis in ("dp", "zero1", "zero2", "fsdp", "tp", "pp", "cp", "ep"))
        return one.seconds.likely, one.seconds.upper, one.seconds.lower, one.peak.total, kinds

    def outdone(one):
        return any(
            numbers(other) != numbers(one) and all(a <= b for a, b in zip(numbers(other), numbers(one), strict=True))
            for other in every
        )

    shown = {one.layout for one in rows}
    assert not any(outdone(one) for one in every if one.layout in shown)
    assert sum(outdone(one) for one in every) > len(every) / 2
    text = [str(one.layout) for one in rows]
    assert "zero2=64" in text and "zero1=64" not in text and "dp=64" not in text


def test_layouts_come_by_what_products_wait_for_and_the_simplest_first_where_they_are_equal():
    """At 8k, a model of 405B on 512: no ten ways to divide a sequence, which only the bound without overlap puts first."""
    question = Question("llama-3.1-405b", count=512, sequence=8192, checkpointing=True, between_nodes=50e9)
    rows = found(plan(question), limit=4)
    likely = [one.seconds.likely for one in rows]
    assert all(before <= 1.051 * after for before, after in itertools.pairwise(likely))
    assert sum(one.layout.cp > 1 for one in rows) <= 2 and str(rows[0].layout) == "microbatches=2,fsdp=256,tp=2,sp=true"
    simple = Question("llama-3-8b", count=16, checkpointing=True, between_nodes=50e9)
    assert str(found(plan(simple), limit=1)[0].layout) == "fsdp=16"


@pytest.mark.parametrize("other", ["fsdp=8,tp=2", "ep=8,fsdp=16", "fsdp=8,cp=2", "fsdp=8,dp=2", "pp=2,fsdp=8"])
def test_of_layouts_that_take_as_long_each_kind_of_ranks_counts_before_the_bytes(other):
    simple, several = (
        SimpleNamespace(layout=as_layout(layout), seconds=SimpleNamespace(likely=seconds), margin=margin)
        for layout, seconds, margin in (("fsdp=16", 1.04, 1), (other, 1.0, 2))
    )
    assert _in_order([several, simple]) == [simple, several]
    # Of as many kinds, the roomier one; and what takes longer by more than a twentieth comes behind.
    roomy = SimpleNamespace(layout=as_layout("zero2=16"), seconds=simple.seconds, margin=3)
    slow = SimpleNamespace(layout=simple.layout, seconds=SimpleNamespace(likely=1.06), margin=9)
    assert _in_order([slow, simple, several, roomy]) == [roomy, simple, several, slow]


def test_a_layout_waits_as_long_in_the_table_as_in_its_own_answer():
    question = Question("llama-3-8b", count=16, checkpointing=True, between_nodes=50e9, global_batch=16, sequence=8192)
    rows = [one for one in found(plan(question), limit=99) if one.layout.pp > 1]
    for one in rows:
        alone = plan(dataclasses.replace(question, layout=one.layout, count=one.layout.count))
        assert (one.seconds.bubble, one.seconds.lower) == pytest.approx((alone.causal.bubble, alone.causal.lower))
        assert alone.as_dict()["step_seconds"]["bubble"] == alone.causal.bubble != alone.seconds.bubble
    assert rows
