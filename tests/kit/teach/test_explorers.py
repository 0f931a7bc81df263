"""The explorers: what they say, their still picture, and their controls when they are used."""

import dataclasses
import math
from html import escape
from html.parser import HTMLParser

import pytest

from cs336kit import predict
from cs336kit.lessons.claims import claims
from cs336kit.lessons.lesson_21.explorer import PARTS as claim_parts
from cs336kit.lessons.lesson_21.explorer import ROWS, STORIES
from cs336kit.teach import explorers
from cs336kit.teach.explorers import explorer as shared
from cs336kit.teach.explorers.memory import PARTS
from cs336kit.teach.explorers.roofline import OPERATIONS, duration

pytestmark = pytest.mark.torch

TOPICS = sorted({claim.topic for claim in claims()})
MAKE = {name: getattr(explorers, name) for name in ("bits", "strides", "roofline", "memory", "decoding", "claims")}


class Tags(HTMLParser):
    """The opening tags of a page with their attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def controls(explorer):
    """The controls by label, and what is shown beside them."""
    *made, note, picture = explorer.widget().children
    return {box.description: box for box in made if hasattr(box, "description")}, note, picture


@pytest.fixture
def displayed(monkeypatch):
    """Show an explorer as a cell does; returns what was displayed: (data, display id or None) of each output."""
    import IPython.display

    def show(explorer, attended):
        outputs = []
        monkeypatch.setattr(shared, "attended", lambda: attended)
        monkeypatch.setattr(IPython.display, "display", lambda data, **_: outputs.append(data))
        monkeypatch.setattr(IPython.display.DisplayHandle, "display", lambda self, data, **_: outputs.append(data))
        monkeypatch.setattr(IPython.display.DisplayHandle, "update", lambda self, data, **_: outputs.append(data))
        explorer._ipython_display_()
        return outputs

    return show


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_what_is_stored_is_the_still_picture_alone(make, displayed):
    explorer = make()
    (still,) = displayed(explorer, attended=False)
    assert set(still) == {"text/plain", "text/html"} and still["text/plain"] == repr(explorer)
    tags = Tags(still["text/html"]).found
    assert explorer._repr_html_() in still["text/html"] and not {"script", "style", "svg"} & {tag for tag, _ in tags}
    assert all(len(image["alt"]) >= 40 for tag, image in tags if tag == "img")


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_where_someone_can_move_them_controls_come_first_and_the_picture_below_follows(make, displayed, monkeypatch):
    explorer, boxes = make(), []
    widget = explorer.widget
    monkeypatch.setattr(explorer, "widget", lambda drawn: boxes.append(widget(drawn)) or boxes[0])
    outputs = displayed(explorer, attended=True)
    shown, still = outputs
    assert (
        set(shown) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
        and "Run this cell" in shown["text/plain"]
    )
    assert {"script", "style"} <= {tag for tag, _ in Tags(still["text/html"]).found}
    named = [control for control in boxes[0].children[:-2] if hasattr(control, "description")]
    assert all(control.description for control in named)
    menu = next(control for control in named if hasattr(control, "options"))
    menu.index = (menu.index + 1) % len(menu.options)
    assert len(outputs) == 3 and outputs[2]["text/plain"] == repr(explorer) != still["text/plain"]


def test_nobody_moves_anything_outside_of_a_notebook():
    assert shared.attended() is False


def test_a_refused_choice_says_why_and_goes_back():
    explorer = explorers.roofline()
    boxes, note, picture = controls(explorer)
    before = picture.value
    boxes["accelerator"].value = "v100-sxm2-32gb"
    assert "V100 SXM2 32 GB has no sourced bf16" in note.value and 'role="status"' in note.value
    assert boxes["accelerator"].value == "h100-sxm" and picture.value == before
    boxes["element type"].value = "fp16"
    boxes["accelerator"].value = "v100-sxm2-32gb"
    assert "has no" not in note.value and "V100" in picture.value


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (4096, 4096, 4096), (65536, 1, 64)])
def test_the_roofline_is_that_of_predict(operation, m, n, k):
    seen = explorers.roofline(operation, accelerator="a100-sxm-80gb", element_type="fp32", m=m, n=n, k=k)
    device = predict.accelerator("a100-sxm-80gb")
    compute, memory = seen.cost.flops / device.peak("fp32"), seen.cost.bytes / device.bandwidth
    assert seen.bound.seconds == max(compute, memory)
    limit = "the peak limits" if compute >= memory else "the memory's bandwidth limits"
    assert limit in repr(seen) and escape(limit) in seen._repr_html_()


def test_decoding_reads_the_cache_once_and_is_limited_by_memory():
    seen = explorers.roofline("attention, decode", m=32, n=4096, k=128)
    cache = 2 * 32 * 4096 * 128 * 2  # keys and values, in bf16
    assert cache < seen.cost.bytes < 1.05 * cache and seen.bound.bound == "memory"


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("precision", ["fp32", "mixed"])
def test_memory_is_that_of_predict_and_every_part_has_its_color(name, precision):
    seen = explorers.memory(name, batch=2, sequence=512, precision=precision)
    how = {"batch": 2, "sequence": 512, "precision": precision, "attention": "sdpa", "device": "cuda"}
    assert seen.kept == predict.training_memory(predict.MODELS[name], **how)
    assert seen.peak == predict.step_peak(predict.MODELS[name], foreach=True, **how)
    assert {*seen.kept, *seen.peak} <= set(PARTS)
    assert [part for part in PARTS if part in seen.figure().image] == [part for part in PARTS if part in repr(seen)]
    fits = seen.peak.total <= predict.accelerator("h100-sxm").memory_bytes
    assert ("and fits into" in repr(seen)) == fits and ("does not fit" in repr(seen)) == (not fits)


def test_memory_follows_the_rules_of_the_chosen_chip(monkeypatch):
    choices = {"precision": "autocast", "attention": "eager", "batch": 1, "sequence": 256}
    on_cuda = explorers.memory("gpt2", **choices)
    other = dataclasses.replace(predict.accelerator("mi300x"), facts=predict.accelerator("h100-sxm").facts)
    monkeypatch.setattr(predict, "accelerator", lambda name: other)
    elsewhere = explorers.memory("gpt2", accelerator="mi300x", **choices)
    heads, layers = 12, 12
    fp32_softmax = 4 * heads * layers * 256**2  # lesson 14: kept a second time, in fp32
    assert on_cuda.kept["activations"] - elsewhere.kept["activations"] == fp32_softmax
    for seen, rules in ((on_cuda, "by CUDA's rules"), (elsewhere, "by a CPU's rules")):
        assert rules in repr(seen) and escape(rules) in seen._repr_html_()


@pytest.mark.parametrize(("name", "batch"), [("llama-3-8b", 3), ("gpt-oss-20b", 64), ("deepseek-v3", 8)])
def test_a_token_takes_what_predict_says_and_reads_weights_and_caches(name, batch):
    config, device = predict.MODELS[name], predict.accelerator("h200-sxm")
    seen = explorers.decoding(name, accelerator="h200-sxm", batch=batch, cached=1000)
    how = {"accelerator": "h200-sxm", "cached": 1000, "weights": "bf16"}
    assert seen.bounds == predict.decode_bounds(config, batch=batch, **how)
    assert seen.critical == predict.critical_batch(config, **how)
    needs, read = seen.needs(batch), seen.read(batch)
    assert seen.bounds.least == pytest.approx(max(needs["weights"] + needs["caches"], needs["FLOPs"]))
    assert needs["FLOPs"] == seen.bounds.flops / device.peak("bf16")
    most = max(read, key=lambda part: read[part])
    assert f"the {most} bound it" in repr(seen) and f"the {most} bound it" in seen._repr_html_()


def test_what_is_read_of_caches_is_the_caches_with_the_new_token():
    config = predict.MODELS["llama-3-8b"]
    seen = explorers.decoding("llama-3-8b", batch=16, cached=4000, cache="fp8")
    token = 2 * config.layers * config.kv_heads * config.head_dim  # a key and a value, of one byte each
    assert seen.read(16)["caches"] == 16 * (4001 + 1) * token  # 4,001 are read, and the new one is written
    matrices = 2 * predict.matmul_parameters(config)
    assert matrices <= seen.read(16)["weights"] < 1.001 * matrices


def test_many_short_texts_compute_and_too_many_long_ones_do_not_fit():
    short = explorers.decoding(batch=1024, cached=16)
    assert short.bounds.bound == "compute" and "which bounds it" in repr(short)
    assert f"from {short.critical:,} texts on" in repr(short) and short.critical > 295  # the ridge of an H100
    long = explorers.decoding(batch=1024, cached=8000)
    assert long.critical is None and "so 1,024 do not fit" in repr(long)
    assert "does not hold a single text" in repr(explorers.decoding("llama-3.1-405b"))


def test_the_claims_of_a_topic_are_those_of_the_ledger():
    for topic in ("inference", "floats"):
        for verdict in ("all", "wrong", "holds"):
            found = explorers.claims(topic=topic, verdict=verdict).found
            asked = [claim for claim in claims(topic) if verdict in ("all", claim.verdict)]
            assert [one.claim for one in found] == asked != []
    assert [one.claim.id for one in explorers.claims().found] == list(STORIES)


def test_a_word_is_found_in_what_is_said_and_in_what_is_true():
    found = [one.claim.id for one in explorers.claims(topic="all", text="XAVIER").found]
    assert found == [c.id for c in claims() if "xavier" in (c.claim + c.truth).lower()] != []
    nothing = explorers.claims(text="a word that nobody says")
    assert nothing.found == [] and repr(nothing).endswith("0 of 358 claims, 0 of them hold as they are said.")


def test_what_is_not_shown_is_counted():
    seen = explorers.claims(topic="all")
    assert f"{len(claims()) - ROWS} more are not shown" in repr(seen) and seen._repr_html_().count("<li>") == ROWS


def test_claims_are_searched_by_typing():
    boxes, note, picture = controls(explorers.claims())
    boxes["topic"].value = "all"
    boxes["contains"].value = "  falcon "
    assert "Falcon-40B" in picture.value and "GPT-3" not in picture.value
    boxes["verdict"].value = "outdated"
    assert "0 of 358 claims" in picture.value and note.value == '<div role="status"></div>'


def test_every_claim_is_in_the_folded_lists_and_the_parts_hold_every_topic_once():
    page = explorers.every_claim()
    shown = Tags(page._repr_html_()).found
    assert [sum(tag == name for tag, _ in shown) for name in ("details", "li")] == [len(TOPICS), len(claims())]
    assert sorted(topic for topics in claim_parts.values() for topic in topics) == TOPICS
    assert sum(sum(of.values()) for of in explorers.claim_counts().values()) == len(claims())
    assert all(topic in repr(page) for topic in TOPICS)


def test_a_sequence_is_cut_to_the_context_and_not_forgotten():
    explorer = explorers.memory("llama-3-8b", sequence=8192, batch=1)
    boxes, *_ = controls(explorer)
    boxes["model"].value = "gpt2"
    assert explorer.sequence == 1024 and "1 × 1,024 tokens" in repr(explorer)
    boxes["model"].value = "llama-3-8b"
    assert explorer.sequence == 8192 == boxes["sequence"].value
    boxes["checkpointing"].value = True
    assert "checkpointing" in repr(explorer)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: explorers.roofline("sort"), ValueError),
        (lambda: explorers.claims(topic="astrology"), ValueError),
        (lambda: explorers.claims(verdict="maybe"), ValueError),
        (lambda: explorers.roofline(element_type="int8"), ValueError),
        (lambda: explorers.roofline(m=0), ValueError),
        (lambda: explorers.roofline(accelerator="v100-sxm2-32gb"), LookupError),
        (lambda: explorers.memory("gpt5"), ValueError),
        (lambda: explorers.decoding("gpt5"), ValueError),
        (lambda: explorers.decoding(batch=0), ValueError),
        (lambda: explorers.decoding(cached=0), ValueError),
        (lambda: explorers.decoding(weights="fp7"), ValueError),
        (lambda: explorers.decoding(accelerator="abacus"), ValueError),
        (lambda: explorers.memory(batch=0), ValueError),
        (lambda: explorers.memory(precision="fp7"), ValueError),
        (lambda: explorers.memory(accelerator="gb200"), LookupError),
    ],
)
def test_nonsense_gets_a_sentence(make, error):
    with pytest.raises(error, match=r"\w+ .*\w+"):
        make()


def test_pictures_stay_inside_their_frame():
    ends = [{"batch": 1, "cached": 16}, {"batch": 4096, "cached": 8000}, {"model": "gpt2"}, {"model": "llama-3.1-405b"}]
    roofs = [explorers.roofline(m=size, n=size, k=size) for size in (1, 65536)]
    for seen in (*roofs, explorers.memory(), *(explorers.decoding(**choices) for choices in ends)):
        svg = seen.figure().svg
        numbers = [float(n) for _, a in Tags(svg).found for n in (a.get("x", "0"), a.get("cx", "0"))]
        assert all(0 <= n <= 720 and math.isfinite(n) for n in numbers)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (5e-10, "0.5 ns"), (9.994e-4, "999 µs"), (9.996e-4, "1 ms"), (0.25, "250 ms"), (999.0, "999 s"), (999.9, "16.7 min"),
        (1450, "24.2 min"), (3599.9, "1 h"), (86400, "1 days"), (86400 * 12345, "12,345 days"),
    ],
)  # fmt: skip
def test_a_duration_has_the_unit_that_reads_best(seconds, written):
    assert duration(seconds) == written
