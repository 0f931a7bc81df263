"""The exam: one question for each lesson, no number of an answer typed, and each answer computed in a second way."""

import math
import re
import tomllib
from functools import partial, reduce
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cs336course import exam
from cs336kit import lm, measure, predict
from cs336kit.predict import FORMATS, TransformerConfig

QUESTIONS = exam.questions()
LESSONS = sorted(path.name[:2] for path in (Path(__file__).parents[2] / "notebooks").glob("[0-9][0-9]_*.ipynb"))
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?")
LLAMA = {"mlp": "swiglu", "norm": "rmsnorm", "positions": "rope", "bias": "none"}
SECOND = {}
near = pytest.approx


def second(function):
    """Adds what computes a lesson's answer in a second way, and raises where it differs."""
    SECOND[function.__name__.removeprefix("lesson_")] = function
    return function


def test_every_question_is_about_a_lesson_and_every_answer_has_a_second_way():
    assert {*QUESTIONS} <= {*LESSONS}, "each question in cs336course/exam.toml has the number of a lesson"
    assert {*SECOND} == {*QUESTIONS}, "each question has a function below, lesson_NN under @second"


@pytest.mark.parametrize("number", sorted(QUESTIONS))
def test_the_answer_is_what_a_second_way_gives(number):
    SECOND[number](SimpleNamespace(**QUESTIONS[number].values))


@pytest.mark.parametrize("number", sorted(QUESTIONS))
def test_no_number_of_an_answer_is_typed(number):
    """What an answer types is in its question, or a whole number below 100; each value is used."""
    question = QUESTIONS[number]
    typed = set(NUMBER.findall(re.sub(r"{[^}]*}", "", question.template)))
    small = {text for text in typed if re.fullmatch(r"\d\d?", text)}
    assert typed - small <= set(NUMBER.findall(question.asked)), number
    shown = set(re.findall(r"{(\w+)", question.template))
    assert shown <= set(question.values) and "{" not in question.answer


ENTRIES = tomllib.loads(exam.FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", LESSONS)
def test_the_numbers_of_a_question_are_those_that_its_values_begin_with(number):
    assert exam.untied(ENTRIES[number]) == []


@pytest.mark.parametrize("number", LESSONS)
def test_what_an_answer_says_of_its_numbers_in_words_is_so(number):
    assert exam.false(ENTRIES[number]) == []


def test_a_false_word_of_an_answer_is_seen():
    def seen(number, old, new):
        assert old in ENTRIES[number]["answer"]
        return exam.false(ENTRIES[number] | {"answer": ENTRIES[number]["answer"].replace(old, new, 1)})

    assert seen("02", "more than 0.001", "less than 0.001") == [
        "'0.00195, which is less than 0.001' is the other way round"
    ]
    assert seen("00", "half of what is printed", "a quarter of what is printed") == [
        "'a quarter of what is printed. At that pe' is not listed: say in shares what computes it"
    ]
    assert seen("04", "a quarter", "a third")[1:] == ["'a quarter' is listed and not needed"]
    less = ENTRIES["04"] | {"shares": {"a quarter": "1 / 3"}}
    assert exam.false(less) == ["'a quarter' is 0.333"]
    # The numbers of an equation may be computed, and the equation still be typed wrong.
    sums = {"question": "How many?", "values": {"n": "2"}, "answer": "Of both together, 6 · {n:.0f} = 12."}
    assert exam.false(sums) == []
    assert exam.false(sums | {"answer": "Of both together, 6 · {n:.0f} = 13."}) == ["'6 · 2 = 13' is not so"]


def test_another_number_of_a_question_is_seen():
    entry = ENTRIES["00"]
    for old, new, seen in (("60 days", "66 days", ["66"]), ("96 GB", "80 GB", ["80 GB", "96 GB"])):
        changed = entry | {"question": entry["question"].replace(old, new, 1)}
        found = [" ".join(text.split(" is ")[0].split()) for text in exam.untied(changed)]
        assert found == seen


def test_a_power_of_ten_and_a_sign_are_set_as_in_the_lessons():
    answer = exam.Question("", "{a:.3g}, {b:.1e}, {b:.0%}, {c:.1f}", {"a": 4.08e23, "b": 6.1e-5, "c": -0.77}).answer
    assert answer == "4.08 · 10²³, 6.1 · 10⁻⁵, 0 %, −0.8"


@second
def lesson_00(v):
    how = {"accelerators": 256, "peak_flops_per_second": 800e12}
    assert predict.training_days(34e9, tokens=2e12, mfu=v.mfu, **how) == near(60)
    assert predict.training_days(34e9, tokens=round(v.tokens * 1e12), mfu=0.25, **how) == near(60)
    assert predict.training_days(round(v.smaller * 1e9), tokens=2e12, mfu=0.25, **how) == near(60)
    assert predict.bytes_per_parameter("adamw", precision="mixed").total == v.each


@second
def lesson_01(v):
    f, other = FORMATS["fp6_e3m2"], FORMATS["fp6_e2m3"]
    assert (f.max, f.min_normal, f.min_subnormal) == (v.largest, v.normal, v.subnormal)
    assert [f.round(x) for x in (5.4, 0.09, 40)] == [v.a, v.b, v.c]
    values = set(f.values())
    assert (len(values), sum(-1 < x < 1 for x in values)) == (v.count, v.inside)
    assert (other.max, other.min_subnormal) == (v.largest23, v.subnormal23)
    assert (f.eps / 2, other.eps / 2) == (v.error2, v.error3)


@second
def lesson_02(v):
    assert FORMATS["bf16"].spacing(0.75) == v.gap and FORMATS["bf16"].round(0.751) == 0.75
    runs = measure_runs(weights := torch.full((20_000,), 0.75, dtype=torch.float64))
    assert runs.mean().item() == near(v.mean, abs=1e-3) and runs.std().item() == near(v.spread, rel=0.03)
    assert weights.eq(0.75).all()
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(4096):
        total += 0.5
    assert total.item() == v.stops and total.item() / 4096 == v.reported


def measure_runs(weights):
    """The weights after 100 updates of 0.001 in bf16, rounded stochastically."""
    for step in range(100):
        weights = torch.from_numpy(
            measure.rounded((weights + 0.001).numpy(), FORMATS["bf16"], mode="stochastic", seed=step)
        )
    return weights


@second
def lesson_03(v):
    x = torch.arange(48).view(6, 8)
    y = x[::2, 1:7]
    assert (y.storage_offset(), y.stride(), y[2, 4].item()) == (v.offset, (v.down, 1), v.position)
    kinds = [measure.view_or_copy(f, y) for f in (lambda y: y.reshape(18), lambda y: y.T.reshape(18))]
    assert kinds == ["copy", "copy"] and y.view(3, 2, 3).stride() == (v.down, v.cut, 1)
    assert measure.view_or_copy(lambda y: y.T.reshape(6, 3), y) == "view"
    assert measure.storage_bytes([y[0, 0]]) == v.held and measure.storage_bytes([y[0, 0].clone()]) == v.clone
    before = x.clone()
    y.add_(1)
    assert (x != before).sum() == v.changed


@second
def lesson_04(v):
    seconds = partial(predict.pipeline_seconds, 500, compute_seconds=12e-3)
    assert predict.pcie_bandwidth(4) == near(v.rate * 1e9)
    for copy, overlapped, turns in ((v.copy, v.overlapped, v.turns), (v.copy8, v.overlapped8, v.turns8)):
        assert seconds(copy_seconds=copy / 1e3, overlap=True) == near(overlapped)
        assert seconds(copy_seconds=copy / 1e3, overlap=False) == near(turns)
    assert seconds(copy_seconds=v.slow / 1e3, overlap=True) == near(v.overlapped + v.latency / 1e3)
    stock = predict.reserved_bytes([600] * 3000)
    assert (stock.allocated, stock.reserved) == (v.allocated, v.reserved * 2**20)


@second
def lesson_05(v):
    ones = torch.ones(2, 3, 8, 32)
    assert torch.einsum("bsah,btah->bst", ones, ones).unique().item() == v.wrong
    assert torch.einsum("bsah,btah->bast", ones, ones).unique().item() == v.right
    features = torch.arange(256)
    assert features.view(8, 32)[1, :3].tolist() == [v.first, v.second, v.third]
    assert features.view(32, 8)[:3, 1].tolist() == [v.other1, v.other2, v.other3]
    shapes = {"s t, t h": ((1024, 1024), (1024, 64)), "s h, h d": ((1024, 64), (64, 1024))}
    shapes |= {"t h, h d": ((1024, 64), (64, 1024)), "s t, t d": ((1024, 1024), (1024, 1024))}
    turns = {p: predict.einsum_flops(f"{p} -> {p[0]} {p[-1]}", *shape) / 2e6 for p, shape in shapes.items()}
    assert (turns["s t, t h"] + turns["s h, h d"], turns["t h, h d"] + turns["s t, t d"]) == near((v.one, v.two))


@second
def lesson_06(v):
    sizes = {"layers": 1, "d_model": 2048, "heads": 16, "kv_heads": 4, "d_ff": 5632, "vocab": 8, "context": 11_008}
    flops = partial(predict.forward_flops, TransformerConfig(**sizes, **LLAMA), batch=1)
    parts = flops(sequence=4096)
    pairs = parts["attention scores"] + parts["attention values"]
    assert (pairs / 1e9, (parts.total - parts["head"] - pairs) / 1e9) == near((v.attention, v.linear))
    assert (parts["query"] + parts["key"] + parts["value"]) / 1e9 == near(v.linear - v.biased)
    equal = flops(sequence=round(v.equal))
    assert equal["attention scores"] + equal["attention values"] == near((equal.total - equal["head"]) / 2)


@second
def lesson_07(v):
    def best(cost, peak=400e12, bandwidth=2e12):
        return predict.roofline(cost, peak_flops_per_second=peak, bandwidth_bytes_per_second=bandwidth)

    few, many = predict.matmul_cost(100, 4096, 16384), predict.matmul_cost(1000, 4096, 16384)
    assert (best(few).bound, best(few).ridge) == ("memory", v.ridge) and best(few).intensity == near(v.intensity)
    assert best(few).seconds * 1e6 == near(v.least) and best(few).flops_per_second / 400e12 == near(v.mfu)
    gelu = predict.elementwise_cost(100 * 16384, flops_per_element=8)
    assert best(gelu).seconds * 1e6 == near(v.gelu)
    assert best(few).seconds / best(few, bandwidth=3e12).seconds == near(v.faster)
    assert best(few).seconds == best(few, peak=800e12).seconds
    assert best(many).seconds / best(many, peak=800e12).seconds == near(v.faster1000)
    assert best(many).seconds == best(many, bandwidth=3e12).seconds and v.bytes1000 < v.compute1000


@second
def lesson_08(v):
    def kept(*needs):
        shapes = (64, 100), (100, 300), (100, 300), (300, 10)
        x, *w = (torch.randn(shape).requires_grad_(need) for shape, need in zip(shapes, needs, strict=True))
        run = lambda: ((x @ w[0]).tanh() * (x @ w[1]).sigmoid()) @ w[2]  # noqa: E731
        return measure.saved_activation_bytes(run, without=w).total

    assert kept(False, True, True, True) == kept(True, True, True, True) == v.kept
    assert (kept(False, True, True, False), kept(False, False, False, True)) == (v.frozen, v.only)
    x = lm.Scalar(-20)
    for _ in range(10):
        x = x + x.exp()  # the engine has no tanh; the graph is the same
    assert len(measure.graph(x).nodes) == v.nodes
    assert reduce(lambda calls, _: 1 + calls + (1 + calls), range(10), 1) == v.calls


@second
def lesson_09(v):
    def products(trained, soft=False, segments=None):
        x = torch.randn(4, 8).requires_grad_(soft)
        weights = [torch.randn(8, 8).requires_grad_(layer in trained) for layer in range(1, 25)]

        def run(x, *weights):
            return reduce(torch.matmul, weights, x)

        def step():
            z = x
            for i in range(0, 24, 24 // (segments or 1)):
                part = weights[i : i + 24 // (segments or 1)]
                z = checkpoint(run, z, *part, use_reentrant=False) if segments else run(z, *part)
            z.sum().backward()

        return measure.flops(step).total / (2 * 4 * 8 * 8)

    everything = range(1, 25)
    assert (products(everything), products(range(9, 13)), products((), soft=True)) == (v.full, v.some, v.prompt)
    assert products(everything, segments=4) == v.checkpointed


@second
def lesson_10(v):
    def behind(std, activation):
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(400, 512, generator=draw)
        return activation(x @ (std * torch.randn(512, 512, generator=draw))).square().mean().item()

    assert behind(0.07, torch.relu) == near(v.factor, rel=0.05) and v.factor**30 == v.behind
    assert behind(v.std, torch.relu) == near(v.most, rel=0.05) and v.most**15 == near(65504)
    assert behind(v.absolute, torch.abs) == near(1, rel=0.05)
    assert 1 / (1 + 80 * v.s**2) == near(1 / 3) and v.half == near(1 / 2)


@second
def lesson_11(v):
    table, squares, vectors = [(50_000, 1024)], 300 * [(1024, 1024)], 98 * [(1024,)]
    adamw = predict.optimizer_state_bytes("AdamW", shapes=table + squares + vectors).total
    rest = predict.optimizer_state_bytes("AdamW", shapes=table + vectors).total
    muon = predict.optimizer_state_bytes("Muon", shapes=squares).total
    assert (adamw / 1e6, (rest + muon) / 1e6) == near((v.adamw, v.mixed))
    assert sum(map(math.prod, table + squares + vectors)) * 4 / 1e6 == near(v.top)

    def ends(make, steps, gradient=0.0, start=1.0, **options):
        p = torch.nn.Parameter(torch.full((1,), start, dtype=torch.float64))
        optimizer = make([p], lr=0.001, foreach=False, **options)
        for _ in range(steps):
            p.grad = torch.full_like(p, gradient)
            optimizer.step()
        return p.item()

    first = partial(ends, torch.optim.AdamW, 1, gradient=1e-6, start=0.0, weight_decay=0)
    assert (-first(eps=1e-8), -first(eps=1e-6)) == near((v.small, v.large))
    assert ends(torch.optim.AdamW, 100, weight_decay=0.1) == near(v.decayed)
    assert [ends(torch.optim.Adam, 100, weight_decay=decay) for decay in (0.1, 0.01)] == near([v.penalty] * 2, abs=0.02)


@second
def lesson_12(v):
    causal = torch.ones(16, 16).tril()
    windows = torch.matrix_power(causal.triu(-3), 3)
    assert windows[12].nonzero().flatten().tolist() == list(range(v.lowest, 13)) and v.seen == 13 - v.lowest
    place = torch.arange(16)
    prefix = ((place[:, None] < 5) & (place < 5)).float().maximum(causal)
    felt = torch.matrix_power(prefix, 3) > 0
    assert [int(felt[:, t].sum()) for t in (3, 7)] == [v.prefix, v.later]
    assert [s for s in range(15) if felt[s, s + 1]] == [0, 1, 2, 3]
    assert v.without == near(v.with_root**8)


@second
def lesson_13(v):
    state = predict.optimizer_state_bytes("AdamW", parameters=1_300_000_000, tensors=1).total
    assert (state + 2 * 4 * 1.3e9) / 1e9 == near(v.size, rel=1e-6)

    def lost(interval):
        return v.write / interval + interval / 2 / (20 * 3600)

    assert lost(3600) == near(v.lost) and min(map(lost, range(60, 7200))) == near(v.least, rel=1e-4)
    assert 0.999 ** math.ceil(v.steps) < 0.01 < 0.999 ** math.floor(v.steps)


@second
def lesson_14(v):
    def kept(parallel, attention):
        sizes = {"layers": 1, "d_model": 4096, "heads": 32, "vocab": 100, "context": 2048}
        config = TransformerConfig(**sizes, parallel=parallel, norms_per_block=1 if parallel else 2)
        how = {"batch": 1, "sequence": 2048, "precision": "bf16", "attention": attention, "device": "cuda"}
        return predict.saved_block_bytes(config, **how).total

    assert (kept(True, "sdpa") / 1e6, kept(True, "eager") / 1e6) == near((v.block, v.eager))
    assert 32 * (kept(False, "sdpa") - kept(True, "sdpa")) / 1e9 == near(v.saved)


@second
def lesson_15(v):
    each = predict.bytes_per_parameter("adamw", precision="fp32")
    assert (0.4 * (each.total - each["gradients"]), 0.4 * each["gradients"]) == near((v.there, v.gradients))
    # A model whose vocabulary is as large beside the rest: the same moments, in the same order.
    config = TransformerConfig(layers=4, d_model=512, heads=8, vocab=100_000, context=512)
    how = {"batch": 8, "sequence": 512, "foreach": True, "attention": "sdpa"}
    logits = 8 * 512 * 100_000 * 4
    moments = predict.peak_moments(config, **how)
    assert max(moments, key=moments.get) == "loss" and logits / 1e9 == near(v.logits)
    kept = predict.saved_activation_bytes(config, batch=8, sequence=512, attention="sdpa").total
    # Beside parameters and state, which are there all the time. The kept logits are among the activations.
    assert moments["loss"] == near(kept + 2 * logits, rel=0.02)
    assert moments["optimizer step"] == near(8 * predict.parameters(config).total, rel=0.01)
    assert v.loss > v.step and v.sliced < 9 and v.chunked < 9 and v.chunked == near(v.step, rel=0.02)


@second
def lesson_16(v):
    fp16, bf16 = FORMATS["fp16"], FORMATS["bf16"]
    assert 2.0**-9 * 2**v.top <= fp16.max < 2.0**-9 * 2 ** (v.top + 1)
    assert 2.0**-34 * 2**v.bottom == fp16.min_normal and fp16.round(2.0**-25) == 0 < fp16.round(2.0**-25 * 1.01)
    weight = bf16.round(0.02)
    assert bf16.round(weight + 0.99 * v.half) == weight != bf16.round(weight + 1.01 * v.half)
    rate = lm.cosine_schedule(round(v.x * 10**6), max_lr=3e-4, min_lr=3e-5, warmup_steps=0, total_steps=10**6)
    assert rate == near(v.half, rel=1e-4)


@second
def lesson_17(v):
    sizes = {"layers": 30, "d_model": 2560, "heads": 20, "kv_heads": 5, "d_ff": 8960, "vocab": 100_000}
    config = TransformerConfig(**sizes, context=4096, tied_head=True, **LLAMA)
    size = {"batch": 1, "sequence": 4096}
    forward, step = predict.forward_flops(config, **size), predict.training_flops(config, **size).total
    assert predict.parameters(config).total == near(v.P * 1e9) and forward.total / 4096 == near(v.forward * 1e9)
    assert forward["head"] / forward.total == near(v.head_share)
    rules = [predict.six_nd_estimate(config, **size, embeddings=tables) / step for tables in (True, False)]
    assert rules == near([v.rule, v.without], rel=1e-4)
    assert predict.largest_model(v.cards - 1, memory_bytes=18e9, bytes_per_parameter=16) < v.P * 1e9
    assert predict.largest_model(v.cards, memory_bytes=18e9, bytes_per_parameter=16) >= v.P * 1e9


@second
def lesson_18(v):
    for ranks in (64, 256):
        assert predict.ring_bytes("all-reduce", 26 * 10**9, ranks=ranks) / 1e9 == near(v.sent, rel=0.02)
    gathered = 2 * predict.ring_bytes("all-gather", 26 * 10**9, ranks=64)
    scattered = predict.ring_bytes("reduce-scatter", 26 * 10**9, ranks=64)
    assert 4 * (gathered + scattered) / 1e9 == near(v.fsdp_sent, rel=0.02)
    assert 4 * 13e9 * v.needed / 300e12 == near(v.sending) and v.fsdp_time > v.compute
    assert predict.Layout.parse("pp=8,microbatches=24").bubble == near(v.bubble) and v.both < 80


@second
def lesson_19(v):
    config = TransformerConfig(layers=40, d_model=5120, heads=40, kv_heads=8, vocab=100, context=6000)
    cache = partial(predict.kv_cache_bytes, config, sequence=6000)
    assert cache(batch=32) / 1e9 == near(v.cache)
    assert cache(batch=v.fit) + 28e9 <= 86.4e9 < cache(batch=v.fit + 1) + 28e9
    read = {"weights": 14e9 / 2 + cache(batch=32), "cache": 28e9 + cache(batch=32) / 2}
    assert ((28e9 + cache(batch=32)) / read["weights"], (28e9 + cache(batch=32)) / read["cache"]) == near(
        (v.four, v.eight)
    )
    assert v.compute < v.step and predict.speculative_tokens(acceptance=0.7, guesses=3) == near(v.tokens)
    assert predict.speculative_speedup(acceptance=0.7, guesses=3, cost_ratio=0.1) == near(v.speed)


@second
def lesson_20(v):
    b = 0.75 * (1e20 / 6e9) ** 0.4 / 1e9**0.3  # so that a billion is best at 1e20
    law = lm.LossLaw(1.5, 1.0, b, 0.3, 0.4)
    assert law.optimum(1e20).parameters == near(1e9, rel=1e-3)
    best = law.optimum(1e23)
    assert (best.parameters / 1e9, best.tokens / 1e9) == near((v.P, v.N), rel=1e-3)
    assert (law.loss(v.big * 1e9, 100e9) - law.E) / (best.loss - law.E) == near(v.total, rel=1e-3)
    assert 1 / best.parameters**0.3 / (best.loss - law.E) == near(v.share, rel=1e-3)
    steeper = [1e9 * (c / 1e20) ** (v.sP + 0.05) / law.optimum(c).parameters for c in (1e23, 1e26)]
    assert steeper == near([v.e23, v.e26], rel=1e-3)


@second
def lesson_21(v):
    how = {"tokens": 600e9, "accelerators": 128}
    a100 = predict.accelerator("a100-sxm-80gb")
    assert predict.training_days(3e9, peak_flops_per_second=a100.peak("bf16"), mfu=0.45, **how) == near(v.days)
    sparse = a100.peak("bf16", sparse=True)
    assert predict.training_days(3e9, peak_flops_per_second=sparse, mfu=0.45, **how) == near(3.5, rel=0.01)
    each = predict.bytes_per_parameter("adamw", precision="mixed")
    assert 3 * (each.total - each["gradients"]) == v.gb and v.gib == near(39, rel=0.01)
    assert v.rd == near(8, rel=1e-3) and v.ra == near(1)
