"""Ranks of lm's parallel decoder beside predict: a part of the table that `python -m benchmarks.layouts` prints in full."""

from dataclasses import replace

import pytest
import torch

from benchmarks.ranks import GPT, LLAMA, QUANTITIES, STEP, Case, cases, counted, predicted, reasons
from cs336kit import lm, measure
from cs336kit.measure.ranks import fake_ranks
from cs336kit.predict import Layout, parameters, peak_moments

CASES = {f"{case.kind} {case.layout} {case.stage}": case for case in cases()}


def test_there_are_more_than_forty_layouts_without_any_difference():
    exact = {(case.kind, case.layout) for case in CASES.values() if not reasons(case)}
    assert len(exact) >= 40


@pytest.mark.parametrize(
    "name",
    [
        "gpt dp=4 0", "gpt zero1=2 0", "llama zero2=4 0", "gpt tp=4,sp=true 0", "llama zero1=4,tp=2,sp=true 0",
        "llama fsdp=2 0", "llama dp=2,fsdp=2,tp=2,sp=true 0",
        "gpt pp=2,tp=4,sp=true 1", "llama pp=2,microbatches=4 0", "mixture ep=2 0",
        "latent tp=2 0", "latent tp=4,sp=true 0", "latent zero2=2,tp=2 0", "latent fsdp=2,tp=2,sp=true 0",
        "bare tp=2 0", "bare tp=4,sp=true 0", "llama microbatches=3,dp=2,fsdp=2 0",
    ],
)  # fmt: skip
def test_a_rank_has_and_sends_what_is_predicted(name):
    case = CASES[name]
    real, said = counted(case), predicted(case)
    differing = {quantity for quantity in QUANTITIES if real[quantity] != said[quantity]}
    assert differing == set(reasons(case)), {quantity: (real[quantity], said[quantity]) for quantity in differing}
    if "sent" not in differing:
        assert real["wires"] == +said["wires"]


@pytest.mark.parametrize("layers", [1, 2])
def test_the_peak_of_fsdp_holds_for_few_blocks_whose_shards_are_padded(layers):
    config = replace(LLAMA, layers=layers, vocab=67, d_ff=93)
    case = Case("llama", config, Layout.parse("fsdp=5"), "sdpa", checkpointing=layers > 1, stage=0)
    assert counted(case)["peak"] == predicted(case)["peak"]


OUTSIDE = ("token embedding", "position embedding", "final norm", "head")


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("config", [GPT, LLAMA])
def test_a_block_is_copied_beside_the_buffer_of_the_one_before(config, layers):
    """Where blocks learn nothing and meet one token, that is the peak: behind what stands before them, or behind a block."""
    config = replace(config, layers=layers, vocab=16, tied_head=False)
    blocks = [name for name in parameters(config) if name not in OUTSIDE]
    token = torch.zeros(2, 1, dtype=torch.int64)
    with fake_ranks(2):
        model = lm.DecoderOnly(config, attention="eager")
        model.blocks.requires_grad_(False)
        ranks = lm.parallelize(model, "fsdp=2")
        del model
        optimizer = ranks.optimizer(lambda group: torch.optim.AdamW(group, foreach=False))

        def step():
            ranks.backward(token, token)
            optimizer.step()
            optimizer.zero_grad()

        step()
        real = measure.peak_bytes(step)
    options = {"layout": "fsdp=2", "attention": "eager", "frozen": blocks}
    moments = peak_moments(config, batch=1, sequence=1, foreach=False, **options)
    assert max(moments, key=moments.get) == "all-gather"
    assert moments["all-gather"] == real


@pytest.mark.parametrize("layout", ["zero1=2", "zero2=4"])
def test_where_gradients_outweigh_activations_a_rank_lets_them_go_earlier_than_predicted(monkeypatch, layout):
    """A block's are taken to be divided together, and whole ones to stay until the optimizer's step; nothing else differs."""
    for name, size in {"batch": 1, "sequence": 2}.items():
        monkeypatch.setitem(STEP, name, size)
    case = Case("llama", LLAMA, Layout.parse(layout), "sdpa", checkpointing=False, stage=0)
    real, said = counted(case), predicted(case)
    assert {quantity for quantity in QUANTITIES if real[quantity] != said[quantity]} == {"peak"}
    assert real["peak"] < said["peak"] < 1.6 * real["peak"]


@pytest.mark.parametrize(("attention", "checkpointing"), [("eager", False), ("sdpa", True)])
@pytest.mark.parametrize(("config", "layout"), [(GPT, "tp=2"), (LLAMA, "tp=4"), (LLAMA, "tp=2,sp"), (LLAMA, "tp=4,sp")])
def test_the_peak_of_a_rank_of_tp_holds_where_it_is_in_the_blocks(config, layout, attention, checkpointing):
    config = replace(config, vocab=4, context=64)
    case = Case("", config, Layout.parse(layout), attention, checkpointing, stage=0)
    assert counted(case)["peak"] == predicted(case)["peak"]


@pytest.mark.parametrize("vocab", [4, 16, 64])
def test_the_peak_of_a_head_holds_where_the_positions_are_divided_and_the_vocabulary_is_small(vocab):
    """Then it is not at the logits, but where the gradient of the head's input is laid out for the other ranks."""
    config = replace(LLAMA, layers=1, vocab=vocab)
    case = Case("llama", config, Layout.parse("tp=4,sp"), "sdpa", checkpointing=False, stage=0)
    assert counted(case)["peak"] == predicted(case)["peak"]


@pytest.mark.parametrize("final_norm", [False, True])
@pytest.mark.parametrize("vocab", [16, 64])
def test_a_forward_pass_lays_out_once_more_what_ranks_of_sp_gather_and_sum(vocab, final_norm):
    config = replace(LLAMA, layers=1, d_ff=32, vocab=vocab, final_norm=final_norm)
    tokens = torch.zeros(STEP["batch"], STEP["sequence"], dtype=torch.int64)
    with fake_ranks(4):
        ranks = lm.parallelize(lm.DecoderOnly(config), "tp=4,sp")
        real = measure.peak_bytes(lambda: ranks._loss(ranks(tokens), tokens))
    assert peak_moments(config, **STEP, layout="tp=4,sp", foreach=False)["forward"] == real


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (replace(GPT, d_model=64, d_ff=96, vocab=16, final_norm=False), "tp=4,sp"),
        (replace(GPT, layers=2, d_ff=32, bias="none"), "fsdp=2,tp=2,sp"),
    ],
)
def test_the_peak_may_be_where_ranks_of_sp_sum_in_either_pass(config, layout):
    case = Case("gpt", config, Layout.parse(layout), "sdpa", checkpointing=False, stage=0)
    assert counted(case)["peak"] == predicted(case)["peak"]
