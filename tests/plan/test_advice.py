"""What helps where a run does not fit, and what moves an answer: with a memory that is made up, so that each step is seen."""

import dataclasses

import pytest

from cs336kit.predict import MODELS, Layout, TransformerConfig, communication, training_flops
from cs336kit.predict.chip import chip
from cs336plan import Question, plan
from cs336plan.training import advice as planner
from cs336plan.training import costs, words
from cs336plan.training import memory as of
from cs336plan.training.changes import Advice
from cs336plan.training.plan import days_and_bytes
from cs336plan.training.sensitivity import sensitivity, sensitivity_text

LITTLE = TransformerConfig(layers=20, d_model=16, heads=2, vocab=40, context=64, d_ff=60)
RUN = Question(LITTLE, batch=12, sequence=16, attention="eager", accumulate=1)
CHIP, _ = chip(None, memory_bytes=1000, peak_flops_per_second=1e12, bandwidth=1e12)


@dataclasses.dataclass
class Held:
    """So many bytes: 100 that are shared, and 40 for each sequence less what helps."""

    total: int


def advised(question, what, room):
    """Advice for so much memory, of which nothing is left free."""
    return planner.advice(dataclasses.replace(question, allowance=0), chip(what, memory_bytes=room)[0])


def helped(monkeypatch, question, room, *, chunks=4, chunked=0.125):
    def memory(q):
        each = 40 - 20 * (q.attention == "sdpa") - 8 * (q.chunks >= chunks) - 6 * q.checkpointing
        return Held(100 // (q.count if q.sharded else 1) + (q.batch or 0) * each)

    def extra(q, checkpointing=False, chunks=1):
        return 0.25 * (checkpointing or q.checkpointing) + chunked * (max(chunks, q.chunks) > 1)

    monkeypatch.setattr(planner, "memory", memory)
    monkeypatch.setattr(costs, "extra_flops", extra)
    return [(str(one), one.changes, one.slower) for one in advised(question, CHIP, room)]


FUSED = (
    "fused attention (--attention sdpa): less time: scores never leave the chip, though the backward pass computes them again",
    {"attention": "sdpa"}, 0.0,
)  # fmt: skip


def test_whatever_helps_by_itself_the_cheapest_first(monkeypatch):
    # 12 sequences with fused attention take 340, and so do 6 without it.
    assert helped(monkeypatch, RUN, 340) == [
        FUSED,
        (
            "the same batch in more micro-batches (--batch 6 --accumulate 2): no more FLOPs; smaller matrix products may run "
            "less well",
            {"batch": 6, "accumulate": 2, "global_batch": None}, 0.0,
        ),
        (
            "a batch of 6 per accelerator (--batch 6): another global batch, and smaller matrix products may run less well",
            {"batch": 6, "global_batch": None}, None,
        ),
    ]  # fmt: skip
    two = helped(monkeypatch, dataclasses.replace(RUN, batch=2), 140)
    assert [changes for _, changes, _ in two if "batch" in changes] == [
        {"batch": 1, "accumulate": 2, "global_batch": None}, {"batch": 1, "global_batch": None}
    ]  # fmt: skip
    # One byte less, and they are 4 and 5; of twice as many passes.
    twice = helped(monkeypatch, dataclasses.replace(RUN, accumulate=2), 339)
    assert [changes for _, changes, _ in twice] == [
        {"batch": 4, "accumulate": 6, "global_batch": None}, {"batch": 5, "global_batch": None}
    ]  # fmt: skip
    assert {"batch": 11, "global_batch": None} in [changes for _, changes, _ in helped(monkeypatch, RUN, 540)]
    # 100 + 12 · 34 with checkpointing, and 8 less a sequence with chunks, of which four are enough.
    chunked, checkpointed = helped(monkeypatch, RUN, 508)[2:4]
    assert chunked == ("the loss in 4 chunks (--chunks 4): 12.5 % more FLOPs", {"chunks": 4}, 0.125)
    assert checkpointed == (
        "activation checkpointing (--checkpointing): 25.0 % more FLOPs",
        {"checkpointing": True},
        0.25,
    )
    for enough, fits in ((2, True), (32, True), (64, False)):
        found = [changes for _, changes, _ in helped(monkeypatch, RUN, 508, chunks=enough)]
        assert ({"chunks": enough} in found) == fits


@pytest.mark.parametrize(
    ("done", "room", "slower"),
    [
        # Chunks that cost more than checkpointing come after it.
        ({}, 508, [0.0, 0.0, 0.25, 0.5, None, None]),
        # What is done already costs no more than before.
        ({"chunks": 2, "accumulate": 2}, 508, [0.0, 0.0, 0.25, None, None]),
        ({"checkpointing": True}, 460, [0.0, 0.0, 0.5, None, None]),
    ],
)
def test_what_costs_less_comes_first(monkeypatch, done, room, slower):
    found = helped(monkeypatch, dataclasses.replace(RUN, **done), room, chunked=0.5)
    assert [seconds for *_, seconds in found] == slower


def test_what_is_done_already_is_no_advice(monkeypatch):
    done = dataclasses.replace(RUN, attention="sdpa", chunks=2, checkpointing=True, batch=1)
    assert helped(monkeypatch, done, 113) == [(
        "sharding over 2 accelerators (--count 2): 2 times the accelerators, and another global batch",
        {"sharded": True, "count": 2, "global_batch": None}, None)]  # fmt: skip
    # 100 of states on 3 accelerators, and on 12 of them; not on 6.
    three = helped(monkeypatch, dataclasses.replace(done, count=3), 22)
    assert (
        three[0][0] == "sharding over 12 accelerators (--count 12): 4 times the accelerators, and another global batch"
    )
    # A layout gets more ranks that share state, and its other axes stay.
    placed = dataclasses.replace(done, layout="dp=1,tp=2", count=2)
    assert helped(monkeypatch, placed, 39) == [
        ("sharding over 4 accelerators (--layout fsdp=2,tp=2): 2 times the accelerators, and another global batch",
            {"layout": Layout(fsdp=2, tp=2), "count": 4, "global_batch": None}, None)]  # fmt: skip


def test_ranks_of_a_layout_share_what_they_do_not_share_yet(monkeypatch):
    monkeypatch.setattr(planner, "memory", lambda q: Held(90 // q.placed.fsdp))
    monkeypatch.setattr(costs, "extra_flops", lambda q, **_: 0.0)
    question = Question(LITTLE, batch=1, sequence=16, attention="sdpa", chunks=2, checkpointing=True, count=4)
    for layout in ("dp=4", "zero1=4", "dp=2,zero2=2", "fsdp=2,dp=2"):
        one, twice = advised(dataclasses.replace(question, layout=layout), CHIP, 23)
        assert one.changes == {"layout": Layout(fsdp=4)} and twice.changes["layout"] == Layout(fsdp=8)
        assert str(one) == (
            "sharding over 4 accelerators (--layout fsdp=4): parameters are gathered for each micro-batch, and as many bytes "
            "on the wire"
        )
    (one,) = advised(dataclasses.replace(question, layout="fsdp=4"), CHIP, 3)
    assert one.changes == {"layout": Layout(fsdp=32), "count": 32, "global_batch": None}
    # Beside other changes, too.
    monkeypatch.setattr(planner, "memory", lambda q: Held(90 // q.placed.fsdp - 10 * q.checkpointing))
    placed = dataclasses.replace(question, layout="dp=4", checkpointing=False)
    one, more = advised(placed, CHIP, 13)
    assert one.changes == {"layout": Layout(fsdp=4), "checkpointing": True}
    assert more.changes["layout"] == Layout(fsdp=8)


def test_what_costs_nothing_is_advised_first():
    """Sequence parallelism and shared states: as many bytes on the wire, and what each rank holds by hand."""
    tp = Question(MODELS["llama-3-8b"], layout="tp=8", sequence=8192, batch=4)
    first, *others = plan(tp).advice
    assert first.changes == {"layout": Layout(tp=8, sp=True)} and first.slower == 0
    assert str(first) == "sequence parallelism (--layout tp=8,sp=true): no more FLOPs, and as many bytes on the wire"
    (again,) = (one for one in others if one.changes == {"checkpointing": True})
    before, after = plan(tp), plan(dataclasses.replace(tp, checkpointing=True))
    # The sums of the forward pass are made again, over links inside the node.
    sent = (after.wire.total - before.wire.total) / 1e9
    assert again.costs.startswith(f"25.0 % more FLOPs, {sent:.1f} GB more on the wire") and sent > 0
    assert again.slower == pytest.approx(after.recomputed + sent * 1e9 / 450e9 / before.mfu_seconds)
    dp = Question(MODELS["llama-3-8b"], layout="dp=8", sequence=2048, checkpointing=True)
    first, *_ = plan(dp).advice
    assert first.changes == {"layout": Layout(zero1=8)} and first.slower == 0
    words = "sharing optimizer state over the replicas (--layout zero1=8): no more FLOPs, and as many bytes on the wire"
    assert str(first) == words
    before, after = plan(dp), plan(dataclasses.replace(dp, **first.changes))
    assert before.wire.total == after.wire.total and not before.fits and after.fits
    # 12 bytes of each parameter on one rank, or on eight; less of what is alive in the optimizer's step.
    assert before.memory["optimizer state"] == pytest.approx(8 * 8.03e9, rel=1e-3)
    assert after.memory["optimizer state"] == pytest.approx(8.03e9, rel=1e-3)
    replicas = dataclasses.replace(dp, layout=None, count=8, sharded=False)
    first, second, *_ = plan(replicas).advice
    assert first.changes == {"layout": Layout(zero1=8)} and "(--layout zero1=8, without --replicated)" in first.change
    assert plan(dataclasses.replace(replicas, **first.changes)).memory == after.memory
    assert second.changes == {"sharded": True} and second.slower > 0
    # Meta's 405 billion on 16,384, which all but fit.
    large = Question(
        MODELS["llama-3.1-405b"], layout="tp=8,pp=16,dp=128,microbatches=16", sequence=8192, between_nodes=50e9,
        checkpointing=True,
    )  # fmt: skip
    # With sp more travels inside the node, and an eighth as much between stages, which stand in other nodes.
    divided, shared, *_ = plan(large).advice
    assert shared.changes["layout"].zero1 == 128 and shared.slower == 0 == divided.slower
    assert divided.changes["layout"].sp and "22.5 GB more on the wire" in divided.costs
    assert divided.costs.endswith("in no more time")
    before, after = plan(large), plan(dataclasses.replace(large, **divided.changes))
    assert after.wire.total > before.wire.total and after.seconds.upper < before.seconds.upper


def test_gradients_are_shared_too_where_states_are_not_enough(monkeypatch):
    monkeypatch.setattr(planner, "memory", lambda q: Held(90 - 20 * q.placed.zero_stage))
    monkeypatch.setattr(costs, "extra_flops", lambda q, **_: 0.0)
    question = Question(LITTLE, batch=1, sequence=16, chunks=2, checkpointing=True, layout="dp=4", optimizer="sgd")
    for room, first in ((70, Layout(zero1=4)), (69, Layout(zero2=4)), (50, Layout(zero2=4)), (49, Layout(fsdp=4))):
        assert advised(question, CHIP, room)[0].changes == {"layout": first}
    # What is there already is not advised, and what replicas are left share, too.
    shared = dataclasses.replace(question, layout="zero1=4")
    assert advised(shared, CHIP, 50)[0].changes == {"layout": Layout(zero2=4)}
    for layout in ("dp=2,zero1=2", "dp=2,zero2=2"):
        first = advised(dataclasses.replace(question, layout=layout), CHIP, 49)[0]
        assert first.changes == {"layout": Layout(fsdp=4)}


def test_changes_of_a_layout_are_merged():
    question = Question(MODELS["llama-3-70b"], layout="tp=8,dp=8", sequence=8192, between_nodes=50e9)
    (both,) = plan(question).advice
    assert both.changes == {"layout": Layout(fsdp=8, tp=8, sp=True)}
    # One option, said once.
    assert both.change == "sequence parallelism and sharding over 64 accelerators (--layout fsdp=8,tp=8,sp=true)"
    assert plan(dataclasses.replace(question, **both.changes)).fits
    replicas = Question(MODELS["llama-3-8b"], count=8, sharded=False, sequence=8192)
    first, *_ = plan(replicas).advice
    assert plan(dataclasses.replace(replicas, **first.changes)).fits and "layout" not in first.changes


def test_more_ranks_than_a_tensor_has_rows_are_not_tried(monkeypatch):
    tried = []

    def memory(q):
        tried.append(q.count)
        return Held(90 // q.count + q.count)

    monkeypatch.setattr(planner, "memory", memory)
    monkeypatch.setattr(costs, "extra_flops", lambda q, **_: 0.0)
    question = Question(LITTLE, batch=1, sequence=16, attention="sdpa", chunks=2, checkpointing=True, optimizer="sgd")
    # 2, 4, 8 and 16 hold 47, 26, 19 and 21.
    assert advised(question, CHIP, 18) == () and max(tried) == 16
    assert [one.changes["count"] for one in advised(question, CHIP, 19)] == [8]


def test_states_of_fewer_bits_are_an_option_and_so_is_a_packed_base(monkeypatch):
    monkeypatch.setattr(
        planner, "memory", lambda q: Held(100 - 30 * (q.optimizer != "adamw") - 40 * (q.base is not None))
    )
    monkeypatch.setattr(costs, "extra_flops", lambda q, **_: 0.0)
    question = Question(LITTLE, batch=1, sequence=16, attention="sdpa", chunks=2, checkpointing=True)
    assert [str(one) for one in advised(question, CHIP, 70)] == [
        "an optimizer with states of 8 bits (--optimizer adamw8bit): rounded states"
    ]
    assert advised(dataclasses.replace(question, optimizer="sgd"), CHIP, 60) == ()
    assert advised(dataclasses.replace(question, model=1e9, batch=None), CHIP, 70) == ()
    adapters = dataclasses.replace(question, lora_rank=8)
    ((one),) = advised(adapters, CHIP, 60)
    assert one.changes == {"base": "nf4"} and one.change == "a frozen base of 4 bits (--qlora 8 in place of --lora 8)"
    packed = dataclasses.replace(adapters, base="nf4")
    assert [each.changes for each in advised(packed, CHIP, 59)] == [{"optimizer": "adamw8bit", "fused": False}]
    assert advised(packed, CHIP, 29) == ()
    (both,) = advised(adapters, CHIP, 59)
    assert both.changes == {"base": "nf4", "optimizer": "adamw8bit", "fused": False}


def test_together_only_what_it_takes(monkeypatch):
    def memory(q):
        return Held(100 // q.count - 30 * q.checkpointing - 5 * (q.chunks > 1) - 40 * (q.optimizer != "adamw"))

    monkeypatch.setattr(planner, "memory", memory)
    monkeypatch.setattr(
        costs, "extra_flops", lambda q, checkpointing=False, chunks=1: 0.25 * checkpointing + 0.125 * (chunks > 1)
    )
    question = Question(LITTLE, batch=1, sequence=16, attention="sdpa")
    both, more = advised(question, CHIP, 30)
    assert both.changes == {"checkpointing": True, "optimizer": "adamw8bit", "fused": False} and both.slower == 0.25
    eight = "an optimizer with states of 8 bits (--optimizer adamw8bit)"
    assert str(both) == (
        f"activation checkpointing (--checkpointing) and {eight}: together 25.0 % more FLOPs; rounded states"
    )
    assert more.changes == {"sharded": True, "count": 4, "global_batch": None}, "what needs more of them comes after it"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"count": 8},
            "layouts that divide a sequence or a layer may fit on these 8 accelerators: --checkpointing --find",
        ),
        (
            {"count": 8, "checkpointing": True},
            "layouts that divide a sequence or a layer may fit on these 8 accelerators: --find",
        ),
        (
            {"count": 1024, "checkpointing": True},
            "layouts that divide a sequence or a layer may fit on these 1,024 accelerators: --find --between-nodes RATE",
        ),
        (
            {"count": 1024, "checkpointing": True, "between_nodes": 50e9, "layout": "fsdp=1024"},
            "other layouts that divide a sequence or a layer may fit on these 1,024 accelerators: --count 1024 --find in place "
            "of --layout",
        ),
        ({"count": 1}, ""),
        ({"model": 1e9, "count": 8}, ""),
    ],
)
def test_where_more_accelerators_are_all_that_helps_a_layout_may(changes, sentence):
    question = dataclasses.replace(RUN, **changes)
    more = Advice(question, (), {"count": 16}, None, None)
    less = Advice(question, (costs.Change("chunks", {"chunks": 8}),), {"chunks": 8}, 0.5, costs.Cost(0.5, 0, 0.0, 0.0))
    for advice in ((), (more,)):
        assert planner.layouts_may_fit(question, advice) == bool(sentence)
    assert not sentence or words.other_layouts(question) == sentence
    assert not planner.layouts_may_fit(question, (more, less))


def test_the_answers_name_what_helps_on_the_same_accelerators():
    eight = plan(Question(MODELS["llama-3-70b"], layout="fsdp=8", checkpointing=True))
    assert [one.changes["layout"] for one in eight.advice] == [Layout(fsdp=32)]
    assert eight.other_layouts.endswith("--count 8 --find in place of --layout")
    two = plan(Question(MODELS["llama-3-8b"], count=2))
    assert two.advice[0].changes == {"optimizer": "adamw8bit", "fused": False} and not two.other_layouts
    long = plan(Question(MODELS["llama-3-70b"], count=8, sequence=8192, batch=2))
    assert not long.fits and "--checkpointing --find" in long.other_layouts


def test_what_sharding_sends_is_no_flops():
    replicas = Question(MODELS["llama-3-70b"], count=64, sharded=False, between_nodes=50e9)
    (both,) = plan(replicas).advice
    again = plan(dataclasses.replace(replicas, checkpointing=True)).recomputed
    alone, *_ = plan(dataclasses.replace(replicas, checkpointing=True)).advice
    assert both.changes == {"checkpointing": True, "sharded": True}
    assert both.slower == pytest.approx(again + alone.slower)
    assert both.costs == f"together {100 * again:.1f} % more FLOPs, {alone.costs.partition(', ')[2]}"
    assert both.costs.endswith(f"up to {100 * alone.slower:.1f} % of a step")


def test_more_passes_of_sharded_parameters_send_more():
    question = Question(MODELS["llama-3-8b"], count=8, batch=2, sequence=8192, chunks=8)
    answer = plan(question)
    (split,) = (one for one in answer.advice if one.changes.get("accumulate") == 2)
    more = plan(dataclasses.replace(question, **split.changes)).wire.total - answer.wire.total
    # Everything is gathered and reduced once more, over links of 450 GB/s, beside two sequences at 0.4 of the peak.
    computing = 2 * training_flops(question.model, batch=1, sequence=8192).total / (0.4 * answer.chip.peak("bf16"))
    assert more == answer.wire.total and split.slower == pytest.approx(more / 450e9 / computing)
    sent = f"{more / 1e9:,.1f} GB more on the wire for each step and accelerator"
    assert split.costs.startswith(f"no more FLOPs; smaller matrix products may run less well; {sent}")
    assert split.costs.endswith(f": up to {100 * split.slower:,.1f} % of a step")
    replicas = plan(Question(MODELS["llama-3.2-1b"], layout="zero1=8", batch=16))
    (split,) = (one for one in replicas.advice if one.changes.get("accumulate") == 4)
    assert split.slower == 0 and split.costs == "no more FLOPs; smaller matrix products may run less well"


def test_together_where_nothing_helps_by_itself(monkeypatch):
    placed = dataclasses.replace(RUN, batch=1, layout="dp=1")
    words = "fused attention (--attention sdpa) and the loss in 8 chunks (--chunks 8)"
    both = {"attention": "sdpa", "chunks": 8}
    first = (f"{words}: together 12.5 % more FLOPs", both, 0.125)
    assert helped(monkeypatch, placed, 112)[0] == first
    # 106 are left of 140, on one; a layout of two shares the 100.
    together, *more = helped(monkeypatch, placed, 106)
    assert together[1] == {**both, "checkpointing": True}
    assert [changes["layout"] for _, changes, _ in [*more, *helped(monkeypatch, placed, 105)]] == [Layout(fsdp=2)] * 2
    alone = dataclasses.replace(placed, layout=None, count=2)
    ((said, changes, slower),) = helped(monkeypatch, alone, 18)
    # 6 bytes of a sequence are left, and of 100 on 8 accelerators 12.
    everything = {**both, "checkpointing": True, "sharded": True, "count": 8, "global_batch": None}
    assert changes == everything and slower == 0.375
    words, eight = words.replace(" and ", ", "), "8 accelerators (--count 8)"
    more = "37.5 % more FLOPs, and more accelerators, and another global batch"
    assert said == f"{words}, activation checkpointing (--checkpointing), {eight}: {more}"
    # 12 without checkpointing, on as many; what is not needed there is not asked for.
    ((said, changes, slower),) = helped(monkeypatch, alone, 30)
    assert changes == {name: value for name, value in everything.items() if name != "checkpointing"}
    assert said == f"{words}, {eight}: {more.replace('37.5', '12.5')}" and slower == 0.125
    # Two sequences are taken one at a time, which is said once; and one that has none to share leaves sharding out.
    ((said, changes, _),) = helped(monkeypatch, dataclasses.replace(alone, batch=2, count=1, sharded=False), 18)
    passes = "fused attention (--attention sdpa), the same batch in more micro-batches (--batch 1 --accumulate 2)"
    rest = f"activation checkpointing (--checkpointing), {eight.replace(')', ', without --replicated)')}: {more}"
    assert said == f"{passes}, the loss in 8 chunks (--chunks 8), {rest}" and changes["batch"] == 1


@pytest.mark.parametrize(("doublings", "found"), [(20, True), (21, False)])
def test_a_million_times_the_accelerators_is_all_that_is_tried(monkeypatch, doublings, found):
    for model in (1e9, dataclasses.replace(LITTLE)):
        shaped = {} if model == 1e9 else {"batch": 1, "sequence": 16, "attention": "sdpa"}
        question = Question(model, count=3, **shaped)
        enough = 3 * 2**doublings
        monkeypatch.setattr(
            planner, "memory", lambda q, enough=enough: Held(enough // q.count if q.sharded else enough)
        )
        monkeypatch.setattr(costs, "extra_flops", lambda q, **_: 0.0)
        helps = advised(question, CHIP, 1)
        assert [one.changes["count"] for one in helps] == [enough] * found
        assert [one.costs for one in helps] == [
            "1048576 times the accelerators" + ", and another global batch" * bool(shaped)
        ] * found
        # Where sharding alone is not enough, it is tried with everything else.
        monkeypatch.setattr(planner, "memory", lambda q, enough=enough: Held(enough // q.count + (q.chunks == 1)))
        assert [one.changes["count"] for one in advised(question, CHIP, 1)] == [enough] * (found and model != 1e9)


def test_sharding_says_what_it_sends_more_and_how_long_that_takes(monkeypatch):
    monkeypatch.setattr(planner, "memory", lambda q: Held(0 if q.sharded else 9))
    question = Question(MODELS["gpt2"], count=4, sharded=False, batch=2, sequence=512, attention="sdpa", accumulate=3)
    linked, _ = chip("h100-sxm")
    one = next(each for each in advised(question, linked, 5) if each.changes == {"sharded": True})
    step = {"batch": 2, "sequence": 512, "precision": "mixed", "attention": "sdpa", "device": "cuda"}
    sent = [communication(MODELS["gpt2"], layout=f"{axis}=4,microbatches=3", **step).total for axis in ("fsdp", "dp")]
    more = sent[0] - sent[1]
    # 2 sequences in each of 3 passes.
    computing = 6 * training_flops(MODELS["gpt2"], batch=1, sequence=512).total / (0.4 * linked.peak("bf16"))
    assert more > 0 and one.slower == pytest.approx(more / linked.link / computing)
    assert one.change == "sharding over the 4 accelerators (leave --replicated out)"
    assert one.costs == (
        f"no more FLOPs, {more / 1e9:,.1f} GB more on the wire for each step and accelerator, {more / linked.link:,.2f} s "
        f"if nothing overlaps: up to {100 * one.slower:,.1f} % of a step"
    )
    pair = advised(Question(1e9, count=2, sharded=False), CHIP, 5)[0]
    unknown = "how long depends on links of which no speed is known"
    assert pair.costs == f"no more FLOPs, 1.0 GB more on the wire for each step and accelerator; {unknown}"
    number = Question(1e9, count=4, sharded=False)
    (one, *_) = advised(number, CHIP, 5)
    # Mixed precision gathers 2 bytes twice, and saves one of two ways of gradients of 2 bytes: of three quarters.
    assert (
        one.costs == f"no more FLOPs, 1.5 GB more on the wire for each step and accelerator; {unknown}"
        and one.slower is None
    )
    # The link of the table is one inside a node of 8, and says nothing of two nodes.
    for count, long in ((8, f"{1.75e9 / linked.link:,.2f} s if nothing overlaps"), (16, "")):
        (one, *_) = advised(dataclasses.replace(number, count=count), linked, 5)
        assert long in one.costs and (unknown in one.costs) is not bool(long), count
    # Products in bf16 gather 2 · 2 bytes, and gradients in fp32 save 4.
    (one, *_) = advised(dataclasses.replace(number, precision="mixed-fp32-gradients"), CHIP, 5)
    assert one.costs == "no more FLOPs, and as many bytes on the wire"


def moved(question):
    """Change → (factor of days, factor of bytes)."""
    return {change.what: (change.days, change.bytes) for change in sensitivity(plan(question))}


def test_each_change_of_a_run_is_one_input_by_itself():
    question = Question(LITTLE, tokens=10**9, batch=2, sequence=32, count=2, mfu=0.5)
    changes = {
        "tokens +10%": {"tokens": 11 * 10**8}, "tokens -10%": {"tokens": 9 * 10**8},
        "MFU +10%": {"mfu": 0.55}, "MFU -10%": {"mfu": 0.45},
        "accelerators × 2 (4)": {"count": 4}, "replicated": {"sharded": False},
        "batch × 2 (4)": {"batch": 4}, "sequence × 2 (64)": {"sequence": 64}, "sequence / 2 (16)": {"sequence": 16},
        "with checkpointing": {"checkpointing": True}, "loss in 8 chunks": {"chunks": 8},
        "2 micro-batches a step": {"accumulate": 2},
        "8-bit AdamW": {"optimizer": "adamw8bit", "fused": False},
    }  # fmt: skip
    for name, less, more, percent in (("layers", 18, 22, 10), ("d_ff", 54, 66, 10), ("vocab", 36, 44, 10)):
        changes[f"{name} +{percent}%"] = {"model": dataclasses.replace(LITTLE, **{name: more})}
        changes[f"{name} -{percent}%"] = {"model": dataclasses.replace(LITTLE, **{name: less})}
    found, (days, size) = moved(question), days_and_bytes(question)
    assert found.keys() == changes.keys()
    for what, fields in changes.items():
        other_days, other_size = days_and_bytes(dataclasses.replace(question, **fields))
        assert found[what] == pytest.approx((other_days / days, other_size / size)), what


def test_adapters_of_twice_the_rank_are_one_change():
    question = Question(LITTLE, batch=2, sequence=32, lora_rank=4)
    (_, before), (_, after) = (days_and_bytes(dataclasses.replace(question, lora_rank=rank)) for rank in (4, 8))
    assert moved(question)["adapters' rank × 2 (8)"] == (None, after / before)


def test_two_passes_of_a_pipeline_are_both_kept_by_its_first_stage():
    # A third one would be kept, too, of four stages.
    question = Question(LITTLE, tokens=10**9, batch=64, sequence=32, layout="pp=4,microbatches=1", mfu=0.5)
    (_, one), (_, two) = (days_and_bytes(dataclasses.replace(question, accumulate=n)) for n in (1, 2))
    assert moved(question)["2 micro-batches a step"] == (1, two / one)


@pytest.mark.parametrize(
    ("layout", "what", "twice"),
    [
        ("fsdp=2,tp=2", "accelerators × 2 (fsdp=4)", "fsdp=4,tp=2"),
        ("dp=2,fsdp=2", "accelerators × 2 (fsdp=4)", "dp=2,fsdp=4"),
        ("zero1=2", "accelerators × 2 (zero1=4)", "zero1=4"),
        ("zero2=2", "accelerators × 2 (zero2=4)", "zero2=4"),
        ("tp=2", "accelerators × 2 (dp=2)", "dp=2,tp=2"),
        ("dp=2,microbatches=3", "accelerators × 2 (dp=4)", "dp=4,microbatches=3"),
        ("pp=2,microbatches=6", "accelerators × 2 (dp=2)", "dp=2,pp=2,microbatches=6"),
    ],
)
def test_twice_the_accelerators_of_a_layout_are_twice_the_ranks_that_share(layout, what, twice):
    question = Question(LITTLE, tokens=10**9, batch=2, sequence=32, layout=layout)
    (days, size), (half, less) = map(days_and_bytes, (question, dataclasses.replace(question, layout=twice)))
    found = moved(question)
    assert found[what] == pytest.approx((half / days, less / size)) and half / days == pytest.approx(0.5)
    assert not {"sharded", "replicated"} & found.keys(), "beside a layout they say nothing"


def test_a_number_of_parameters_has_few_inputs():
    found = moved(Question(10**9, tokens=10**12, count=3, mfu=0.5))
    tenths = {f"{what} {sign}10%" for what in ("tokens", "MFU", "parameters") for sign in "+-"}
    assert found.keys() == {*tenths, "accelerators × 2 (6)"}
    assert found["parameters -10%"] == pytest.approx((0.9, 0.9)) and found["tokens -10%"] == pytest.approx((0.9, 1))


@pytest.mark.parametrize(
    ("changes", "there", "absent"),
    [
        ({"tokens": None}, {"accelerators × 2 (2)"}, {"tokens +10%", "MFU +10%"}),
        ({"tokens": None, "steps": 5}, {"MFU +10%", "MFU -10%"}, {"tokens +10%", "tokens -10%"}),
        ({"checkpointing": True}, {"without checkpointing"}, {"with checkpointing"}),
        ({"chunks": 2}, {"2 micro-batches a step"}, {"loss in 8 chunks"}),
        ({"accumulate": 2}, {"loss in 8 chunks"}, {"2 micro-batches a step"}),
        ({"optimizer": "sgd"}, {"with checkpointing"}, {"8-bit AdamW"}),
        ({"count": 2, "sharded": False}, {"sharded"}, {"replicated"}),
        ({}, {"8-bit AdamW"}, {"sharded", "replicated"}),
        ({"lora_rank": 3}, {"adapters' rank × 2 (6)"}, set()),
        # A sequence beyond the model's positions cannot be; a size of which a tenth is less than half does not change.
        ({"sequence": 33}, {"sequence / 2 (16)"}, {"sequence × 2 (66)"}),
        ({"model": dataclasses.replace(LITTLE, layers=4)}, {"vocab +10%"}, {"layers +0%", "layers -0%"}),
        ({"model": dataclasses.replace(LITTLE, layers=7)}, {"layers +14%", "layers -14%"}, set()),
    ],
)
def test_changes_that_make_no_sense_are_left_out(changes, there, absent):
    found = moved(dataclasses.replace(Question(LITTLE, tokens=10**9, batch=2, sequence=32), **changes))
    assert there <= found.keys() and not absent & found.keys()


def test_a_table_of_changes():
    text = sensitivity_text(plan(Question(10**9, tokens=10**9, mfu=0.5)))
    assert text.splitlines()[0] == "what moves the answer, the most first"
    rows = [line.rsplit("×", 2) for line in text.splitlines()[2:]]
    assert len({len(line) for line in text.splitlines()[1:]}) == 1
    # Twice the accelerators halve both.
    assert [part.strip() for part in rows[0]] == ["accelerators × 2 (2)", "0.500", "0.500"]
    assert "–" in sensitivity_text(plan(Question(10**9)))
    kept = "the MFU stays as given, so that recomputation and sending do not move the days"
    question = Question(LITTLE, tokens=10**9, batch=2, sequence=32)
    assert sensitivity_text(plan(question)).splitlines()[-1] == kept
    assert kept not in text and kept not in sensitivity_text(plan(dataclasses.replace(question, tokens=None)))


def test_what_leaves_the_node_takes_the_time_of_the_network():
    """A step of 1,024 sequences of Llama-3 8B on 64: 8 micro-batches send as much as 4, twice; by hand at two speeds."""
    run = Question(MODELS["llama-3-8b"], count=64, batch=4, global_batch=1024, sequence=4096)
    step = 256 * training_flops(MODELS["llama-3-8b"], batch=4, sequence=4096).total / (64 * 989.4e12 * 0.4)
    size = {"batch": 4, "sequence": 4096, "precision": "mixed", "attention": "sdpa", "device": "cuda"}
    four, eight = (
        communication(MODELS["llama-3-8b"], layout=f"fsdp=64,microbatches={n}", **size).total for n in (4, 8)
    )
    for gigabits, order in ((50, ["checkpointing", "accumulate"]), (100, ["accumulate", "checkpointing"])):
        # A ring leaves a node once, over the links of its eight ranks.
        seconds = (eight - four) / (8 * gigabits / 8 * 1e9)
        first, second, *_ = plan(dataclasses.replace(run, between_nodes=gigabits / 8 * 1e9)).advice
        assert [next(name for name in order if name in one.changes) for one in (first, second)] == order
        split = first if order[0] == "accumulate" else second
        assert split.slower == pytest.approx(seconds / step, rel=1e-3) and f"{seconds:,.2f} s" in split.costs
        assert first.slower < second.slower
    assert 0.21 < seconds / step < 0.22
    # Where nobody has said how fast the network is, it stands behind what is known, and says so.
    known, unknown, *_ = plan(run).advice
    assert "checkpointing" in known.changes and unknown.slower is None and "accumulate" in unknown.changes
    assert unknown.costs.endswith("how long depends on links of which no speed is known")
    # And what each rank cannot do by itself still helps beside more accelerators.
    (together,) = plan(Question(MODELS["llama-3.1-405b"], count=64, batch=16, sequence=4096)).advice
    assert {"accumulate", "checkpointing", "count"} <= set(together.changes) and "no speed is known" in together.costs


def test_layers_are_divided_on_the_accelerators_at_hand_before_there_are_more_of_them():
    """405B on 512: of 81 GiB, two ranks of tp leave half of what is gathered, and the global batch stays."""
    question = Question(
        "llama-3.1-405b", count=512, sequence=8192, checkpointing=True, between_nodes=50e9, accelerator="h100-sxm"
    )
    answer = plan(question)
    here, more = answer.advice
    assert not answer.fits and "(--layout fsdp=256,tp=2,sp=true --accumulate 2)" in here.change
    assert "--count 2048" in more.change and "times the accelerators" in more.costs
    changed = plan(dataclasses.replace(question, **here.changes))
    assert changed.fits and changed.question.count == 512
    assert changed.question.step_sequences == answer.question.step_sequences == 512
    assert "more on the wire" in here.costs and here.slower > 0
    # The fewest ranks that suffice: fewer accelerators take more of them, and other changes come along where they must.
    few = plan(dataclasses.replace(question, count=128)).advice[0]
    assert few.changes["layout"].tp == 4
    without = plan(dataclasses.replace(question, checkpointing=False)).advice[0]
    assert without.changes["checkpointing"] and without.changes["layout"].tp == 2
    for one, count in ((few, 128), (without, 512)):
        asked = dataclasses.replace(question, count=count, checkpointing=one is few)
        assert plan(dataclasses.replace(asked, **one.changes)).fits


def test_a_search_for_advice_asks_for_few_peaks(monkeypatch):
    asked = []

    def memory(q):
        asked.append(q)
        return of.memory(q)

    monkeypatch.setattr(planner, "memory", memory)
    (one,) = plan(Question(MODELS["llama-3-70b"])).advice
    assert one.changes["count"] == 32 and len(asked) <= 20
    # What is not shared is too much for any number of accelerators: the second doubling shows it.
    asked.clear()
    assert not plan(
        Question(MODELS["llama-3-70b"], batch=1, sequence=8192, checkpointing=True, memory_bytes=16e9)
    ).advice
    assert len(asked) <= 20


def test_more_accelerators_take_fewer_passes_of_a_global_batch():
    """Passes that end, and with them gradients that wait for the next one, save more than what is shared by twice the ranks."""
    run = {"batch": 32, "sequence": 4096, "precision": "mixed-fp32-gradients", "global_batch": 128}
    (one,) = plan(Question(MODELS["llama-3.1-405b"], **run)).advice
    assert one.changes["count"] == 2048 and one.changes["accumulate"] == 128
