"""Of the planner's tests those that take longest: long searches, every example of the help, experts drawn at random."""

import dataclasses
import shlex

import pytest

from cs336kit.cli import main
from cs336kit.predict import MODELS, Question, ServingQuestion, find_layouts, plan, serve, step_peak
from cs336kit.predict._planner.find import found
from tests.plans.test_layouts import CLUSTER, GPT2, LLAMA
from tests.plans.test_serving import CHUNKED, ENDLESS, LITTLE, simulated


def test_a_layout_that_another_outdoes_is_not_shown():
    question = Question("llama-3-8b", count=64, checkpointing=True, between_nodes=50e9)
    rows = found(plan(question), limit=6)
    every = find_layouts(
        MODELS["llama-3-8b"], count=64, accelerator="h100-sxm", sequence=4096, checkpointing=True, between_nodes=50e9, mfu=0.8,
        device="cuda", memory_bytes=rows[0].peak.total + rows[0].margin, limit=10**6,
    )  # fmt: skip

    def worse(one, other):
        """No better in seconds and bytes, and in one of them worse."""
        mine, its = ((each.seconds.upper, each.seconds.lower, each.peak.total) for each in (one, other))
        return mine != its and all(a >= b for a, b in zip(mine, its, strict=True))

    front = [one for one in every if not any(worse(one, other) for other in every)]
    assert len(front) < len(every) / 2 and [one.layout for one in rows] == [one.layout for one in front[:6]]
    text = [str(one.layout) for one in rows]
    assert "zero2=64" in text and "zero1=64" not in text and "dp=64" not in text


def test_a_layout_waits_as_long_in_the_table_as_in_its_own_answer():
    question = Question("llama-3-8b", count=16, checkpointing=True, between_nodes=50e9, global_batch=16, sequence=8192)
    rows = [one for one in found(plan(question), limit=99) if one.layout.pp > 1]
    for one in rows:
        alone = plan(dataclasses.replace(question, layout=one.layout, count=one.layout.count))
        assert (one.seconds.bubble, one.seconds.lower) == pytest.approx((alone.causal.bubble, alone.causal.lower))
        assert alone.as_dict()["step_seconds"]["bubble"] == alone.causal.bubble != alone.seconds.bubble
    assert rows


def test_the_bounds_of_a_mixture_are_those_of_tokens_that_choose_by_chance():
    """DeepSeek-V3 in fp8: 8 of 256 experts in 58 of 61 layers, three matrices of 7,168 × 2,048 each, divided among eight."""
    asked = {"weights": "fp8", "accelerator": "h200-sxm", "count": 8}
    answer = serve(ServingQuestion(MODELS["deepseek-v3"], batch=24, **asked))
    expert = 58 * 3 * 7168 * 2048 / 8
    _, one = answer.tokens[0]
    rest = one.bytes - one.cache_bytes - 8 * expert
    for batch, bounds in answer.tokens[:8]:
        expected = simulated(256, 8, batch, rounds=400) * expert + rest
        assert bounds.bytes - bounds.cache_bytes == pytest.approx(expected, rel=0.01)
        if bounds.bound == "memory":
            assert bounds.least == pytest.approx((expected + bounds.cache_bytes) / 4.8e12, rel=0.01)
    # A prompt reads as many as its tokens visit: of eight, the same as eight sequences.
    eight = serve(ServingQuestion(MODELS["deepseek-v3"], prompt=8, output=8, **asked))
    its = {"prompt": eight.prefill, "step": dict(eight.tokens)[8]}
    read = {name: bounds.bytes - bounds.cache_bytes for name, bounds in its.items()}
    assert read["prompt"] == pytest.approx(read["step"], rel=1e-3)


def test_each_chunk_of_a_prompt_reads_the_experts_that_its_tokens_visit():
    config = dataclasses.replace(LITTLE, experts=8, experts_per_token=2, mlp="swiglu")
    chunked = serve(ServingQuestion(config, **CHUNKED, **ENDLESS)).prefill
    expert = 2 * 2 * 3 * 16 * 64  # in both layers, 2 bytes each
    block = 2 * (2 * (4 * 16 * 16 + 8 * 16) + (2 * 2 + 1) * 2 * 16)
    visited = sum(simulated(8, 2, tokens, rounds=40_000) for tokens in (4, 4, 2))
    read = visited * expert + 3 * block + 2 * 16 * 40 + 2 * 10 * 16
    assert chunked.bytes - chunked.cache_bytes == pytest.approx(read, rel=5e-3)
    assert visited < 8 + 8 + 4, "fewer than equal shares"


def test_found_layouts_fill_the_cluster_fit_and_are_in_order():
    found = find_layouts(LLAMA, count=64, sequence=8192, checkpointing=True, limit=5, **CLUSTER)
    assert 0 < len(found) <= 5
    assert [one.seconds.upper for one in found] == sorted(one.seconds.upper for one in found)
    for one in found:
        assert one.layout.count == 64 and one.layout.global_batch(1) == one.seconds.global_batch == 64
        assert one.margin >= 0 and one.seconds.lower <= one.seconds.upper
        options = {"precision": "mixed", "attention": "sdpa", "checkpointing": True, "device": "cuda"}
        assert step_peak(LLAMA, batch=1, sequence=8192, layout=one.layout, **options) == one.peak
    assert find_layouts(LLAMA, count=2, sequence=8192, **CLUSTER) == []
    several = find_layouts(GPT2, count=4, sequence=1024, limit=9, **CLUSTER)
    for limit in (1, 2, 4):
        assert find_layouts(GPT2, count=4, sequence=1024, limit=limit, **CLUSTER) == several[:limit]


def test_layouts_whose_stages_are_not_alike_are_found():
    """Without them, 126 layers have two stages at most on any power of two, and a step takes a tenth longer."""
    found = find_layouts(
        MODELS["llama-3.1-405b"], count=1024, sequence=8192, global_batch=2048, checkpointing=True, limit=1, **CLUSTER
    )
    assert found[0].layout.pp in (4, 8, 16, 32) and 126 % found[0].layout.pp


def test_help_shows_examples_that_work(capsys):
    for command in ("plan", "serve", "optimal", "models"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert all(len(line) <= 80 for line in text.splitlines())
        examples = [line.strip() for line in text.splitlines() if line.strip().startswith("cs336kit ")]
        assert len(examples) >= 3
        for example in examples:
            assert main(shlex.split(example)[1:]) == 0
            assert capsys.readouterr().out
