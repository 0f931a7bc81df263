"""What nobody would type: any value in any place is answered by a number that can be, or by a sentence."""

import contextlib
import dataclasses
import inspect
import io
import json
import math
import re
from functools import cache

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cs336kit import predict
from cs336kit.cli import main
from cs336kit.predict.hugging_face import _table

NUMBERS = st.one_of(
    st.integers(-2, 70), st.sampled_from([0, 1, 8, 64, 10**6, 10**12, 2**63, 10**30, -1]), st.floats(), st.booleans()
)
TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(["gpt2", "fp8", "bf16", "yes", "none", "all", "8", "1e9", "80GB"])
)
LEAVES = st.one_of(NUMBERS, TEXTS, st.none())
VALUES = st.one_of(LEAVES, st.lists(LEAVES, max_size=3), st.dictionaries(TEXTS, LEAVES, max_size=2))
#: What the kit may answer with instead of a number.
SENTENCES = (ValueError, LookupError)


def names(config_class):
    return [f.name for f in dataclasses.fields(config_class) if f.init]


def words(function):
    """The keywords of a function that may be left out; what it hands on are options of a program."""
    parameters = inspect.signature(function).parameters.values()
    own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty]
    return own + (words(predict.program) if any(p.kind is p.VAR_KEYWORD for p in parameters) else [])


SMALL = {"layers": 2, "d_model": 64, "heads": 4, "vocab": 96, "context": 32}
CHANGES = st.dictionaries(st.sampled_from(names(predict.TransformerConfig)), VALUES, max_size=3)


def is_a_sentence(error):
    text = str(error)
    assert 15 < len(text) < 2_000 and "Traceback" not in text, repr(error)


@given(CHANGES)
@example({"layers": 10**12})
@example({"checkpointing": "no"})
def test_a_configuration_is_counted_or_refused(changes):
    try:
        config = predict.TransformerConfig(**{**SMALL, **changes})
    except (*SENTENCES, TypeError) as error:
        return is_a_sentence(error)
    counted = predict.parameters(config)
    assert type(counted.total) is int and counted.total > 0 and min(counted.values()) >= 0
    assert predict.active_parameters(config).total <= counted.total
    try:
        flops = predict.training_flops(config, batch=1, sequence=8)
        kept = predict.saved_activation_bytes(config, batch=1, sequence=8)
    except SENTENCES as error:
        return is_a_sentence(error)
    forward = predict.forward_flops(config, batch=1, sequence=8).total
    assert forward < flops.total <= 3 * forward and kept.total > 0


FUNCTIONS = [
    predict.training_flops, predict.saved_activation_bytes, predict.training_memory, predict.step_peak,
    predict.kv_cache_bytes, predict.traffic_bytes, predict.program, predict.step_allocation,
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@given(st.data())
def test_options_are_understood_or_refused(function, data):
    config = predict.TransformerConfig(**SMALL)
    options = data.draw(st.dictionaries(st.sampled_from(words(function)), VALUES, max_size=3))
    sizes = {"batch": data.draw(NUMBERS), "sequence": data.draw(NUMBERS)}
    try:
        answer = function(config, **sizes, **options)
    except SENTENCES as error:
        return is_a_sentence(error)
    assert all(type(size) is int and size > 0 for size in sizes.values()), (sizes, answer)
    if hasattr(answer, "total"):
        assert answer.total >= 0 and math.isfinite(answer.total)


FAMILIES = _table()


@given(st.sampled_from(sorted(FAMILIES)), st.data())
def test_a_config_json_is_read_or_refused_by_name(family, data):
    fields = st.one_of(st.sampled_from(sorted(FAMILIES[family]["fields"])), TEXTS)
    changes = data.draw(st.dictionaries(fields, VALUES, max_size=3))
    try:
        config = predict.from_hf({**changes, "model_type": family})
    except SENTENCES as error:
        return is_a_sentence(error)
    assert predict.parameters(config).total > 0
    assert predict.from_hf(json.dumps({**changes, "model_type": family})) == config


@given(st.text())
@example("[" * 100_000)
@example('{"model_type": "llama", "model_type": "gpt2"}')
def test_any_text_is_a_config_json_or_a_sentence(text):
    with contextlib.suppress(*SENTENCES):
        assert isinstance(predict.from_hf("{" + text), predict.TransformerConfig)


PATTERNS = st.one_of(st.text("ab ,->.()1_", max_size=20), st.from_regex(r"[ab]( [abc])?(, [bc])?( -> [abc.]*)?"))


@given(PATTERNS, st.lists(st.lists(NUMBERS, max_size=3), max_size=3), st.dictionaries(st.sampled_from("abc"), NUMBERS))
def test_patterns(pattern, shapes, axes):
    try:
        flops = predict.einsum_flops(pattern, *shapes, **axes)
    except SENTENCES as error:
        return is_a_sentence(error)
    assert flops >= 0 and "->" in pattern


PARTS = st.tuples(st.sampled_from([*predict.Layout.__dataclass_fields__, "ranks", ""]), st.one_of(NUMBERS, TEXTS))


@given(st.lists(PARTS, max_size=4))
def test_layouts_come_back_from_their_text_or_are_refused(parts):
    text = ",".join(f"{name}={value}" for name, value in parts)
    try:
        layout = predict.Layout.parse(text)
    except SENTENCES as error:
        return is_a_sentence(error)
    assert predict.Layout.parse(str(layout)) == layout


WORDS = st.one_of(
    st.sampled_from(
        ["gpt2", "llama-3-8b", "70B", "h100-sxm", "bf16", "fsdp=8", "tp=2", "8", "0", "-1", "nan", "inf", "1e400"]
    ),
    st.text(max_size=6),
)


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
    """Every option that the command's help names."""
    return sorted(set(re.findall(r"--[a-z][a-z-]+", run(command, "--help")[1])))


@pytest.mark.parametrize("command", ["plan", "serve", "optimal"])
@given(st.data())
def test_command_lines_answer_or_say_what_is_wrong(command, data):
    drawn = data.draw(st.lists(st.one_of(st.sampled_from(options(command)), WORDS), max_size=6))
    model = data.draw(st.one_of(st.sampled_from(["gpt2", "llama-3-70b", "7B"]), st.text(max_size=5)))
    assume("--find" not in drawn)
    code, out, err = run(command, model, *drawn, "--json")
    assert code in (0, 2) and (code == 0) != bool(err), err
    if code == 0 and out.startswith("{"):
        json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} in {drawn}"))
