"""What nobody would type: any value in any place is answered by a number that can be, or by a sentence.

Each example is a question that has an answer, of which at most one word is spoilt; what is legal in it counts.
"""

import contextlib
import dataclasses
import inspect
import io
import json
import math
import re
from functools import cache

import pytest
from few import one_in
from hypothesis import example, given
from hypothesis import strategies as st

from cs336kit import predict
from cs336kit.command import main
from cs336kit.predict.accounting import CACHE_TYPES
from cs336kit.predict.decoder.step import CACHES, EVERY_ATTENTION, PHASES, StepOptions
from cs336kit.predict.families.fields import field_table
from cs336kit.predict.layouts import AXES, SCHEDULES, STAGES
from cs336kit.predict.names import published
from cs336kit.predict.packed import PACKINGS
from cs336kit.predict.settle import CHOICES

pytestmark = pytest.mark.fuzz

NUMBERS = st.one_of(
    st.integers(-2, 70), st.sampled_from([0, 1, 8, 64, 10**6, 10**12, 2**63, 10**30, -1]), st.floats(), st.booleans()
)
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["gpt2", "fp8", "bf16", "yes", "none", "all", "8", "1e9", "80GB"])
)
LEAVES = st.one_of(NUMBERS, TEXTS, st.none())
VALUES = st.one_of(LEAVES, st.lists(LEAVES, max_size=3), st.dictionaries(TEXTS, LEAVES, max_size=2))
YES, SIZES = (False, True), range(1, 33)
#: What the kit may answer with instead of a number.
SENTENCES = (ValueError, LookupError)


def answer(spoiled, call, *given, errors=SENTENCES, **options):
    """What it answers; None where it refuses what is spoilt in a sentence."""
    try:
        return call(*given, **options)
    except errors as error:
        text = str(error)
        assert spoiled and 15 < len(text) < 2_000 and "Traceback" not in text, repr(error)


@st.composite
def spoilt(draw, given, others=(), table=None):
    """What is given and some of the table's names, each with a value; and the name that is spoilt, if any."""
    names = draw(st.lists(st.sampled_from([*table]), max_size=3, unique=True)) if table else ()
    given = given | {name: draw(st.sampled_from([*table[name]])) for name in names}
    name = draw(st.one_of(st.none(), st.sampled_from([*given, *others])))
    return (given, ()) if name is None else (given | {name: draw(VALUES)}, (name,))


SMALL = {"layers": 2, "d_model": 64, "heads": 4, "vocab": 96, "context": 32, "d_ff": 48}
FIELDS = {
    **{name: CHOICES[name] for name in ("mlp", "norm", "positions", "bias", "norm_placement")}, "kv_heads": [1, 2, 4],
    **dict.fromkeys(("tied_head", "final_norm", "embedding_norm", "head_bias", "sinks", "parallel"), YES),
    **dict.fromkeys(("layers", "vocab", "d_ff", "window", "embedding_dim"), SIZES), "qk_norm": ["none", "head"],
}  # fmt: skip
EVERY_FIELD = [f.name for f in dataclasses.fields(predict.TransformerConfig) if f.init]


@given(spoilt({}, EVERY_FIELD, FIELDS))
@example(({"layers": 10**12}, ("layers",)))
@example(({"checkpointing": "no"}, ("checkpointing",)))
def test_a_configuration_is_counted_or_refused(drawn):
    changes, spoiled = drawn
    # Not all that is legal can be together.
    config = answer(True, predict.TransformerConfig, errors=(*SENTENCES, TypeError), **{**SMALL, **changes})
    if config is None:
        return
    assert all(getattr(config, name) == value for name, value in changes.items() if name not in spoiled)
    counted = predict.parameters(config)
    assert type(counted.total) is int and counted.total > 0 and min(counted.values()) >= 0
    assert predict.active_parameters(config).total <= counted.total
    flops, kept = (
        answer(spoiled, function, config, batch=1, sequence=8)
        for function in (predict.training_flops, predict.saved_activation_bytes)
    )
    if flops is not None:
        forward = predict.forward_flops(config, batch=1, sequence=8).total
        assert forward < flops.total <= 3 * forward and kept.total > 0


#: Options → all that they may say; beside them numbers and layouts, of which there are more.
CLOSED = {
    "precision": predict.POLICIES, "attention": EVERY_ATTENTION, "device": predict.DEVICES, "phase": PHASES, "cache": CACHES,
    "optimizer": predict.OPTIMIZERS, "base": (None, *PACKINGS), "foreach": (None, *YES),
    **dict.fromkeys(("checkpointing", "causal", "unrolled", "fused"), YES),
}  # fmt: skip
OPEN = {
    "layout": (None, "dp=2", "tp=2", "fsdp=2,tp=2,sp"), "lora_rank": (None, *SIZES), "page": (None, *SIZES),
    "chunks": SIZES, "shards": SIZES, "accumulate": SIZES,
}  # fmt: skip
FUNCTIONS = [
    predict.training_flops, predict.saved_activation_bytes, predict.training_memory, predict.step_peak,
    predict.kv_cache_bytes, predict.traffic_bytes, predict.program, predict.step_allocation,
]  # fmt: skip
OF_THEIR_OWN = {
    predict.kv_cache_bytes: {"precision": (*CACHE_TYPES, "int4")},
    predict.step_allocation: {"unrolled": ()},  # always so
}


def words(function):
    """The keywords of a function that may be left out; what it hands on are options of a program."""
    parameters = inspect.signature(function).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    return own + (
        sorted(StepOptions.__optional_keys__ - {*own}) if any(p.kind is p.VAR_KEYWORD for p in parameters) else []
    )


@pytest.mark.parametrize("function", one_in(3, FUNCTIONS))
@given(st.data())
def test_options_are_understood_or_refused(function, data):
    closed = CLOSED | OF_THEIR_OWN.get(function, {})
    legal = {name: values for name, values in (closed | OPEN).items() if values and name in words(function)}
    sizes = {name: data.draw(st.sampled_from(SIZES)) for name in ("batch", "sequence")}
    options, _ = data.draw(spoilt(sizes, words(function), legal))
    found = answer(True, function, predict.TransformerConfig(**SMALL), **options)
    if found is None:
        return
    assert all(type(options[size]) is int and options[size] > 0 for size in sizes), (options, found)
    for name in options.keys() & legal.keys() & closed.keys():
        assert (type(options[name]), options[name]) in [(type(one), one) for one in closed[name]], options
    assert 0 <= getattr(found, "total", 0) < math.inf


FAMILIES = field_table()
PUBLISHED = st.sampled_from([fields for fields in published().values() if fields["model_type"] in FAMILIES])


@given(PUBLISHED, st.data())
def test_a_config_json_is_read_or_refused_by_name(published, data):
    others = [*FAMILIES[published["model_type"]]["fields"], data.draw(TEXTS)]
    fields, spoiled = data.draw(spoilt(published, others))
    config = answer(spoiled, predict.from_hf, fields)
    if config is not None:
        assert predict.parameters(config).total > 0 and predict.from_hf(json.dumps(fields)) == config


@given(PUBLISHED, st.integers(0, 400), st.integers(0, 2), st.one_of(st.just(""), st.text(max_size=3)))
@example({}, 0, 0, "[" * 100_000)
@example({"model_type": "llama"}, 1, 0, '"model_type": "gpt2", ')
def test_any_text_is_a_config_json_or_a_sentence(published, place, left_out, more):
    text = json.dumps(published)
    config = answer(left_out or more, predict.from_hf, text[:place] + more + text[place + left_out :])
    assert config is None or predict.parameters(config).total > 0


OPERANDS = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True), min_size=1, max_size=3)


@given(OPERANDS, st.data())
def test_patterns(operands, data):
    sizes = {axis: data.draw(st.sampled_from(SIZES)) for axis in sorted(set().union(*operands))}
    output = data.draw(st.lists(st.sampled_from([*sizes]), unique=True))
    pattern = ", ".join(map(" ".join, operands)) + " -> " + " ".join(output)
    flops = predict.einsum_flops(pattern, **sizes)
    # One operand is added up or left as it is; products have a FLOP for each element of the output at least.
    least = math.prod(sizes[axis] for axis in output)
    assert flops >= least if len(operands) > 1 else (flops > 0) == (len(output) < len(sizes))
    shapes, spoiled = data.draw(spoilt({i: [sizes[axis] for axis in names] for i, names in enumerate(operands)}))
    more, place = data.draw(st.sampled_from([*"ab ,->.()1_", *[""] * 11])), data.draw(st.integers(0, len(pattern)))
    again = answer(more or spoiled, predict.einsum_flops, pattern[:place] + more + pattern[place:], *shapes.values())
    assert again is None or again == flops or (again >= 0 and (more or spoiled))


@given(st.sampled_from([*STAGES]), st.sampled_from([*SCHEDULES]), st.booleans(), st.data())
def test_layouts_come_back_from_their_text_or_are_refused(stage, schedule, sp, data):
    axes = {name: data.draw(st.sampled_from(SIZES)) for name in (stage, "dp", "tp", "pp", "cp", "ep", "microbatches")}
    axes |= ({"sp": sp} if axes["tp"] > 1 else {}) | ({"schedule": schedule} if axes["pp"] > 1 else {})
    axes, spoiled = data.draw(spoilt(axes, [*AXES, "ranks", ""]))
    text = ",".join(f"{name}={axes[name]}" for name in data.draw(st.permutations([*axes])))
    layout = answer(spoiled, predict.Layout.parse, text)
    if layout is not None:
        assert all(getattr(layout, name) == value for name, value in axes.items() if name not in spoiled)
        assert predict.Layout.parse(str(layout)) == layout


#: What may stand behind options; the others stand alone.
BEHIND = """accelerator h100-sxm l4, accumulate 2, allowance 2GiB 8%, attention sdpa eager, batch 1 4, bandwidth 2TB/s,
between-nodes 400Gb/s, cache bf16 fp8, chunk 512, chunks 2, count 1 8, days 30, device cpu cuda,
flops 1e21 1e24, global-batch 64, latency 20ms, layout fsdp=8 tp=2, lora 4, memory 80GB, mfu 0.3 40%, model 7B gpt2,
freeze norms, node 4, output 16, optimizer sgd, page 16, peak 500TFLOPs, precision bf16 autocast, price-per-hour 2, prompt 64,
qlora 4, sequence 64, steps 100, targets query all, tokens 1e9 15T, watts 700, weights bf16 int4"""
LEGAL = {f"--{name}": values for name, *values in map(str.split, BEHIND.split(","))}
TYPED = ["gpt2", "llama-3-8b", "70B", "h100-sxm", "bf16", "fsdp=8", "tp=2", "8", "0", "-1", "nan", "inf", "1e400"]
WORDS = st.one_of(st.sampled_from(TYPED), st.text(max_size=6))


def run(*arguments):
    """Exit code, output and errors of a command."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*arguments])
    except SystemExit as ended:
        code = ended.code or 0
    return code, out.getvalue(), err.getvalue()


@cache
def options(command):
    """Every option that the command's help names, without the search, which takes long, and what is no question."""
    every = set(re.findall(r"--[a-z][a-z-]+", run(command, "--help")[1]))
    return sorted(every - {"--help", "--json", "--json-keys", "--find"})


@pytest.mark.parametrize("command", ["plan", "serve", "optimal"])
@given(st.data())
def test_command_lines_answer_or_say_what_is_wrong(command, data):
    alone = command == "optimal"  # one of its options is the question
    line = [] if alone else [data.draw(st.sampled_from(["gpt2", "llama-3-70b", "gpt-j-6b"]))]
    named = st.lists(st.sampled_from(options(command)), min_size=alone, max_size=1 if alone else 3, unique=True)
    for option in data.draw(named):
        line += [option, *([data.draw(st.sampled_from(LEGAL[option]))] if option in LEGAL else ())]
    place = data.draw(st.one_of(st.none(), st.integers(0, len(line) - 1)))
    if place is not None:
        line[place : place + data.draw(st.integers(0, 1))] = [data.draw(WORDS)]
    code, out, err = run(command, *line, "--json")
    if "--check" in line and code == 1:  # an answer, and it does not fit
        code = 0
    # What is refused is a sentence, as JSON unless the word that was spoilt is --json itself.
    assert code in (0, 2) and (code == 0 or bool(err) != bool(json.loads(out or "{}").get("error"))), (out, err)
    assert code == 2 or not err, err
    if code == 0 and out.startswith("{"):
        json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in {line}"))
