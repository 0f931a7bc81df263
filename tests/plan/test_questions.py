"""How a question is settled: what follows from what was given, at both sides of every limit."""

import dataclasses
from types import SimpleNamespace

import pytest

from cs336kit.predict import (
    MODELS,
    Layout,
    TransformerConfig,
    accelerator,
    parameters,
    peak_moments,
    saved_activation_bytes,
    training_flops,
)
from cs336kit.predict import chip as chips
from cs336kit.predict.chip import allowance, chip, peak_of
from cs336kit.predict.words import size
from cs336plan import Question, ServingQuestion, plan, serve
from cs336plan.answers import Note
from cs336plan.training import memory as of
from cs336plan.training.answer import formulas
from cs336plan.training.find import as_rows, found, largest_batch
from cs336plan.training.plan import days_and_bytes
from cs336plan.training.question import settled

GIB = 2**30
LITTLE = TransformerConfig(layers=2, d_model=16, heads=2, vocab=40, context=64)
MIXTURE = dataclasses.replace(LITTLE, experts=4, experts_per_token=2, bias="none")


@pytest.mark.parametrize(
    ("given", "followed"),
    [
        ({}, {"batch": 1, "sequence": 64, "attention": "sdpa", "accumulate": 1}),
        ({"model": MODELS["llama-3-8b"]}, {"sequence": 4096}),
        ({"optimizer": "AdamW"}, {"optimizer": "adamw"}),
        ({"model": 1e9, "optimizer": "SGD"}, {"optimizer": "sgd"}),
        ({"attention": "eager", "batch": 3}, {"attention": "eager", "batch": 3}),
        ({"count": 2, "batch": 3, "global_batch": 24}, {"accumulate": 4}),
        ({"count": 2, "batch": 3, "global_batch": 6}, {"accumulate": 1}),
        ({"count": 2, "batch": 3, "global_batch": 12, "accumulate": 2}, {"accumulate": 2}),
        ({"count": 2, "batch": 3, "accumulate": 2, "sequence": 16, "steps": 5}, {"tokens": 5 * 2 * 3 * 2 * 16}),
        ({"steps": 5, "tokens": 7.0}, {"tokens": 7, "steps": 5}),
        ({"layout": "tp=2,dp=3"}, {"count": 6, "accumulate": 1}),
        ({"layout": "tp=2,dp=3", "count": 6}, {"count": 6}),
        ({"layout": "dp=3,microbatches=4"}, {"count": 3, "accumulate": 4}),
        ({"layout": "pp=2,microbatches=1", "accumulate": 4}, {"accumulate": 4}),
        ({"layout": "pp=2"}, {"accumulate": 2}),
        ({"layout": "pp=2", "accumulate": 4}, {"accumulate": 4}),
        ({"layout": "dp=3,microbatches=4", "accumulate": 4}, {"accumulate": 4}),
        ({"layout": "dp=3", "batch": 2, "global_batch": 12}, {"accumulate": 2}),
        ({"layout": "dp=3,microbatches=2", "batch": 2, "global_batch": 12}, {"accumulate": 2}),
        ({"layout": "pp=2,dp=3", "batch": 2, "global_batch": 18}, {"accumulate": 3}),
        ({"lora_rank": 1, "lora_targets": ("all",)}, {
            "lora_targets": ("query", "key", "value", "attention output", "mlp up", "mlp down")}),
        ({"lora_rank": 1, "base": "int4"}, {"lora_targets": ("query", "value")}),
        ({"lora_rank": 1, "model": MODELS["deepseek-v2-lite"]}, {"lora_targets": ("query", "key and value")}),
        ({}, {"lora_targets": ("query", "value")}),
        ({"frozen": ("query", "norms")}, {"frozen": ("query", "norms")}),
    ],
)  # fmt: skip
def test_what_is_left_open_follows(given, followed):
    q = settled(Question(**{"model": LITTLE, **given}))
    assert {name: getattr(q, name) for name in followed} == followed


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"count": 10**8 + 1, "model": 1e9}, r"count must be at most 10\*\*8, got 100000001"),
        ({"batch": 10**12 + 1}, r"batch must be at most 10\*\*12, got 1000000000001"),
        ({"layout": "dp=3", "count": 2}, "the layout dp=3 has 3 ranks, and count is 2: leave count out"),
        ({"layout": "dp=3,microbatches=4", "accumulate": 2}, "accumulate=2 and microbatches=4 of the layout set the same number"),
        ({"layout": "dp=3,microbatches=2", "accumulate": 4}, "accumulate=4 and microbatches=2 of the layout set the same number"),
        ({"layout": "pp=2,microbatches=3", "accumulate": 2}, "accumulate=2 and microbatches=3 of the layout set the same number"),
        (
            {"layout": "dp=3,microbatches=4", "batch": 2, "global_batch": 12},
            "a global batch of 12 sequences takes 2 micro-batches .* and the layout says microbatches=4: leave one out",
        ),
        ({"layout": "tp=3"}, "tp=3 does not divide 2 heads"),
        ({"layout": "cp=3", "sequence": 16}, "cp=3 does not divide a sequence of 16"),
        ({"count": 2, "batch": 3, "global_batch": 13}, "not a whole number of micro-batches of 3 .* of 6, such as 12,"),
        ({"count": 2, "batch": 3, "global_batch": 4}, "give a multiple of 6, such as 6, or another batch"),
        ({"count": 2, "batch": 3, "global_batch": 13, "accumulate": 2}, "× 2 micro-batches are 12 sequences a step"),
        ({"lora_rank": 1, "lora_targets": ("norms",)}, "unknown target of adapters 'norms'"),
        ({"lora_rank": 1, "lora_targets": ("query", "value"), "model": MODELS["deepseek-v3"]}, "unknown target .* 'value'"),
        ({"lora_rank": 0}, "lora_rank must be"),
        ({"model": "llama-3-9b"}, "no model is called 'llama-3-9b'. Did you mean .*, and a number such as 70e9 is parameters"),
        ({"watts": 1.0}, r"a cost needs a time, .* give tokens \(or steps\)"),
        ({"node": 0}, "node must be"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"between_nodes": 0}, "between_nodes must be"),
        ({"model": 1e9, "lora_rank": 2}, "lora_rank is about the parts, which need the shape"),
        ({"model": 1e9, "chunks": 2}, "chunks is about activations, which need the shape"),
        ({"model": 1e9, "optimizer": "muon"}, "muon keeps state by shape"),
        ({"frozen": ("token embedding", "position embedding", "query", "key", "value", "attention output", "mlp up", "mlp down",
                     "norms", "final norm")}, "every component is frozen"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        settled(Question(**{"model": LITTLE, **changes}))


def test_what_is_no_question_is_a_sentence():
    with pytest.raises(
        ValueError, match=r"question must be a Question, got 'gpt2': give one, such as Question\('llama-3-8b'\)"
    ):
        plan("gpt2")


def test_the_largest_cluster_and_a_layout_of_one_pass():
    assert settled(Question(1e9, count=10**8)).count == 10**8
    assert settled(Question(LITTLE, batch=10**12)).batch == 10**12
    assert Question(LITTLE, layout="dp=2,microbatches=9", accumulate=3).placed == Layout(dp=2, microbatches=3)
    assert Question(LITTLE, count=4, accumulate=3).placed == Layout(fsdp=4, microbatches=3)
    assert Question(LITTLE, count=4, sharded=False).placed == Layout(dp=4, microbatches=1)
    assert Question(LITTLE, count=4).placed.shards == 4 and Question(LITTLE, count=4, sharded=False).placed.shards == 1
    assert (
        Question(LITTLE, count=4, batch=3, accumulate=2).step_sequences == 24 and Question(1e9).step_sequences is None
    )


def test_a_chip_of_two_numbers_and_of_the_table():
    given, notes = chip(None, memory_bytes=80e9, peak_flops_per_second=1e15)
    assert (given.name, given.memory_bytes, peak_of(given), set(given.facts), notes) == (
        "given", 80 * 10**9, 1e15, {"memory_bytes"}, ()
    )  # fmt: skip
    for lacking in ({"memory_bytes": 80e9}, {"peak_flops_per_second": 1e15}):
        with pytest.raises(ValueError, match="give its memory_bytes and peak_flops_per_second"):
            chip(None, **lacking)
    assert peak_of(chip(None, memory_bytes=80e9, needs_peak=False)[0]) is None
    (h100, notes), device = chip("h100-sxm"), accelerator("h100-sxm")
    assert (h100.memory_bytes, peak_of(h100), h100.bandwidth) == (
        device.memory_bytes,
        device.peak("bf16"),
        device.bandwidth,
    )
    assert h100.link == device.facts["link"].value and notes == ()
    own, notes = chip("h100-sxm", memory_bytes=1e9, peak_flops_per_second=1e12, bandwidth=1e11)
    assert (own.memory_bytes, peak_of(own), own.bandwidth) == (10**9, 1e12, 1e11)
    assert notes == ("memory, peak and bandwidth as given; links are those of h100-sxm",)
    assert h100.precisions == ("bf16",), "no other peak than that of the question's products"


def test_without_a_peak_there_is_no_time_unless_it_is_asked_for():
    assert peak_of(chip("tpu-v5e", precision="fp32", needs_peak=False)[0]) is None
    with pytest.raises(ValueError, match="no sourced fp32.*; or give the peak yourself"):
        chip("tpu-v5e", precision="fp32")
    volta, notes = chip("v100-sxm2-32gb")
    assert peak_of(volta) == accelerator("v100-sxm2-32gb").peak("fp16")
    assert any("v100-sxm2-32gb has no bf16: this is fp16" in note for note in notes)


def test_a_chip_without_the_products_type_is_not_said_to_lack_bf16():
    with pytest.raises(ValueError, match="no sourced fp8.*; or give the peak yourself"):
        chip("v100-sxm2-32gb", precision="fp8")


def test_bytes_of_the_label_are_said_to_be_those_of_the_label(monkeypatch):
    # Two whose driver says 3 and 60 % more than their label, and one of which only the label is known.
    table = [SimpleNamespace(facts=("memory_bytes", "memory_label_bytes"), memory_bytes=size, memory_label_bytes=200)
             for size in (206, 320)]  # fmt: skip
    label = SimpleNamespace(name="one", facts=("memory_label_bytes",), memory_label_bytes=24 * 10**9)
    monkeypatch.setattr(chips, "accelerators", lambda: [*table, label])
    notes = []
    assert chips._memory(label, notes) == 24 * 10**9
    assert notes == [
        "memory is the 24 GB of the datasheet: the exact bytes of one have no source (where both are known, the driver "
        "reports 3 to 60 % more)"
    ]


def test_the_largest_batch_may_fill_the_memory_to_the_last_byte(monkeypatch):
    monkeypatch.setattr(of, "memory", lambda q: SimpleNamespace(total=10 * q.batch + 1))
    question, allowed = settled(Question(LITTLE)), SimpleNamespace(total=5)
    for room, batch in ((76, 7), (75, 6), (16, 1), (15, 0)):
        asked = SimpleNamespace(question=question, chip=SimpleNamespace(memory_bytes=room), allowance=allowed)
        assert largest_batch(asked) == batch


def test_the_moment_is_the_highest_and_what_runs_again_is_a_share_of_the_pass():
    q = settled(Question(LITTLE, batch=2, sequence=16))
    moments = peak_moments(**of.step_options(q))
    assert moments[of.moment(q)] == max(moments.values()) > min(moments.values())
    once, again = (training_flops(LITTLE, batch=1, sequence=16, checkpointing=kept).total for kept in (False, True))
    assert of.extra_flops(q) == 0 and of.extra_flops(q, checkpointing=True) == pytest.approx(again / once - 1)


@pytest.mark.parametrize(
    ("given", "count", "size", "reason"),
    [
        (None, 1, GIB + 5 * GIB, "1 GiB for the context and libraries, 5 % for fragmentation: a rule of thumb"),
        (None, 2, GIB + 5 * GIB + GIB, "5 % for fragmentation, 1 GiB for communication: a rule of thumb"),
        (0.25, 2, 25 * GIB, "25 % of the memory, as given"),
        (0.0, 1, 0, "as given"),
        (2.0, 1, 2, "as given"),
        (100 * GIB - 1, 1, 100 * GIB - 1, "as given"),
    ],
)
def test_what_is_left_free(given, count, size, reason):
    parts, said = allowance(given, device=chip(None, memory_bytes=100 * GIB, needs_peak=False)[0], count=count)
    assert parts.total == size and f" {reason}" in f" {said}"


def test_the_context_is_cudas_where_the_chip_is_nvidias():
    whose = {"h100-sxm": "the CUDA context", "mi300x": "the context", "tpu-v5e": "the context"}
    for name, context in whose.items():
        for reason in (plan(Question(LITTLE, accelerator=name)), serve(ServingQuestion(LITTLE, accelerator=name))):
            assert reason.allowance_reason.startswith(f"1 GiB for {context} and libraries")
    given = plan(Question(LITTLE, accelerator=None, memory_bytes=8e9))
    assert given.allowance_reason.startswith("1 GiB for the context")


def test_an_allowance_leaves_something():
    with pytest.raises(
        ValueError, match=r"an allowance of 1.00 GiB leaves nothing of 0.00 GiB: give less.*such as 80e9$"
    ):
        plan(Question(LITTLE, memory_bytes=80))
    with pytest.raises(ValueError, match=r"an allowance of 2.05 GiB leaves nothing of 0.93 GiB: give less.* memory$"):
        plan(Question(LITTLE, memory_bytes=1e9, count=8))
    device, _ = chip(None, memory_bytes=3 * GIB, needs_peak=False)
    with pytest.raises(ValueError, match=r"an allowance of 3.00 GiB leaves nothing of 3.00 GiB: give less"):
        allowance(3 * GIB, device=device, count=1)
    with pytest.raises(
        ValueError, match=r"allowance must be a fraction from 0 to 1, got 8.5. If 8.5 is a percentage, divide"
    ):
        allowance(8.5, device=device, count=1)


def test_bytes_and_moments_of_a_number_of_parameters():
    assert dict(of.memory(Question(10, count=3, precision="bf16", optimizer="sgd"))) == {
        "parameters": 7,
        "gradients": 7,
    }
    assert of.moment(Question(1e9)) is None and of.uneven(Question(1e9)) is None
    assert of.wire(Question(1e9), chip("h100-sxm")[0]) == (None, None, None)


def test_experts_share_unequally_only_where_there_are_some_on_one_rank():
    q = settled(Question(MIXTURE, batch=2, sequence=16))
    assert of.uneven(q) > 0 and of.uneven(settled(Question(LITTLE))) is None
    for layout in ("ep=2", "cp=2"):
        assert of.uneven(dataclasses.replace(q, layout=layout)) is None


def test_what_is_sent_and_when_seconds_are_not_known():
    q = settled(Question(LITTLE, sequence=16, count=2))
    sent, seconds, why = of.wire(q, chip("h100-sxm")[0])
    assert sent.total > 0 and seconds.lower > 0 and why is None
    assert of.wire(q, chip(None, memory_bytes=1e9, needs_peak=False)[0])[1:] == (None, None)
    sent, seconds, why = of.wire(dataclasses.replace(q, count=16), chip("h100-sxm")[0])
    assert sent.total > 0 and seconds is None and why == Note("network unknown")
    assert of.wire(settled(Question(LITTLE, sequence=16)), chip("h100-sxm")[0])[0] is None


def test_a_model_of_a_single_position_is_counted_too():
    one = dataclasses.replace(LITTLE, context=1)
    answer = plan(Question(one, lora_rank=2))
    # The position that goes is one of 64; adapters stand beside query and value.
    assert answer.parameters == parameters(LITTLE).total - 63 * 16 and answer.trainable == 2 * 2 * 2 * 2 * 16
    assert formulas(answer)["parameters, position embedding"] == "1·16"


def test_days_follow_from_flops_and_peak():
    days, size = days_and_bytes(Question(10**9, tokens=10**12, count=4, mfu=0.5, accelerator=None, memory_bytes=1e12,
                                         peak_flops_per_second=1e15))  # fmt: skip
    assert days == pytest.approx(6e21 / (4 * 0.5e15 * 86400)) and size == 10**9 * (16 + 4) // 4
    with pytest.raises(ValueError, match="take more FLOPs than can be divided into days: give fewer"):
        days_and_bytes(Question(10**200, tokens=10**200))
    notes = plan(Question(LITTLE, optimizer="muon")).notes
    assert any("muon takes the matrices" in note for note in notes) and any("not known here" in note for note in notes)
    assert plan(Question(LITTLE)).notes == ()
    assert any("packed are the matrices" in note for note in plan(Question(LITTLE, lora_rank=1, base="nf4")).notes)


def test_experts_that_a_library_would_not_pack_are_noted():
    mixtral = MODELS["mixtral-8x7b"]
    notes = plan(Question(mixtral, lora_rank=1, base="nf4")).notes
    matrix = mixtral.d_model * mixtral.d_ff
    # nf4 with double quantization: half a byte, a scale of one byte for 64, and four bytes for 256 scales.
    packed = matrix // 2 + matrix // 64 + 4 * (matrix // 64 // 256)
    more = 3 * mixtral.experts * mixtral.layers * (2 * matrix - packed) / 2**30
    assert any(f"they take up to {more:,.2f} GiB more" in note for note in notes)
    assert not any("the experts are packed" in note for note in plan(Question(LITTLE, lora_rank=1, base="nf4")).notes)


@pytest.mark.parametrize(
    ("given", "noted"),
    [
        ({"count": 2, "sharded": False}, True),
        ({"layout": "dp=2"}, True),
        ({"layout": "dp=2,tp=2"}, True),
        ({"model": 1e9, "count": 2, "sharded": False}, True),
        ({"count": 2}, False),
        ({"layout": "dp=2,zero1=2"}, False),
        ({"sharded": False}, False),
    ],
)
def test_replicas_say_that_ddp_keeps_its_buckets_beside_the_gradients(given, noted):
    notes = plan(Question(**{"model": LITTLE, **given})).notes
    assert any("gradient_as_bucket_view=True" in note for note in notes) == noted


def test_six_nd_of_a_model_with_experts_counts_its_active_parameters():
    answer = plan(Question(MODELS["mixtral-8x7b"], tokens=10**12))
    said = f"6 × 12,879,925,248 active parameters × 1,000,000,000,000 tokens = {answer.six_nd_flops:.6g}"
    assert formulas(answer)["FLOPs by 6ND"] == said


def test_formulas_of_a_model_have_its_shapes():
    """A block of 16 · 16 matrices, a table of 40 rows; 10⁶ tokens in sequences of 16."""
    S, D, F, V = 16, 16, 64, 40
    answer = plan(Question(LITTLE, tokens=10**6, sequence=S, count=2, precision="mixed"))
    rows = formulas(answer)
    assert rows["parameters, query"].startswith("2 × 16·16") and rows["parameters, token embedding"] == "40·16"
    assert rows["parameters, final norm"] == "2 × (16)"
    forward = 2 * (2 * S * (4 * D * D + 2 * D * F) + 2 * 2 * S * S * D) + 2 * S * D * V
    # Each product has two more in the backward pass.
    assert rows["FLOPs of a sequence"].startswith(f"{3 * forward:.6g} = 3.000 × forward {forward:.6g} (each")
    assert rows["FLOPs"] == f"{3 * forward:.6g} × 1,000,000 tokens / 16 = {3 * forward * 10**6 // S:.6g}"
    assert f"head {2 * S * D * V:.4g}" in rows["FLOPs forward"]
    P = answer.parameters
    assert rows["FLOPs by 6ND"] == f"6 × {P:,} parameters × 1,000,000 tokens = {6 * P * 10**6:.6g}"
    assert rows["parameters' bytes"] == f"{P:,} × 2 (bf16) / 2 accelerators"
    assert rows["optimizer state"] == f"{P:,} × 2 × 4 (fp32) and 4 for each tensor's step / 2 accelerators"
    assert (
        f"GiB of {P:,} × 2 (bf16) / 2 accelerators: those that are there at the peak, {answer.moment}"
        in rows["gradients"]
    )
    assert "gathered parameters" in rows and "all others" in rows["activations"]
    largest, *others = [part.split(" ") for part in rows["activations"].split(": ")[1].split(", ")]
    sizes = [float(part[-1]) for part in (largest, *others[:4])]
    assert len(others) == 5 and sizes == sorted(sizes, reverse=True)
    peaks = [float(part.rsplit(" ", 1)[1]) for part in rows["peak"].split("(GiB): ")[1].split(", ")]
    assert peaks == sorted(peaks, reverse=True) and "parameters, active" not in rows


def test_activations_are_those_of_the_batch_and_the_sequence():
    rows = formulas(plan(Question(MODELS["gpt2"], batch=2, sequence=256)))
    kept = saved_activation_bytes(
        MODELS["gpt2"], batch=2, sequence=256, precision="mixed", attention="sdpa", device="cuda"
    )  # fmt: skip
    assert f"of {kept.total / 2**30:,.2f} GiB when the forward pass ends" in rows["activations"]
    # The largest five and all others are all of them, to half of the last digit of each; of 32 sequences, all are seen.
    whole, parts = formulas(plan(Question(MODELS["gpt2"], batch=32)))["activations"].split(
        " GiB when the forward pass ends: "
    )
    terms = [float(part.rsplit(" ", 1)[1]) for part in parts.split(", ")]
    assert len(terms) == 6 and sum(terms) == pytest.approx(float(whole.rpartition(" ")[2]), abs=7 * 0.005)
    assert plan(Question(1e9)).recomputed == 0


def test_activations_of_a_pipeline_are_those_of_its_fullest_stage():
    # Of 4 layers on 3 stages the second has 2, and holds 2 of 6 microbatches.
    config = dataclasses.replace(LITTLE, layers=4)
    answer = plan(Question(config, layout="pp=3,microbatches=6", sequence=64, batch=8))
    rule = {"precision": "mixed", "attention": "sdpa", "device": "cuda", "layout": "pp=3,microbatches=6"}
    kept = saved_activation_bytes(config, batch=8, sequence=64, stage=1, **rule)
    row = formulas(answer)["activations"]
    each = f"{size(kept.total)} GiB each when their forward pass ends: "
    assert f"of 2 micro-batches in flight on stage 2 of 3, with {each}" in row
    assert kept.total < answer.memory["activations"] <= 2 * kept.total
    # A step of one microbatch has no others.
    alone = formulas(plan(Question(config, layout="pp=3,microbatches=1", sequence=64, batch=8)))["activations"]
    assert ", of 1 micro-batch in flight on stage" in alone


def test_formulas_of_other_runs():
    packed = formulas(plan(Question(LITTLE, lora_rank=2, base="nf4", sequence=16)))
    assert (
        packed["parameters' bytes"].endswith("(bf16), matrices of blocks in nf4")
        and "gathered parameters" not in packed
    )
    # Adapters of query and value: 2 layers, 2 targets, 2 rows and columns of 16.
    assert packed["optimizer state"].startswith("256 × 2 × 4 (fp32)") and "parameters, adapters" not in packed
    shaped = formulas(plan(Question(LITTLE, optimizer="adafactor", sequence=16)))
    assert shaped["optimizer state"] == "by the shape of each tensor (adafactor)"
    placed = formulas(plan(Question(LITTLE, layout="tp=2", sequence=16)))
    assert placed["master weights"].endswith("× 4 (fp32), of which a rank of tp=2 has its part")
    experts = formulas(plan(Question(MIXTURE, sequence=16)))
    # Two of four experts of each layer, with a matrix up and one down each.
    active = parameters(MIXTURE).total - 2 * 2 * (2 * 16 * 64)
    assert experts["parameters, active"].startswith(f"{active:,}: of each layer's experts")


def test_layouts_and_batches_that_fit_leave_the_allowance_free():
    q = Question(LITTLE, sequence=16, batch=1, count=2, allowance=10**6, memory_bytes=2 * 10**6)
    answer = plan(q)
    most = largest_batch(answer)
    sizes = [plan(dataclasses.replace(q, batch=size)).memory.total for size in (most, most + 1)]
    assert sizes[0] <= 10**6 < sizes[1]
    eight = plan(dataclasses.replace(q, count=8))
    ten, three, every = found(eight), found(eight, limit=3), found(eight, limit=99)
    assert ten == every[:10] and three == every[:3] and len(every) > 3
    layouts = found(answer, limit=2)
    assert len(layouts) == 2 and all(one.peak.total + one.margin == 10**6 for one in layouts)
    assert as_rows(layouts)[0] == {
        "layout": str(layouts[0].layout), "total_bytes": layouts[0].peak.total, "fits": True,
        "step_seconds": {name: getattr(layouts[0].seconds, name) for name in (
            "lower", "upper", "likely", "compute", "inside", "between", "bubble")},
    }  # fmt: skip
    for question, sentence in (
        (Question(1e9), "a number of parameters does not tell"), (Question(LITTLE, layout="dp=2"), "leave one of them out"),
        (Question(LITTLE, accelerator="tpu-v5e", precision="fp32"), "needs a peak"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=sentence):
            found(plan(question))
    with pytest.raises(ValueError, match="a batch has activations"):
        largest_batch(plan(Question(1e9)))
