"""The words of an answer, from numbers that are easy to work out: what stands where, rounded how, and when it is left out."""

import dataclasses

import pytest

from cs336kit.predict import MODELS, Layout
from cs336kit.predict.breakdown import Breakdown
from cs336kit.predict.chip import chip
from cs336kit.predict.decoding.bounds import Bounds
from cs336kit.predict.layout_search import FoundLayout
from cs336kit.predict.network import StepSeconds
from cs336kit.predict.words import amount, duration, folded, row, short, size
from cs336plan import Plan, Question, ServingQuestion
from cs336plan.serving.answer import ServingAdvice
from cs336plan.serving.serve import Served
from cs336plan.serving.text import milliseconds
from cs336plan.training.explain import step as _steps
from cs336plan.training.find import found_text
from cs336plan.training.memory import Asked
from cs336plan.training.schema import formulas
from cs336plan.training.sensitivity import Change

GIB = 2**30
GIVEN, _ = chip(None, memory_bytes=64 * GIB, peak_flops_per_second=1e15, bandwidth=2e12, link=1e11)
CHIP = dataclasses.replace(GIVEN, name="one-chip", title="One Chip")
RUN = Question(
    MODELS["gpt2"], name="ours", count=4, tokens=10**9, batch=2, sequence=512, accumulate=3, mfu=0.5, attention="eager",
    price_per_hour=2.5, watts=500,
)  # fmt: skip
SECONDS = StepSeconds(0.5, 0.75, 0.25, 0.125, 0.0625, 0.2, 24, 12288, likely=0.625)


def bytes_of(**parts):
    return Breakdown({name.replace("_", " "): value for name, value in parts.items()}, unit="bytes")


def made(question=RUN, **changes):
    """An answer of round numbers."""
    numbers = {
        "question": question, "chip": CHIP, "parameters": 1_234_567, "trainable": 1_234_567, "flops": 15 * 10**14,
        "six_nd_flops": 125 * 10**13, "recomputed": 0.0, "days": 3.0, "memory": bytes_of(parameters=2 * GIB, gradients=GIB // 4),
        "moment": "loss", "uneven": None, "allowance": bytes_of(context=GIB), "allowance_reason": "as given", "fits": True,
        "advice": (), "largest_model": 5_000_000_000, "modules": "a decoder", "facts": (), "mfu_seconds": 0.5,
    }  # fmt: skip
    return Plan(**{**numbers, **changes})


@dataclasses.dataclass
class Said:
    """An advice in words of its own."""

    change: str
    changes: dict
    slower: float | None
    costs: str

    def __str__(self):
        return f"{self.change}: {self.costs}"


def said(text):
    """A text without its line breaks and columns."""
    return " ".join(text.split())


def test_the_whole_answer_to_a_run():
    answer = made(
        recomputed=0.25,
        wire=bytes_of(gathered=25 * 10**8, nothing=0),
        seconds=SECONDS,
        causal=dataclasses.replace(SECONDS, lower=0.4375, compute=0.1875),
        uneven=3 * GIB,
        facts=("a note",),
        asked=Asked(0.625, None, 0.75),
    )
    # 4 accelerators for 3 days are 288 hours; a step takes 4 · 2 · 3 sequences of 512 tokens, of which 10⁹ are 81,380.2.
    # 0.5 s at an MFU of 0.5 are an MFU of 0.571 in 0.4375 s, and of 0.333 in 0.75 s.
    assert str(answer) == (
        """\
ours: 1,234,567 parameters
time: 3.0 days for 1.5e+15 FLOPs (6ND: 1.25e+15)
  on 4 × one-chip (1,000 TFLOP/s each) at an MFU of 0.5
  and 25.0 % more FLOPs that are computed again, which MFU leaves out
cost: 720 for 288 accelerator hours at 2.5 each
energy: 144 kWh at 500 W for each accelerator
micro-batch: 2 × 512 tokens on each of 4, 3 a step (gradient accumulation)
  a step takes 24 sequences, 12,288 tokens (global batch)
  81,381 steps for 1,000,000,000 tokens
a step takes 0.5 s at an MFU of 0.5: 24,576 tokens per second, 6,144 on each
  accelerator
  with matrix products at 0.8 of the peak (--product-rate) and nothing else but
    sending: 0.438 s if all overlaps (an MFU of 0.571), 0.75 s if nothing does
    (0.333)
    compute 0.188 s (causal attention) to 0.25 s, links inside a node 0.125 s,
    between nodes 0.0625 s, 20.0 % pipeline bubble
    in such steps the run takes 9.89 to 16.95 hours, costs 99 to 170 and uses 20
    to 34 kWh
  an MFU of 0.5 asks for matrix products at 0.625 of the peak if all overlaps,
    at more than 1 if nothing does
  each accelerator sends in a step: gathered 2.5 GB
memory per accelerator at the peak, loss
  (mixed, adamw, batch 2 × 512, eager attention, sharded)
  parameters                    2.00 GiB
  gradients                     0.25 GiB
  together                      2.25 GiB
  allowance                     1.00 GiB
    as given
  available                    64.00 GiB
  (experts share the tokens equally; if all chose the same: 3.00 GiB)
it fits, and 60.75 GiB are left
note: a note
note: activation bytes: a decoder
largest model over all accelerators, without activations and gathered
  parameters: 5B parameters at 20 bytes each"""
    )


def test_the_whole_answer_to_a_number_of_parameters():
    question = Question(70e9, name="70B", sharded=False)
    helps = Said("less", {}, None, "nothing"), Said("half", {}, 0.5, "half of it")
    answer = made(
        question, trainable=None, flops=None, days=None, six_nd_flops=None, moment=None, fits=False, advice=helps
    )
    answer = dataclasses.replace(answer, memory=bytes_of(parameters=70 * GIB))
    assert str(answer) == (
        """\
70B: 1,234,567 parameters
memory per accelerator, without activations
  (mixed, adamw)
  parameters                   70.00 GiB
  together                     70.00 GiB
  allowance                     1.00 GiB
    as given
  available                    64.00 GiB
it does not fit: 7.00 GiB too much; what helps, cheapest first:
  - less: nothing
  - half: half of it
largest model on each accelerator, without activations: 5B parameters at 20
  bytes each"""
    )
    steps = dataclasses.replace(answer, question=dataclasses.replace(question, steps=5))
    assert str(steps) == str(answer), "steps of how many tokens nobody said"
    alone = dataclasses.replace(answer, advice=())
    assert "it does not fit: 7.00 GiB too much\n  a smaller model may fit: sharding over more" in str(alone)
    held = dataclasses.replace(alone, fits=True, memory=bytes_of(parameters=60 * GIB))
    assert "\nit fits without activations: 3.00 GiB are left for them\n" in str(held)
    held = dataclasses.replace(held, memory=bytes_of(parameters=50 * GIB, temporary_tensors=10 * GIB))
    assert (
        "13.00 GiB are left for them (the optimizer's step, which comes when they are gone, leaves 3.00 GiB)"
        in said(str(held))
    )


def test_nothing_is_said_to_help_that_was_not_tried():
    lacking = {"fits": False, "advice": (), "memory": bytes_of(parameters=70 * GIB)}
    one = said(str(made(dataclasses.replace(RUN, count=1), **lacking)))
    assert " much a shorter sequence or a smaller model may fit: sharding over more accelerators is not enough" in one
    assert "may fit" not in str(made(**lacking)), "a layout may, which a note says"
    assert "may fit" not in str(made(**{**lacking, "advice": (Said("less", {}, None, "nothing"),)}))


def test_a_run_of_long_steps_takes_longer_than_its_time():
    seconds = dataclasses.replace(SECONDS, lower=6.0, upper=9.0, bubble=0.0)
    answer = made(dataclasses.replace(RUN, price_per_hour=None, watts=None), wire=bytes_of(), seconds=seconds)
    # 81,381 steps of 6 and of 9 s are 5.65 and 8.48 days.
    assert "in such steps the run takes 5.7 to 8.5 days each" in said(str(answer))
    days = {"lower": 81381 * 6 / 86400, "upper": 81381 * 9 / 86400}
    assert answer.as_dict()["run_days"] == days and answer.as_dict()["step_seconds"]["lower"] == 6
    causal = dataclasses.replace(answer, causal=dataclasses.replace(seconds, lower=0.5, compute=0.125))
    assert "the run takes 11.30 hours to 8.5 days" in said(str(causal)) and "compute 0.125 s (causal" in str(causal)
    assert causal.as_dict()["run_days"] == days | {"lower": 81381 * 0.5 / 86400}
    assert causal.as_dict()["step_seconds"]["lower"] == 0.5 and causal.as_dict()["step_seconds"]["compute"] == 0.25
    rows = {name: " ".join(formula.split()) for name, formula in _steps(causal)}
    assert rows == {
        "step, if all overlaps": "the longest of computing 0.125 s (causal attention), links inside a node 0.125 s, between "
        "nodes 0.0625 s: 0.5 s",
        "step, if nothing does": "computing 0.25 s (attention over all pairs) + sending 0.1875 s: 9 s",
        "days at these steps": "81,381 steps × 0.5 to 9 s / 86,400 s = 0.471 to 8.477",
    }
    # Less than the rings take: then switches add and copy, on the links that take longer.
    adding = dataclasses.replace(answer, causal=dataclasses.replace(seconds, lower=0.1))
    less = "less at best: switches add and copy"
    assert f"links inside a node 0.125 s ({less}), between nodes 0.0625 s in such steps" in said(str(adding))
    experts = ", a token goes once to several experts of a node"
    far = dataclasses.replace(adding, seconds=dataclasses.replace(seconds, inside=0.0625, between=0.125))
    for layout, added in (("ep=4", experts), ("fsdp=4", "")):
        placed = dataclasses.replace(far, question=dataclasses.replace(far.question, layout=layout))
        assert f"links inside a node 0.0625 s, between nodes 0.125 s ({less}{added}) in such" in said(str(placed))
        assert f"between nodes 0.125 s ({less}{added}): 0.1 s" in dict(_steps(placed))["step, if all overlaps"]
    # Rings that leave the node may be slower inside it.
    hops = dataclasses.replace(answer, seconds=dataclasses.replace(seconds, through=0.1))
    slower = "0.1 s of them rings that leave the node, whose hops inside it are the slower ones"
    assert f"links inside a node 0.125 s ({slower}), between nodes 0.0625 s" in said(str(hops))
    fewer = dataclasses.replace(hops, causal=dataclasses.replace(seconds, lower=0.1))
    assert f"({slower}; {less}, rings can use all links of a rank), between nodes 0.0625 s" in said(str(fewer))
    (first, *_) = _steps(adding)
    assert f"links inside a node 0.125 s ({less}), between nodes 0.0625 s: 0.1 s" in " ".join(first[1].split())
    # Where all overlaps, the slowest stage waits for what the others take; where nothing does, for 3 of 12 turns like its own.
    stages = dataclasses.replace(RUN, layout="pp=4", accumulate=9)
    piped = dict(_steps(made(stages, seconds=SECONDS)))
    assert "computing 0.25 s / (1 − 0.2 pipeline bubble)" in piped["step, if all overlaps"]
    assert "what each micro-batch has of both / (1 − 0.25)" in piped["step, if nothing does"]
    assert not list(_steps(made())) and made().as_dict()["run_days"] is None
    far = dataclasses.replace(answer, asked=Asked(None, None, 0.265))
    words = (
        "an MFU of 0.5 is out of reach with this layout and network: with matrix products at the peak and everything"
    )
    assert f"{words} overlapping it is 0.265 each" in said(str(far))
    assert far.as_dict()["asked_product_rate"] == {"lower": None, "upper": None}
    one = dataclasses.replace(answer, wire=None, asked=Asked(0.25, 0.5, 1.0))
    assert "an MFU of 0.5 asks for matrix products at 0.25 to 0.5 of the peak memory" in said(str(one))
    same = dataclasses.replace(one, asked=Asked(0.25, 0.25, 1.0))
    assert "asks for matrix products at 0.25 of the peak memory" in said(str(same))
    alone = made(dataclasses.replace(RUN, tokens=None), days=None, wire=bytes_of(), seconds=SECONDS)
    assert "the run takes" not in str(alone) and alone.as_dict()["run_days"] is None
    assert "days at these steps" not in dict(_steps(alone))


def test_rings_that_leave_a_node_do_so_over_the_links_of_all_their_ranks():
    sent = Breakdown(
        {
            "data all-gather, between nodes": 8 * 10**9,
            "pp send, between nodes": 10**9,
            "cp ring, between nodes": 10**9,
            "tp all-reduce, inside a node": 10**9,
        },
        unit="bytes",
    )
    text = said(str(made(wire=sent, link_bytes=2 * 10**9)))
    each = (
        "data all-gather in rings that leave the node 8 GB, pp send, between nodes 1 GB, cp ring, between nodes 1 GB, "
        "tp all-reduce, inside a node 1 GB"
    )
    assert each in text.replace("all- ", "all-")
    own = "of what leaves the node, 2 GB crosses each accelerator's own link"
    assert own in text
    assert made(wire=sent, link_bytes=2 * 10**9).as_dict()["link_bytes"] == 2 * 10**9
    for whole in (10 * 10**9, 0, None):
        assert "own link" not in str(made(wire=sent, link_bytes=whole))


@pytest.mark.parametrize(
    ("changes", "numbers", "stands", "lacks"),
    [
        ({}, {"trainable": 567}, "1,234,567 parameters, 567 of them trained", "adapters"),
        ({"lora_rank": 8}, {"trainable": 567}, "1,234,567 parameters, and 567 of adapters (rank 8)", "of them trained"),
        ({"lora_rank": 8, "lora_targets": ("query", "value")}, {}, "adapters on query, value", "largest model"),
        ({"frozen": ("head",)}, {}, "frozen: head", "largest model"),
        ({"layout": "tp=4"}, {}, "eager attention, layout microbatches=3,tp=4)", "largest model"),
        ({"base": "nf4"}, {}, "frozen matrices in nf4", "replicated"),
        ({"sharded": False}, {}, "eager attention, replicated)", "sharded"),
        ({"sharded": False}, {}, "largest model on each accelerator", "over all"),
        ({"count": 1}, {}, "largest model on each accelerator", "over all"),
        ({"count": 1}, {}, "eager attention)", "sharded"),
        ({"count": 1}, {}, "micro-batch: 2 × 512 tokens, 3 a step (gradient accumulation) a step", "each of"),
        ({"count": 2, "batch": 1}, {}, "2, 3 a step (gradient accumulation) a step takes 6 sequences, 3,072", "replicated"),
        ({"count": 1, "accumulate": 2}, {}, "batch: 2 × 512 tokens, 2 a step", "each of"),
        ({"count": 1, "batch": 1, "accumulate": 1}, {}, "batch: 1 × 512 tokens a step takes 1 sequence, 512 tokens", "accumul"),
        ({"checkpointing": True, "chunks": 2}, {}, "eager attention, checkpointing, loss in 2 chunks, sharded)", "again"),
        ({"chunks": 1}, {}, "eager attention, sharded)", "chunks"),
        ({"price_per_hour": None}, {}, "energy: 144 kWh", "cost"),
        ({"watts": None}, {}, "cost: 720", "energy"),
        ({}, {"days": None}, "batch: 2 ×", "time:"),
        ({}, {"flops": None}, "batch: 2 ×", "time:"),
        ({}, {"moment": None}, ", without activations", "note"),
        ({}, {"wire": bytes_of()}, "each accelerator sends in a step: nothing", "if all overlaps"),
        ({}, {"seconds": SECONDS}, "ours", "if all overlaps"),
        ({}, {"wire": bytes_of(), "seconds": dataclasses.replace(SECONDS, bubble=0.0)}, "between nodes", "bubble"),
        # 10⁹ tokens in 1,000 steps are 1,953.1 sequences of 512 a step, and this one takes 24 of them.
        (
            {"steps": 1000}, {},
            "1,000,000,000 tokens in 1,000 steps imply 1,000,000 tokens a step, 1,954 sequences of 512: another global batch "
            "than this one (--global-batch 1952)",
            "steps for",
        ),
        # Ranks of tp work on the same sequences: two at a time, where four replicas work on eight.
        ({"steps": 1000, "layout": "tp=4"}, {}, "another global batch than this one (--global-batch 1954)", "steps for"),
        ({"steps": 100, "tokens": 1228800}, {}, "imply 12,288 tokens a step, 24 sequences of 512 a step", "another"),
        ({"steps": 3, "batch": None, "sequence": None}, {}, "in 3 steps imply 333,333,334 tokens a step memory", "another"),
        ({"tokens": None}, {}, "a step takes 24 sequences", "steps for"),
    ],
)  # fmt: skip
def test_parts_of_an_answer_come_and_go(changes, numbers, stands, lacks):
    text = said(str(made(dataclasses.replace(RUN, **changes), **numbers)))
    assert stands in text and lacks not in text


def test_sizes_and_durations_have_as_many_digits_as_they_need():
    assert [size(value) for value in (0, GIB // 64, GIB // 128, 2**40)] == ["0.00", "0.02", "0.0078", "1,024.00"]
    assert size(round(0.01 * GIB) + 1) == "0.01", "the smallest with two digits"
    durations = {
        2: "2.0 days", 1.99: "47.76 hours", 0.5: "12.00 hours", 1000: "1,000.0 days", 1 / 24: "1.00 hours",
        1 / 25: "57.60 minutes", 1 / 1440: "1.00 minutes", 0.5 / 1440: "30 seconds", 1e-8: "0.000864 seconds",
    }  # fmt: skip
    assert {days: duration(days) for days in durations} == durations
    assert [amount(value) for value in (0.012345, 9.994, 10, 1234.5)] == ["0.0123", "9.99", "10", "1,234"]
    written = {
        39_512_345_678: "39.5B", 5_060_000_000_000: "5.06T", 999: "999", 1000: "1K", 1_000_000: "1M", 999_700_000: "1,000M",
        9.99e15: "9,990T", 1e16: "1e+16", 0.5: "0.5",
    }  # fmt: skip
    assert {number: short(number) for number in written} == written
    assert row("a name", GIB, "a remark") == "  a name                        1.00 GiB  a remark"


def test_lines_fill_a_terminal_of_80_columns():
    letters = folded("a " * 100, indent="  ", first="")
    # 40 letters with spaces between are 79 columns, and one more does not fit.
    assert [len(line) for line in letters] == [79, 79, 2 * 21 + 1]


def test_milliseconds_have_three_digits_and_whole_ones_all():
    shown = {
        0.000012345: "0.0123",
        0.0999: "99.9",
        0.1: "100",
        0.98765: "988",
        1.0: "1,000",
        1.2345: "1,234",
        60.0: "60,000",
    }
    assert {seconds: milliseconds(seconds) for seconds in shown} == shown


def test_counts_that_follow_from_an_answer():
    answer = made()
    assert (answer.accelerator_hours, answer.cost, answer.energy_kwh) == (288, 720, 144)
    assert answer.steps == 81381 and answer.implied_batch is None
    for lacking in ({"tokens": None}, {"batch": None}, {"sequence": None}):
        assert made(dataclasses.replace(RUN, **lacking)).steps is None
    assert made(dataclasses.replace(RUN, steps=7)).steps == 7
    assert made(dataclasses.replace(RUN, steps=7)).implied_batch == 142857143
    assert made(dataclasses.replace(RUN, steps=7, tokens=None)).implied_batch is None
    nothing = made(dataclasses.replace(RUN, price_per_hour=None, watts=None), days=None)
    assert nothing.accelerator_hours is None and nothing.cost is None and nothing.energy_kwh is None


def test_a_plan_as_plain_values():
    values = made(wire=bytes_of(gathered=5), seconds=SECONDS, advice=(Said("less", {}, 0.5, "half"),)).as_dict()
    assert values["advice"] == [{"change": "less", "costs": "half", "slower": 0.5}]
    assert values["wire_bytes"] == {"gathered": 5} and values["layout"] == str(Layout(fsdp=4, microbatches=3))
    assert values["step_seconds"] == {
        "lower": 0.5, "upper": 0.75, "likely": 0.625, "compute": 0.25, "inside": 0.125, "between": 0.0625, "bubble": 0.2,
    }  # fmt: skip
    assert (values["tokens"], values["global_batch"], values["batch"]) == (10**9, 24, 2)
    empty = made(Question(1e9)).as_dict()
    for name in ("tokens", "global_batch", "layout", "step_seconds", "wire_bytes", "implied_global_batch"):
        assert empty[name] is None


def served(question, **changes):
    numbers = {
        "question": question, "chip": CHIP, "parameters": 1_234_567, "weights": bytes_of(matrices_in_int4=GIB, tables=GIB // 2),
        "cache_bytes": GIB // 8, "cache_bytes_per_token": 2**17, "working_bytes": GIB // 4, "logits_bytes": 2**20,
        "allowance": bytes_of(context=GIB), "allowance_reason": "as given", "largest_batch": 3,
        "prefill": Bounds(0.05, 0.25, 7, 8, "memory", 9, 10**10, 0.01, 0.02),
        "tokens": ((1, Bounds(0.002, 0.004, 7, 8, "memory", 9)), (2, Bounds(0.0025, 0.005, 7, 8, "links", 10))),
        "batch_for_latency": None, "facts": ("a note",),
    }  # fmt: skip
    numbers |= changes
    numbers["unfilled_bytes"] = -question.length % question.page * numbers["cache_bytes_per_token"]
    return Served(**numbers)


def test_the_whole_answer_about_serving():
    question = ServingQuestion(
        MODELS["gpt2"], name="ours", count=2, prompt=1000, output=500, weights="int4", cache="fp8", latency=0.02, page=9,
        price_per_hour=1.8,
    )  # fmt: skip
    answer = served(question, batch_for_latency=(1000, 2), average=(0.002, 0.004))
    # A page of 9 tokens of 2¹⁷ bytes wastes 8 of them at worst, 1 MiB, and half of that on average. Of a million tokens one
    # takes 0.002 s / 2, on two accelerators at 1.8 an hour: 1, and twice that if nothing overlaps. Of a prompt's 0.25 s each of
    # its 500 tokens has a share: 0.5. Many prompts together share the weights, and each sends for 0.02 s: 0.04.
    # 1,500 tokens leave 3 of their last page empty.
    total = 1.5 + 0.25 + 1 + 2 * (0.125 + 3 / 8192 + 1 / 1024)
    assert answer.page_waste == (2**19, 2**20) and answer.total(2) == total * GIB
    assert str(answer) == (
        """\
ours: 1,234,567 parameters, weights in int4, cache in fp8
on 2 × one-chip (tensor parallel), each 2 TB/s and 1,000 TFLOP/s
prompts of 1,000 tokens, answers of 500
memory of one accelerator
  matrices in int4              1.00 GiB  4.156 bits a weight
  tables                        0.50 GiB
  prefill activations           0.25 GiB
  allowance                     1.00 GiB
    as given
  logits of a sequence        0.0010 GiB
  cache of a sequence           0.12 GiB  131,072 bytes a token
    pages of 9 tokens leave 0.50 MiB of it empty on average, 1.00 at worst
  available                    64.00 GiB
the memory holds 3 sequences at once
at the datasheet's rates, if all overlaps and if nothing does:
  time to first token (TTFT): 50 to 250 ms (memory bound)
  time per output token (TPOT) with a context of 1,500 tokens:
  batch   ms a token   tokens per second    GiB   bound by
      1       2 to 4          250 to 500   2.88   memory
      2     2.5 to 5          400 to 800   3.00   links
  within 20 ms a token at the datasheet's rates: 1,000 sequences if all
    overlaps, 2 if nothing does
  sustained, prompts included, at batch 2: 400 to 962 tokens per second, 0.8 to
    1.92 requests per second
  a million output tokens, prompts included, cost 1.04 to 2.5 at batch 2
    decoding 1 to 2, averaged over the answer; prompts 0.04 to 0.5 (at best
      several in one pass)
note: a note
note: if all overlaps, a pass reads weights and cache once while the chip
  computes; if nothing does, each operation reads, computes and writes by
  itself. Launches, the latency of links, sampling and the scheduler are left
  out, and no kernel reaches these rates: engines are slower than the first
  bound, and many also than the second (--efficiency 70% takes 70 % of both
  rates)"""
    )
    values = answer.as_dict()
    assert (
        values["page_waste_bytes"] == {"average": 2**19, "worst": 2**20} and values["bits_per_weight"] == 4 + 20 / 128
    )
    assert values["batch_for_latency"] == {"at_best": 1000, "if_nothing_overlaps": 2}
    # Seconds of a token: 0.001 and 0.04 ms of its prompt, or 0.002 and 0.5 ms; 500 tokens are a request.
    assert values["sustained"] == pytest.approx({
        "batch": 2, "tokens_per_second_most": 1 / 0.00104, "tokens_per_second_least": 400,
        "requests_per_second_most": 1 / 0.00104 / 500, "requests_per_second_least": 0.8,
    })  # fmt: skip
    cost = values["cost_per_million_tokens"]
    assert cost.pop("decoding") == pytest.approx({"least": 1, "most": 2})
    assert cost.pop("prompts") == pytest.approx({"least": 0.04, "most": 0.5})
    assert cost == pytest.approx({"least": 1.04, "most": 2.5, "batch": 2})
    # Where writing the cache or computing takes longer than sending, it is theirs.
    for slowest, share in (
        (Bounds(0.05, 0.25, 7, 8, "memory", 9, 10**11), 0.1),
        (Bounds(0.1, 0.2, 7, 8, "memory", 9, 8, 0.06), 0.12),
    ):
        together = served(question, prefill=slowest, average=(0.002, 0.004), batch_for_latency=(1000, 2))
        assert together.cost.prompts[0] == pytest.approx(share)
    assert values["prefill_seconds"] == {"least": 0.05, "most": 0.25, "bound": "memory", "sent_bytes": 9}
    row = {
        "batch": 2,
        "least": 0.0025,
        "most": 0.005,
        "bound": "links",
        "sent_bytes": 10,
        "total_bytes": total * GIB,
        "fits": True,
    }
    assert values["tokens"][1] == row | {"tokens_per_second_most": 800, "tokens_per_second_least": 400}


def test_passes_of_a_prompt_are_said_where_there_are_several():
    question = ServingQuestion(MODELS["gpt2"], prompt=900, output=100, chunk=899)
    several, one = (str(served(dataclasses.replace(question, prompt=prompt))) for prompt in (900, 899))
    assert "prompts of 900 tokens in passes of 899 tokens, answers of 100\n" in several
    assert "  prefill activations           0.25 GiB  of one pass\n" in several
    assert "prompts of 899 tokens, answers" in one and "  prefill activations           0.25 GiB\n" in one


def test_one_sequence_is_one():
    question = ServingQuestion(MODELS["gpt2"], prompt=900, output=100, latency=0.1)
    text = str(served(question, largest_batch=1, batch_for_latency=(1, 0)))
    assert "the memory holds 1 sequence at once\n" in text and "1 sequence if all overlaps, none if" in said(text)


def test_what_an_answer_about_serving_leaves_out():
    question = ServingQuestion(MODELS["gpt2"], prompt=1000, output=500, latency=0.2, weights="bf16")
    plain = {"weights": bytes_of(matrices_in_bf16=GIB, tables=GIB // 2)}
    fits, bare = (
        served(question, batch_for_latency=(0, 0), **plain),
        served(dataclasses.replace(question, latency=None)),
    )
    assert "on one-chip, 2 TB/s and" in str(fits) and "\nmemory\n" in str(fits) and "bits a weight" not in str(fits)
    assert "no batch meets 200 ms a token at the datasheet's rates\n" in str(fits)
    assert bare.as_dict()["sustained"] is None and "sustained" not in str(bare)
    assert "within" not in str(bare) and "cost" not in str(bare) and "if it did fit" not in str(bare)
    assert bare.as_dict()["cost_per_million_tokens"] is None is bare.as_dict()["bits_per_weight"]
    over = served(question, largest_batch=0, chip=chip(CHIP, memory_bytes=2 * GIB)[0])
    # 2.75 GiB, and a sequence of 0.125 GiB with 4 empty tokens of 94 pages and logits of 1 MiB.
    assert over.total(1) == round((2.75 + 0.125 + 4 / 8192 + 1 / 1024) * GIB)
    assert "it does not fit: 0.88 GiB too much for one sequence; nor would it with weights" in said(str(over))
    assert "\nat the datasheet's rates, if all overlaps and if nothing does, if it did fit:\n" in str(over)
    assert "sequences at once" not in str(over)


def test_seconds_are_said_in_seconds_and_rates_as_what_they_are():
    question = ServingQuestion(MODELS["gpt2"], prompt=900, output=100, efficiency=0.7)
    slow = Bounds(0.75, 129.5, 7, 8, "compute")
    assert "TTFT): 0.75 to 130 s (compute bound)" in str(served(question, prefill=slow))
    assert "TTFT): 0.75 to 1 s" in str(served(question, prefill=dataclasses.replace(slow, most=1.0)))
    assert "TTFT): 750 to 999 ms" in str(served(question, prefill=dataclasses.replace(slow, most=0.999)))
    assert "at 70 % of the datasheet's rates, if all" in str(served(question))
    assert str(served(question)).endswith("the scheduler are left\n  out")
    bandwidth, peak = {"bandwidth": 1e12}, {"peak_flops_per_second": 1e15}
    for changes, rates in (
        (bandwidth, "the bandwidth given and the datasheet's peak"), (peak, "the peak given and the datasheet's bandwidth"),
        (bandwidth | peak, "the rates given"), ({"accelerator": None}, "the rates given"),
    ):  # fmt: skip
        given = dataclasses.replace(question, efficiency=1.0, **changes)
        assert f" at {rates}, if all overlaps" in said(str(served(given)))
    # Few bytes are said in MB, few tokens with three digits, and equal rates once.
    sent = bytes_of(tensors=122_000, experts=10**7, data=1_406_000_000_000)
    assert "sends in a step: tensors 0.122 MB, experts 0.01 GB, data 1,406 GB" in said(str(made(wire=sent)))
    for bounds, rate in (((0.0418, 0.0417), "23.9 to 24 "), ((0.25, 0.25), " 4 ")):
        rows = str(served(question, tokens=((1, Bounds(*reversed(bounds), 7, 8, "memory")),)))
        assert rate in rows.partition("bound by")[2].splitlines()[1]


def test_a_chip_without_a_name_is_as_given():
    """No accelerator is called "given"."""
    assert "on 4 accelerators as given (1,000 TFLOP/s each) at" in str(made(chip=GIVEN))
    assert "on 1 accelerator as given (1" in str(made(dataclasses.replace(RUN, count=1), chip=GIVEN))
    question = ServingQuestion(MODELS["gpt2"], prompt=900, output=100, accelerator=None)
    assert "\non an accelerator as given, 2 TB/s" in str(served(question, chip=GIVEN))
    two = served(dataclasses.replace(question, count=2), chip=GIVEN)
    assert "\non 2 accelerators as given (tensor parallel), each 2 TB/s" in str(two)


def test_what_helps_where_nothing_fits():
    advice = (
        ServingAdvice({"weights": "int4"}, 1),
        ServingAdvice({"count": 12, "node": 1}, 1234, between_nodes=True),
    )
    over = served(
        ServingQuestion(MODELS["gpt2"], prompt=1000, output=500), largest_batch=0, advice=advice,
        chip=chip(CHIP, memory_bytes=2 * GIB)[0],
    )  # fmt: skip
    assert """
  it does not fit: 0.88 GiB too much for one sequence; what helps:
  - weights in int4 (--weights int4): then 1 sequence fits
  - 12 accelerators (--count 12 --node 1, and --between-nodes with the rate of
    their network): then 1,234 sequences fit
at the""" in str(over)
    assert over.as_dict()["advice"][0] == {
        "change": "weights in int4 (--weights int4)", "changes": {"weights": "int4"}, "largest_batch": 1,
    }  # fmt: skip


ROWS = ((1, Bounds(0.002, 0.004, 7, 8, "memory")), (3, Bounds(0.003, 0.006, 7, 8, "memory")), (
    5, Bounds(0.005, 0.01, 7, 8, "memory")))  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "within", "largest", "batch"),
    [
        (None, None, 3, 3), (1, None, 3, 1), (3, None, 3, 3), (5, None, 3, 3), (1, (3, 3), 3, 1), (5, (3, 1), 5, 5),
        (5, (3, 1), 3, 1), (None, (3, 1), 5, 1), (None, (3, 0), 5, 3),
    ],
)  # fmt: skip
def test_the_price_is_that_of_a_batch_that_can_be(asked, within, largest, batch):
    question = ServingQuestion(MODELS["gpt2"], batch=asked, latency=0.01, prompt=8, output=50, price_per_hour=3.6)
    answer = served(question, largest_batch=largest, tokens=ROWS, batch_for_latency=within, average=(0.001, 0.002))
    assert f" at batch {batch}\n    decoding" in str(answer)
    cost = answer.as_dict()["cost_per_million_tokens"]
    assert cost["batch"] == batch and cost["decoding"] == pytest.approx({"least": 1 / batch, "most": 2 / batch})


def test_a_price_of_long_numbers_is_folded():
    question = ServingQuestion(MODELS["gpt2"], prompt=8, output=50, price_per_hour=0.0123, batch=65_536)
    rows = ((65_536, Bounds(0.123, 0.234, 7, 8, "memory")),)
    answer = served(question, largest_batch=65_536, tokens=rows, average=(0.123, 0.234))
    assert max(map(len, str(answer).splitlines())) <= 80
    assert "a million output tokens, prompts included, cost 0.00137 to 0.0171 at batch 65,536" in said(str(answer))


@pytest.mark.parametrize(
    ("within", "largest", "why"), [(None, 0, "not one sequence fits"), ((0, 0), 0, "not one sequence fits"),
                                   ((0, 0), 3, "no batch meets the latency")],
)  # fmt: skip
def test_what_cannot_be_has_no_price(within, largest, why):
    question = ServingQuestion(MODELS["gpt2"], batch=5, latency=0.01, prompt=8, output=50, price_per_hour=3.6)
    answer = served(question, largest_batch=largest, tokens=ROWS, batch_for_latency=within)
    assert f"a million output tokens have no price: {why}" in said(str(answer))
    assert answer.as_dict()["cost_per_million_tokens"] is None
    assert "have no price" not in str(served(dataclasses.replace(question, price_per_hour=None), largest_batch=0))


def test_a_batch_that_does_not_fit_says_so():
    question = ServingQuestion(MODELS["gpt2"], prompt=1000, output=500)
    lines = str(served(question, largest_batch=3, tokens=ROWS)).splitlines()
    assert [line.split()[0] for line in lines if line.endswith("   memory     does not fit")] == ["5"]
    assert [row["fits"] for row in served(question, tokens=ROWS).as_dict()["tokens"]] == [True, True, False]
    # Columns move together where a row would be wider than a terminal.
    for most, length, start in (
        (5.678, 80, "  65,536   1,234 to 5,678   "),
        (12.345, 76, "  65,536  1,234 to 12,345  "),
    ):
        long = served(question, tokens=((65536, Bounds(1.234, most, 7, 8, "compute")),), cache_bytes=2**21)
        (row,) = (line for line in str(long).splitlines() if line.endswith("does not fit"))
        assert row.startswith(start) and len(row) == length


def test_layouts_that_were_found_as_a_table():
    one = FoundLayout(Layout(fsdp=4, tp=2), bytes_of(parameters=GIB), 3 * GIB, SECONDS)
    other = dataclasses.replace(
        one, layout=Layout(dp=8), seconds=dataclasses.replace(SECONDS, lower=1234.0, bubble=0.6)
    )
    assert found_text(made(), [one, other]) == (
        """\
layouts that fit, quickest first   GiB  s a step            bounds
fsdp=4,tp=2                       1.00     0.625       0.5 to 0.75
dp=8                              1.00     0.625  1.23e+03 to 0.75
seconds with matrix products at 0.8 of the peak (--product-rate), however small
tp and cp make them. In this order: what products wait for is added (sums of tp,
tokens of ep, keys and values of cp, the pipeline), and parameters and gradients
are sent meanwhile; of those within 5 %, fewer kinds of ranks come first, then
fewer bytes. Bounds: if all overlaps, and if nothing does"""
    )
    assert found_text(made(), []).startswith("no layout of 4 accelerators fits: --checkpointing and --chunks 8 need")
    assert str(one) == (
        "fsdp=4,tp=2: 1.00 GiB, 3.00 GiB free, 0.5 to 0.75 s for 24 sequences: compute 0.25 s, "
        "links inside a node 0.125 s, between nodes 0.0625 s, bubble 20.0 %"
    )


def test_formulas_of_a_number_of_parameters():
    question = Question(2e9, count=4, tokens=10**9, mfu=0.5, price_per_hour=2.5, watts=500, precision="mixed")
    rows = formulas(made(question, parameters=2 * 10**9, trainable=None, flops=12 * 10**18))
    assert rows == {
        "parameters": "2,000,000,000, as given",
        "FLOPs": "6 × 2,000,000,000 × 1,000,000,000 = 1.2e+19",
        "days": "1.2e+19 / (4 × 1e+15 FLOP/s × 0.5 × 86,400 s) = 3, 3.0 days",
        "cost": "288.00 hours × 2.5 = 720.00",
        "energy": "288.00 hours × 500 W / 1000 = 144.00 kWh",
        "parameters' bytes": "2,000,000,000 × 2 (bf16) / 4 accelerators",
        "optimizer state": "2,000,000,000 × 2 × 4 (fp32) and 4 for each tensor's step / 4 accelerators",
        "master weights": "2,000,000,000 × 4 (fp32) / 4 accelerators",
        "gradients": "2,000,000,000 × 2 (bf16) / 4 accelerators",
        "allowance": "context 1.00 GiB",
        "fits": "2.25 + 1.00 GiB ≤ 64.00 GiB",
    }
    alone = dataclasses.replace(question, count=1, tokens=None, price_per_hour=None, watts=None, precision="bf16")
    rows = formulas(made(alone, trainable=None, flops=None, days=None, fits=False, allowance=bytes_of()))
    assert rows["fits"] == "2.25 + 0.00 GiB > 64.00 GiB" and rows["allowance"] == "0"
    assert (
        not {"FLOPs", "days", "cost", "energy", "master weights"} & {*rows} and "accelerators" not in rows["gradients"]
    )


def test_a_change_moves_as_far_as_the_further_of_its_factors():
    assert (
        Change("a", 0.5, 1.25).largest == 0.5
        and Change("a", 1.1, 3.0).largest == 2
        and Change("a", None, 0.75).largest == 0.25
    )
