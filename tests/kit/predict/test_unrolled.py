"""What stands once in a program and counts for many blocks, against the same written out block by block."""

import random
from dataclasses import replace

import pytest
from few import one_in

from cs336kit import predict
from tests.kit.predict.test_counted_steps import BASE, LIKE

pytestmark = pytest.mark.torch

CONFIG = {
    "dropout": [0.1], "tied_head": [False, True], "vocab": [7, 300], "kv_heads": [1, 2, 4], "bias": ["all", "none", "qkv"],
    "norm_placement": ["pre", "post", "residual", "sandwich"], "inner_norms": [True], "qk_norm": ["none", "head", "width"],
    "window": [None, 5], "head_bias": [True], "positions": ["learned", "rope", "none", "alibi"],
}  # fmt: skip
AXES = {"tp": [1, 2, 4], "pp": [1, 2, 3], "cp": [1, 2], "ep": [1, 2, 4], "dp": [1, 2], "microbatches": [1, 2, 5]}
SOME = {
    "chunks": [2, 3], "lora_rank": [2], "frozen": [("token embedding",), ("attention norm",)], "base": ["nf4"],
    "allocated": [True], "optimizer": ["sgd", "adafactor", "muon"],
}  # fmt: skip


def drawn(r):
    """A configuration, and the options of a step of it."""
    others = {name: r.choice(values) for name, values in CONFIG.items() if r.random() < 0.2}
    config = replace(BASE, **LIKE[r.choice(list(LIKE))] | {"layers": r.choice([1, 2, 3, 4, 5, 6])} | others)
    options = {
        "batch": r.choice([1, 2]), "sequence": r.choice([8, 16]), "precision": r.choice(list(predict.POLICIES)),
        "attention": r.choice(["eager", "sdpa"]), "checkpointing": r.random() < 0.5, "device": r.choice(["cpu", "cuda"]),
    }  # fmt: skip
    options |= {name: r.choice(values) for name, values in SOME.items() if r.random() < 0.2}
    if config.experts and r.random() < 0.5:  # in some layers another expert has all tokens
        none, visits = [0] * (config.experts - 1), options["batch"] * options["sequence"] * config.experts_per_token
        layers = [r.choice([[*none, visits], [visits, *none]]) for _ in range(config.sparse_count)]
        options["expert_tokens"] = layers
    if r.random() < 0.8:
        axes = {name: r.choice(values) for name, values in AXES.items()} | {
            r.choice(["fsdp", "zero1", "zero2"]): r.choice([1, 2, 3])
        }
        axes["sp"] = axes["tp"] > 1 and r.random() < 0.5
        axes |= {"ep": 1, "cp": 1} if "expert_tokens" in options else {}
        options["layout"] = predict.Layout(**axes)
    return config, options


def turns(r):
    """The same with more layers that take turns, here and there with an exception, and mostly with sharded parameters."""
    config, options = drawn(r)
    options.pop("expert_tokens", None)
    layers, period = r.choice([4, 5, 6, 7, 8, 9, 10, 12, 15]), r.choice([2, 2, 3, 4, 5])

    def pattern():
        once = [True, *(r.random() < 0.5 for _ in range(period - 1))]
        each = [once[layer % period] for layer in range(layers)]
        each[-1] ^= r.random() < 0.2
        return tuple(each)

    fields = {"layers": layers, "window": 5, "window_layers": pattern(), "rope_layers": None, "sparse_layers": None}
    if config.experts:
        fields |= {"sparse_layers": pattern(), "dense_d_ff": r.choice([None, 12, 40])}
    if config.positions == "rope" and r.random() < 0.4:
        fields["rope_layers"] = pattern()
    if r.random() < 0.7:
        asked = options.get("layout", predict.Layout())
        options["layout"] = replace(asked, zero1=1, zero2=1, fsdp=r.choice([2, 3, 4]))
    return replace(config, **fields), options


@pytest.mark.parametrize("start", one_in(8, range(0, 800, 100)))
def test_a_step_of_equal_blocks_is_that_of_each_of_them(start):
    check_that_equal_blocks_are_those_of_each(drawn, start)


@pytest.mark.parametrize("start", one_in(3, range(0, 300, 100)))
def test_a_step_of_blocks_that_take_turns_is_that_of_each_of_them(start):
    check_that_equal_blocks_are_those_of_each(turns, start)


def check_that_equal_blocks_are_those_of_each(draw, start):
    """A hundred steps from a seed on."""
    compared = 0
    for seed in range(start, start + 100):
        try:
            config, options = draw(random.Random(seed))
            peak = predict.step_peak(config, **options)
        except ValueError:  # what cannot be divided so, or has no such component
            continue
        compared += 1
        said = (seed, config, options)
        assert peak == predict.step_peak(config, unrolled=True, **options), said
        assert predict.peak_moments(config, **options) == predict.peak_moments(config, unrolled=True, **options), said
        step = {name: value for name, value in options.items() if name not in ("optimizer", "allocated")}
        for count in (predict.saved_activation_bytes, predict.training_flops, predict.traffic_bytes):
            assert count(config, **step) == count(config, unrolled=True, **step), (count, *said)
        timed = {name: value for name, value in options.items() if name != "optimizer"}
        assert predict.step_timeline(config, **timed) == predict.step_timeline(config, unrolled=True, **timed), said
        if "layout" in step:
            assert predict.communication(config, node=4, **step) == predict.communication(
                config, node=4, unrolled=True, **step
            )
    assert compared > 20
