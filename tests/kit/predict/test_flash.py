"""The kernel of FlashAttention and of serving engines: what torch's fused function keeps, also under windows, caps and sinks."""

from dataclasses import replace

import pytest

import cs336plan
from cs336kit import predict
from cs336kit.predict import MODELS, TransformerConfig

#: a small model whose heads torch's own flash kernel takes
PLAIN = TransformerConfig(
    layers=4, d_model=256, heads=8, kv_heads=2, head_dim=32, d_ff=512, vocab=512, context=4096, mlp="swiglu", norm="rmsnorm",
    positions="rope", bias="none", tied_head=False,
)  # fmt: skip
HOW = {"batch": 2, "sequence": 1024, "precision": "bf16", "device": "cuda"}
WITHOUT_A_KERNEL = {
    "windows": {"window": 128},
    "some windows": {"window": 128, "window_layers": (True, False, True, False)},
    "chunks": {"window": 128, "window_kind": "chunked"},
    "capped scores": {"attention_softcap": 50.0},
}


def kept(config, attention, **more):
    return predict.saved_activation_bytes(config, attention=attention, **HOW | more)


def peak(config, attention, **more):
    return predict.step_peak(config, attention=attention, **HOW | more)


@pytest.mark.parametrize(
    "more", [{}, {"checkpointing": True}, {"precision": "autocast"}, {"precision": "mixed"}], ids=str
)
def test_where_torch_has_a_kernel_it_is_that_one(more):
    assert kept(PLAIN, "flash_attention", **more) == kept(PLAIN, "sdpa", **more)
    assert peak(PLAIN, "flash_attention", **more) == peak(PLAIN, "sdpa", **more)


@pytest.mark.parametrize("changes", WITHOUT_A_KERNEL.values(), ids=WITHOUT_A_KERNEL)
def test_windows_and_caps_keep_no_scores(changes):
    config = replace(PLAIN, **changes)
    assert kept(config, "flash_attention") == kept(PLAIN, "sdpa")
    assert peak(config, "flash_attention") == peak(PLAIN, "sdpa")
    assert kept(config, "sdpa").total > 2 * kept(config, "flash_attention").total
    how = {"batch": 2, "sequence": 1024, "causal": True, "device": "cuda", "precision": "bf16"}
    flash, written_out = (predict.training_flops(config, attention=a, **how) for a in ("flash_attention", "sdpa"))
    differing = {name for name in flash if flash[name] != written_out[name]}
    assert differing == {"attention scores"}
    # The backward pass of a kernel computes its scores again.
    again = 3 * (flash["attention scores"] - written_out["attention scores"])
    assert again == written_out["attention scores"] or (
        config.window_layers and 0 < again < written_out["attention scores"]
    )


def test_sinks_are_parameters_with_gradients():
    config = replace(PLAIN, sinks=True)
    more = config.layers * config.heads * 2
    assert kept(config, "flash_attention") == kept(PLAIN, "sdpa")
    assert predict.parameters(config).total == predict.parameters(PLAIN).total + more // 2
    with_sinks, without = peak(config, "flash_attention"), peak(PLAIN, "sdpa")
    assert with_sinks["parameters"] - without["parameters"] == more
    shapes = {a: predict.program(config, attention=a, **HOW).leaves for a in ("flash_attention", "eager")}
    assert [(x.component, x.tensor.shape) for x in shapes["flash_attention"]] == [
        (x.component, x.tensor.shape) for x in shapes["eager"]
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_torchs_function_has_no_sinks_and_is_left_for_products_that_are_written_out(device):
    config = replace(PLAIN, sinks=True)
    assert kept(config, "sdpa", device=device) == kept(config, "eager", device=device)
    # Of each head all scores, and one more column: two bytes each.
    assert kept(config, "sdpa", device=device)["softmax output"] == 4 * 2 * 2 * 8 * 1024 * 1025


def test_a_kernel_that_pads_widens_keys_and_values_each_to_its_own_multiple():
    config = replace(PLAIN, kv_heads=8, kv_latent=64, rotary_dim=4, head_dim=20, value_dim=12)
    ops = [op for op, _ in predict.program(config, attention="flash_attention", **HOW).operations()]
    (fused,) = [op for op in ops if op.kind == "sdpa"]
    assert [x.shape for x in fused.inputs] == [(2, 8, 1024, 24), (2, 8, 1024, 24), (2, 8, 1024, 16)]
    (cut,) = [op for op in ops if op.place.endswith("flash_attention/slice")]
    assert fused.outputs[0].shape == (2, 8, 1024, 16) and cut.outputs[0].shape == (2, 8, 1024, 12)


def test_slopes_stand_in_no_mask():
    alibi = replace(PLAIN, positions="alibi")
    assert kept(alibi, "flash_attention") == kept(replace(PLAIN, positions="none"), "sdpa")


def test_values_of_another_width_are_taken():
    config = MODELS["deepseek-v3"]
    how = {"batch": 1, "sequence": 4096, "precision": "bf16", "device": "cuda"}
    program = predict.program(config, attention="flash_attention", **how)
    assert {op.kind for op, _ in program.operations()} & {"sdpa", "softmax"} == {
        "sdpa",
        "softmax",
    }  # the router has a softmax
    assert not [op for op, _ in program.operations() if op.kind == "matmul"]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_cache_of_windows_needs_no_scores_either(phase):
    config = replace(PLAIN, window=128, sinks=True)
    for cache in ("growing", "contiguous"):
        program = predict.program(config, attention="flash_attention", phase=phase, cache=cache, **HOW)
        kinds = [op.kind for op, _ in program.operations()]
        assert "sdpa" in kinds and not {"matmul", "softmax"} & {*kinds}


@pytest.mark.parametrize(
    "config, more, said",
    [
        (
            PLAIN,
            {"device": "cpu"},
            "attention='flash_attention' is a kernel of CUDA, and device is 'cpu': give device='cuda'",
        ),
        (
            PLAIN,
            {"precision": "fp32"},
            "attention='flash_attention' computes in bf16 or fp16, and fp32 in fp32: give 'sdpa'",
        ),
        (
            replace(PLAIN, head_dim=264),
            {},
            "attention='flash_attention' takes heads up to 256 wide, and head_dim is 264: give 'sdpa'",
        ),
        (PLAIN, {"attention": "flesh"}, "unknown attention 'flesh'"),
    ],
)
def test_what_it_does_not_take_is_refused(config, more, said):
    with pytest.raises(ValueError) as refused:
        predict.program(config, **{"attention": "flash_attention"} | HOW | more)
    assert str(refused.value).startswith(said)


def test_a_plan_counts_it_where_torch_writes_scores_out():
    windows = replace(PLAIN, window=128)
    question = cs336plan.Question(windows, sequence=1024, memory_bytes=2e8, accelerator=None, allowance=0)
    written_out, fused = (cs336plan.plan(replace(question, attention=kind)) for kind in ("sdpa", "flash_attention"))
    assert [note for note in written_out.notes if "--attention flash_attention" in note]
    assert {"attention": "flash_attention"} in [one.changes for one in written_out.advice]
    assert not [note for note in fused.notes if "flash_attention" in note] and "flash attention" in str(fused)
    assert fused.memory.total < written_out.memory.total
    # Where torch has a kernel, or no other one takes the run, nothing is said.
    for other in ({"model": PLAIN}, {"precision": "fp32"}, {"device": "cpu"}, {"attention": "eager"}):
        assert not [note for note in cs336plan.plan(replace(question, **other)).notes if "flash_attention" in note]


def test_a_plan_takes_it_by_itself_where_torch_would_write_scores_out():
    """One token more than the window changes what such models are run with, and not what a step needs."""
    question = cs336plan.Question("mistral-7b", precision="bf16")
    within, beyond = (cs336plan.plan(replace(question, sequence=sequence)) for sequence in (4096, 4097))
    assert (within.question.attention, beyond.question.attention) == ("sdpa", "flash_attention")
    assert within.memory.total < beyond.memory.total < 1.001 * within.memory.total
    written_out = cs336plan.plan(replace(question, sequence=4097, attention="sdpa"))
    assert written_out.memory.total > 2 * beyond.memory.total
    (note,) = (note for note in beyond.notes if "--attention sdpa" in note)
    both = f"{written_out.memory.total / 2**30:,.2f} GiB together in place of {beyond.memory.total / 2**30:,.2f}"
    assert "as such models are run" in note and both in note
    assert not [note for note in within.notes if "--attention" in note]
    # From scores that are written out, the advice leads there, too.
    eager = cs336plan.plan(replace(question, precision="mixed", sequence=8192, attention="eager"))
    assert "--attention flash_attention" in eager.advice[0].change
    # Where no such kernel takes the run, torch's function is left.
    assert cs336plan.plan(replace(question, sequence=4097, precision="fp32")).question.attention == "sdpa"


def test_serving_holds_no_scores():
    windows = replace(PLAIN, window=128, sinks=True)
    served = [cs336plan.serve(cs336plan.ServingQuestion(config, prompt=2048, output=8)) for config in (PLAIN, windows)]
    assert served[0].working_bytes == served[1].working_bytes < 4 * PLAIN.heads * 2048**2
    # Heads that no such kernel takes are counted as torch computes them.
    wide = cs336plan.serve(cs336plan.ServingQuestion(replace(PLAIN, head_dim=264), prompt=64, output=8))
    assert wide.working_bytes > 0
