"""Ranks of lm's parallel decoder beside predict: a part of the table that `python -m benchmarks.layouts` prints in full."""

from dataclasses import replace

import pytest
import torch

from benchmarks.ranks import GPT, LLAMA, LOSS_BYTES, LOSSES, QUANTITIES, STEP, Case, cases, counted, predicted, reasons
from cs336kit import lm, measure
from cs336kit.measure.ranks import fake_ranks
from cs336kit.predict import Layout, parameters, peak_moments

CASES = {f"{case.kind} {case.layout} {case.stage}": case for case in cases()}


def test_there_are_more_than_forty_layouts_without_any_difference():
    exact = {(case.kind, case.layout) for case in CASES.values() if not reasons(case)}
    assert len(exact) >= 40


@pytest.mark.proof
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
    if reasons(case).get("peak") == LOSSES:
        assert real["peak"] - said["peak"] == LOSS_BYTES
    if "sent" not in differing:
        assert real["collectives"] == +said["collectives"]


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
        ranks = lm.parallelize(lm.DecoderOnly(config, attention="eager"), "tp=4,sp")
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


#: One token, so that parameters outweigh everything else.
TOKEN = {"batch": 1, "sequence": 1}
FROZEN = ("mlp gate", "mlp up", "mlp down")


@pytest.mark.parametrize(
    ("config", "layout", "options", "step"),
    [
        # What is not trained is not gathered behind a step of the optimizer.
        (LLAMA, "zero1=2", {"frozen": FROZEN}, {}),
        (LLAMA, "pp=2,zero1=2", {"frozen": FROZEN}, {}),
        # Logits that are narrower than fp32 go before the loss.
        (replace(LLAMA, vocab=256, layers=1), "tp=4", {"precision": "bf16"}, {}),
        # A stage holds what it was given though its norm keeps a wider copy, and its output until it has the gradient.
        (LLAMA, "pp=2", {"precision": "bf16", "stage": 1}, {}),
        (LLAMA, "pp=4,schedule=gpipe", {"precision": "bf16", "stage": 1}, {}),
        (replace(LLAMA, d_ff=512), "pp=2,schedule=gpipe", {}, TOKEN),
        # What the last matrix of an MLP reads is held until the ranks have summed, also where no gradient needs it.
        (replace(LLAMA, layers=1, vocab=16, final_norm=False), "tp=4,sp", {"frozen": FROZEN}, {}),
    ],
)  # fmt: skip
def test_a_rank_is_as_predicted_in_other_types_sizes_and_with_less_to_train(monkeypatch, config, layout, options, step):
    for name, size in step.items():
        monkeypatch.setitem(STEP, name, size)
    case = Case("", config, Layout.parse(layout), "sdpa", checkpointing=False, **{"stage": 0, **options})
    real, said = counted(case), predicted(case)
    names = set(QUANTITIES) - ({"peak"} if case.layout.zero_stage else set())
    assert {name: real[name] for name in names} == {name: said[name] for name in names}
    assert real["collectives"] == +said["collectives"]


def test_ranks_that_divide_the_table_know_in_its_backward_pass_which_tokens_are_theirs():
    config = replace(LLAMA, layers=1, d_ff=8, vocab=256, tied_head=True)
    tokens = torch.zeros(3, 1, dtype=torch.int64)
    with fake_ranks(2):
        ranks = lm.parallelize(lm.DecoderOnly(config, attention="eager"), "tp=2")
        real = measure.peak_bytes(lambda: ranks.backward(tokens, tokens))
    moments = peak_moments(config, batch=3, sequence=1, layout="tp=2")
    del moments["optimizer step"]
    assert max(moments, key=moments.get) == "embedding backward"
    assert max(moments.values()) == real


def test_the_last_stage_lets_its_logits_go_when_it_has_the_loss():
    with fake_ranks(2, rank=1):
        ranks = lm.parallelize(lm.DecoderOnly(LLAMA), "pp=2")
        logits = ranks.module(torch.zeros(1, 4, LLAMA.d_model, requires_grad=True))
        loss = ranks.schedule._loss_fn(logits, torch.zeros(1, 4, dtype=torch.int64))
        assert logits.untyped_storage().nbytes() == 0
        loss.backward()
    assert all(parameter.grad is not None for parameter in ranks.module.parameters())
