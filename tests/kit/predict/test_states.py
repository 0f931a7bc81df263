"""What a rank holds between steps, for a model so small that every tensor is counted by hand."""

import dataclasses
import doctest

import pytest

from cs336kit.predict import (
    POLICIES,
    TransformerConfig,
    engine,
    program,
    training_memory,
)
from cs336kit.predict.engine.gathered import Beside
from cs336kit.predict.engine.ledger import Ledger
from cs336kit.predict.engine.operations import Repeat, Storage
from cs336kit.predict.engine.states import gradient_bytes, state_requests, states, step_bytes, temporary_requests
from cs336kit.predict.engine.walk import Walk
from cs336kit.predict.engine.writer import Writer
from cs336kit.predict.training import both_passes

LITTLE = TransformerConfig(layers=2, d_model=16, heads=2, vocab=40, context=64, positions="none", bias="none")
MIXTURE = dataclasses.replace(LITTLE, experts=4, experts_per_token=2)
#: tensors: a table, in each of 2 blocks 4 + 2 matrices and 2 norms of 2 vectors, and a final norm
TENSORS = 1 + 2 * (6 + 4) + 2
MATRICES, VECTORS = 4 * 16 * 16 + 2 * 64 * 16, 4 * 16
TOTAL = 40 * 16 + 2 * (MATRICES + VECTORS) + 2 * 16
#: what one of three ranks has of it, in rows rounded up
THIRD = 14 * 16 + 2 * (4 * 6 * 16 + 22 * 16 + 6 * 64 + 4 * 6) + 2 * 6


def walked(layout=None, config=LITTLE, precision="mixed", **options):
    return program(config, batch=2, sequence=8, precision=precision, attention="sdpa", layout=layout, **options)


@pytest.mark.parametrize(
    ("layout", "parameters", "gradients", "state"),
    [
        (None, TOTAL, TOTAL, TOTAL), ("dp=3", TOTAL, TOTAL, TOTAL), ("zero1=3", TOTAL, TOTAL, THIRD),
        ("zero2=3", TOTAL, THIRD, THIRD), ("fsdp=3", THIRD, THIRD, THIRD),
    ],
)  # fmt: skip
def test_each_stage_shares_one_thing_more(layout, parameters, gradients, state):
    assert dict(states(walked(layout), "adamw")) == {
        "parameters": 2 * parameters, "gradients": 2 * gradients, "optimizer state": 2 * 4 * state + 4 * TENSORS,
        "master weights": 4 * state,
    }  # fmt: skip


def test_the_buckets_of_a_step_are_those_of_one_rank():
    found = training_memory(LITTLE, batch=2, sequence=8, layout="fsdp=3")
    held = [found[name] for name in ("parameters", "gradients", "optimizer state")]
    assert held == [4 * THIRD, 4 * THIRD, 2 * 4 * THIRD + 4 * TENSORS]


def test_experts_are_shared_by_fewer_ranks():
    # Of 4 experts a rank has 2, divided over 2 ranks; everything else is divided over 4.
    experts = 2 * 2 * 64 * 16 // 2
    rest = 10 * 16 + 2 * (4 * 4 * 16 + 16 + 4 * 4) + 2 * 4
    assert states(walked("ep=2,fsdp=2", MIXTURE), "sgd")["parameters"] == 2 * (rest + 2 * experts)


def test_shares_of_packed_matrices_are_rounded_up_to_bytes():
    # In 4 bits, with a byte for 64 of them and 4 for 256 such bytes: 136 bytes of attention's 256 weights, of which a rank has
    # 3 of 16 rows; 532 of 1,024, of which it has 10 of 64 rows, or 3 of 16.
    matrices = 4 * 26 + 84 + 100
    assert (136 * 48 / 256, 532 * 160 / 1024, 532 * 192 / 1024) == (25.5, 83.125, 99.75)
    # In bf16 table, norms, and adapters of queries and values.
    rest = 6 * 16 + 2 * (4 * 3) + 2 * 3 + 2 * 2 * (16 + 3 * 2)
    found = states(walked("fsdp=7", precision="bf16", lora_rank=2, base="nf4"), "adamw")
    assert found["parameters"] == 2 * matrices + 2 * rest


def test_what_is_frozen_has_no_state():
    config = dataclasses.replace(LITTLE, tied_head=False)
    found = states(walked(config=config, frozen=("token embedding",), precision="fp32"), "adamw")
    assert dict(found) == {
        "parameters": 4 * (TOTAL + 640), "gradients": 4 * TOTAL, "optimizer state": 8 * TOTAL + 4 * TENSORS,
    }  # fmt: skip


def test_muon_takes_the_matrices_of_blocks_and_adamw_the_rest():
    others = TOTAL - 2 * MATRICES
    one = walked()
    assert states(one, "muon")["optimizer state"] == 4 * 2 * MATRICES + 8 * others + 4 * (TENSORS - 12)
    # Counters lie in the host's memory: one tensor for each of 12 matrices, two for everything else.
    requests = [*state_requests(one, "muon", "foreach")]
    assert sum(requests) == 4 * 2 * MATRICES + 8 * others and len(requests) == 12 + 2 * (TENSORS - 12)
    single = [*state_requests(walked(config=dataclasses.replace(LITTLE, layers=1)), "muon", "foreach")]
    assert sum(single) == 4 * MATRICES + 8 * (others - VECTORS) and len(single) == 6 + 2 * 7


def test_muon_takes_each_expert_of_a_rank_as_a_matrix():
    # 2 experts of 4 in each of 2 layers, over 2 ranks; 4 matrices of attention and the router over 4; and all vectors.
    experts, others, vectors = 2 * (32 * 16 + 8 * 64), 4 * 4 * 16 + 16, 10 * 16 + 2 * 4 * 4 + 2 * 4
    found = states(walked("ep=2,fsdp=2", MIXTURE), "muon")["optimizer state"]
    assert found == 4 * 2 * (experts + others) + 8 * vectors + 4 * (1 + 2 * 4 + 2)


@pytest.mark.parametrize("layout", ["ep=2", "ep=2,dp=3"])
def test_muon_takes_each_whole_expert_of_a_rank_as_a_matrix(layout):
    one, counters = walked(layout, MIXTURE), 4 * (1 + 2 * 4 + 2)
    matrices, others = 2 * (2 * 2 * 64 * 16 + 4 * 16 * 16 + 4 * 16), 40 * 16 + 2 * VECTORS + 2 * 16
    assert states(one, "muon")["optimizer state"] == 4 * matrices + 8 * others + counters
    assert sum(state_requests(one, "muon", "foreach")) == 4 * matrices + 8 * others


def test_the_allocator_rounds_every_tensor_up_to_512_bytes():
    one = walked()
    # In bytes of 2: the table 1,280, a matrix of attention 512, one of the MLP 2,048, a vector 32.
    halves = 1536 + 2 * (4 * 512 + 2 * 2048 + 4 * 512) + 2 * 512
    wholes = 2560 + 2 * (4 * 1024 + 2 * 4096 + 4 * 512) + 2 * 512
    assert dict(states(one, "adamw", allocated="foreach")) == {
        "parameters": halves, "gradients": halves, "optimizer state": 2 * wholes, "master weights": wholes,
    }  # fmt: skip
    assert states(one, "adamw", allocated="fused")["optimizer state"] == 2 * wholes + 512 * TENSORS
    # ASGD has its three scalars where the parameters are.
    assert states(one, "asgd", allocated="foreach")["optimizer state"] == wholes + 3 * 512 * TENSORS
    third = states(walked("zero1=3"), "sgd", allocated="foreach")
    assert (
        third["parameters"] == halves
        and third["master weights"] == 1024 + 2 * (4 * 512 + 1536 + 1536 + 4 * 512) + 2 * 512
    )
    assert gradient_bytes(one) == 2 * TOTAL and gradient_bytes(one, 512) == halves
    assert step_bytes(one, "adamw", "foreach", 512) == wholes


def test_a_ledger_counts_every_byte_and_rounds_where_it_is_told_to():
    seven, nothing = Storage("seven", 7), Storage("nothing", 0)
    for ledger, size in ((Ledger(), 7), (Ledger(round_to=4), 8)):
        assert ledger.live == ledger.gradients == 0 and (ledger.size(seven), ledger.size(nothing)) == (size, 0)
        ledger.hold(seven)
        ledger.keep(seven)
        ledger.see("now", "here", (1, 5))
        assert (
            ledger.peaks["now"].bytes == ledger.live + (6 if size == 7 else 4 + 8)
            and ledger.kept == ledger.live == size
        )
        # Two hold it: the first one lets go of its own, the second one of what five runs have.
        ledger.live = 5 * size
        ledger.drop_runs(seven, 5)
        assert ledger.live == 5 * size
        ledger.drop_runs(seven, 5)
        assert ledger.live == 0 and not ledger.holds
    assert Ledger(before=3).live == Ledger(before=3).gradients == 3


def repeat(ledger, block, run, gathers=None):
    """What is alive before, and the difference that each run of the block makes."""
    start = ledger.first_run()
    run()
    return start.live, ledger.other_runs(start, block, gathers)


def test_of_moments_that_are_equally_high_the_first_counts():
    ledger, block = Ledger(), Repeat("block", 1, ())
    repeat(ledger, block, lambda: ledger.see("forward", "first"))
    ledger.see("forward", "second")
    repeat(ledger, block, lambda: ledger.see("forward", "third"))
    assert ledger.peaks["forward"].place == "first"


class Gathering:
    """What is gathered in each of the runs, and reduced."""

    def __init__(self, *runs):
        self.runs = runs

    def at(self, moment, block, run):
        return Beside(*self.runs[run])


@pytest.mark.parametrize(
    ("gathers", "run", "beside", "gathered"),
    [
        # Each run has 7 bytes more than the one before: the last has most.
        (None, 3, 0, 4), (Gathering((4, 0), (4, 0), (4, 0), (4, 0)), 3, 0, 4),
        # Beside them more is gathered in the second run, or reduced in the third, than in the others.
        (Gathering((4, 0), (24, 0), (4, 0), (4, 0)), 1, 20, 24), (Gathering((4, 0), (4, 0), (4, 8), (4, 0)), 2, 8, 4),
        # Of the second and the last, the first that has most.
        (Gathering((4, 0), (18, 0), (4, 0), (4, 0)), 1, 14, 18), (Gathering((40, 0), (4, 0), (4, 0), (4, 0)), 0, 0, 40),
    ],
)  # fmt: skip
def test_the_run_of_a_repeated_block_that_has_most(gathers, run, beside, gathered):
    ledger = Ledger()
    ledger.stand(Beside(gathered if run == 0 else 4))

    def once():
        ledger.see("backward", "here")
        ledger.hold(Storage("more", 7))
        ledger.gradients += 2
        ledger.kept += 3

    before, each = repeat(ledger, Repeat("block", 4, ()), once, gathers)
    assert (before, each, ledger.live, ledger.gradients, ledger.kept) == (0, 7, 4 * 7, 4 * 2, 4 * 3)
    first = gathered if run == 0 else 4
    assert ledger.peaks["backward"] == (first + 7 * run + beside, 2 * run, 3 * run, "here", gathered)


def test_a_run_that_changes_nothing_is_no_later_peak():
    ledger = Ledger()

    def once():
        ledger.see("backward", "here")
        ledger.gradients += 2

    repeat(ledger, Repeat("block", 3, ()), once, Gathering((0, 0), (0, 0), (0, 0)))
    assert ledger.peaks["backward"].gradients == 0 and ledger.gradients == 3 * 2


def written(*, passes):
    """Ten numbers in fp32 with two uses: cast to bf16 twice, or handed on as they are."""
    b = Writer(POLICIES["fp32"])
    y = b.computed("rows", "repeat", (b.parameter("norms", 2),), (10,))
    if passes:
        first, second = b.passed("first", "copy", (y,), (10,)), y
    else:
        first, second = (b.pointwise(place, "cast", y, dtype="bf16") for place in ("first", "second"))
    total = b.passed("total", "add", (first, second), (10,))
    loss = b.computed("loss", "mean", (total,), ())
    b.free(y, first, total, *(() if passes else (second,)))
    return b.program(loss)


def test_a_second_gradient_is_added_in_place_unless_somebody_else_holds_the_first():
    for passes, in_place, most in (
        # What casts return in fp32 and their 20 bytes; or in a third tensor the sum, when those are gone.
        (False, True, 20 + 2 * 40 + 2 * 2), (False, False, 3 * 40 + 2 * 2),
        # The same gradient comes twice, so that no sum can take its place.
        (True, True, 2 * 40 + 2 * 4), (True, False, 2 * 40 + 2 * 4),
    ):  # fmt: skip
        listed = written(passes=passes)
        walk = both_passes(Walk(listed, sums_in_place=in_place), listed)
        assert walk.ledger.peaks["embedding backward"].bytes == most


def test_an_operation_before_a_checkpointed_block_keeps_what_it_needs_until_it_is_done():
    b = Writer(POLICIES["fp32"])
    x = b.computed("rows", "repeat", (b.parameter("norms", 2),), (10,))
    y = b.combined("product", "mul", x, b.parameter("norms", 1), saves=(x,))
    with b.repeat("block", 1, checkpoint=y), b.within("mlp", part="mlp"):
        z = b.pointwise("gelu", "gelu", y, saves="input")
    loss = b.computed("loss", "mean", (z,), ())
    b.free(x, y, z)
    listed = b.program(loss)
    walk = both_passes(Walk(listed), listed)
    # Of the product x, the incoming gradient, and two as large as that; then the sum of one of them, beside the loss and 1.
    assert walk.ledger.peaks["embedding backward"].bytes == 4 * 40 + 4 + 2 * 4


def test_temporary_tensors_of_a_step():
    one = walked()
    assert step_bytes(one, "adamw", "foreach") == 4 * TOTAL and step_bytes(one, "adagrad", "foreach") == 8 * TOTAL
    assert (
        step_bytes(one, "adamw", "fused") == step_bytes(one, "lion", "foreach") == step_bytes(one, "asgd", "loop") == 0
    )
    # In the loop two tensors of the MLP's second matrix, and one that the first has left.
    assert step_bytes(one, "adamw", "loop") == 4 * (2 + 1) * 1024
    # From the last matrix of a block, the MLP's of 256 numbers, to the first of the next, queries of 512: where there is one.
    sizes = {"d_model": 8, "heads": 4, "kv_heads": 1, "head_dim": 16, "d_ff": 32, "vocab": 10}
    wide = dataclasses.replace(LITTLE, **sizes, norm_scale=False, norm_bias=False)
    for layers, most in ((1, 128 + 2 * 512), (2, 256 + 2 * 512)):
        assert step_bytes(walked(config=dataclasses.replace(wide, layers=layers)), "adamw", "loop") == 4 * most
    assert step_bytes(walked("zero1=3"), "adamw", "foreach") == 4 * THIRD
    for optimizer, times in (("adamw", 1), ("adagrad", 2), ("nadam", 1), ("lion", 0)):
        requests = [*temporary_requests(one, optimizer, "foreach")]
        assert sum(requests) == 4 * times * TOTAL and len(requests) == times * TENSORS
    assert [*temporary_requests(one, "adamw", "loop")] == []
    assert sum(temporary_requests(walked("zero1=3"), "adamw", "foreach")) == 4 * THIRD
    adapters = walked(lora_rank=2, precision="bf16")
    # Query and value of both blocks: two factors of 2 · 16 numbers each.
    assert (
        sum(temporary_requests(adapters, "adamw", "foreach"))
        == step_bytes(adapters, "adamw", "foreach")
        == 2 * 2 * 2 * 64
    )


def test_the_number_that_the_docstring_of_the_engine_follows_is_right():
    assert doctest.testmod(engine) == (0, 12)
