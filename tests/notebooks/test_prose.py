"""Numbers in prose: each is tied to what its lesson computes, or stands in constants.toml; a wrong digit is seen."""

import math
import tomllib
from pathlib import Path

import pytest
from nbformat import v4

from cs336kit import lm, predict
from cs336kit.course.lessons import find, read
from cs336kit.course.prose import FACTORS, Pool, Prose, equations, numbers, stated
from cs336kit.measure.seconds import DEFAULT_SPREAD
from cs336kit.predict import MODELS

HERE = Path(__file__).parent
CONSTANTS = tomllib.loads((HERE / "constants.toml").read_text(encoding="utf-8"))
LESSONS = find([], HERE.parents[1] / "notebooks")


def parameters(name):
    return predict.parameters(MODELS[name]).total


@pytest.fixture(scope="module")
def proses():
    return {path.name[:2]: Prose(read(path)) for path in LESSONS}


def listed(lesson):
    """The constants of a lesson, as texts: computed ones and given ones."""
    groups = CONSTANTS.get(lesson, {})
    return [*groups.get("computed", {}), *(text for texts in groups.get("given", {}).values() for text in texts)]


def is_listed(text, number):
    """Whether a constant is this number: the same digits and power of ten, and the same word where the constant has one."""
    constant = next(numbers(text))
    same = (constant.digits, constant.scale) == (number.digits, number.scale)
    return same and constant.word in ("", number.word)


def known(lesson, number):
    return any(is_listed(text, number) for text in listed(lesson))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_number_is_tied_or_listed(path, proses):
    prose = proses[path.name[:2]]
    found = [
        f"cell {place}: {number.digits} {number.word} in '…{prose.texts[place][max(0, number.start - 50) :][:90]}…'"
        for place, number in prose.untied()
        if not known(path.name[:2], number)
    ]
    assert not found, "\n".join(["tied to nothing that the lesson computes; correct it, show it, or list it:", *found])


@pytest.mark.parametrize("lesson", CONSTANTS)
def test_constants_are_needed_and_true(lesson, proses):
    untied = [number for _, number in proses[lesson].untied()]
    assert [text for text in listed(lesson) if not any(is_listed(text, number) for number in untied)] == []
    scope = {"math": math, "predict": predict, "lm": lm, "MODELS": MODELS, "parameters": parameters}
    scope |= {"DEFAULT_SPREAD": DEFAULT_SPREAD, "TransformerConfig": predict.TransformerConfig}
    for text, expression in CONSTANTS[lesson].get("computed", {}).items():
        value = float(eval(expression, dict(scope)))
        assert next(numbers(text)) in Pool([(value, "")]), f"{text} is {value:g}: {expression}"


def test_a_wrong_digit_is_seen(proses):
    """One digit of every number that is looked at is made wrong, in every way; at least 95 in 100 are seen."""
    seen = every = 0
    for lesson, prose in proses.items():
        for place, text in enumerate(prose.texts):
            equal = list(equations(text))
            for number in stated(text):
                inside = any(a <= number.start < b for a, b in equal)
                for slip in number.slips():
                    every += 1
                    changed = text[: number.start] + slip.digits + text[number.start + len(number.digits) :]
                    holds = inside and any(a <= number.start < b for a, b in equations(changed))
                    seen += not (holds or prose.tied(place, slip) or known(lesson, slip))
    print(f"{seen} of {every} wrong digits are seen: {seen / every:.1%}")
    assert seen > 0.95 * every


def lesson(text, output="", source="x = 4096"):
    shown = [v4.new_output("stream", text=output)] if output else []
    return Prose([v4.new_markdown_cell(text), v4.new_code_cell(source, outputs=shown)])


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("It takes 1.62 GiB.", "1.6243 GiB"),
        ("It takes 1.62 GiB.", "1744830464 bytes"),
        ("It takes 29 %.", "0.294"),
        ("It takes 29 %.", "29.4 %"),
        ("It has 4,096 tokens.", ""),
        ("It has 70.6 billion parameters.", "70,553,706,496"),
        ("That is 6 · 64 · 512 bytes = 192 KiB.", ""),
        ("The work is 6 · 70 · 10⁹ · 15 · 10¹² = 6.3 · 10²⁴ FLOPs.", ""),
        ("It fits 80 GB, and 80 GB is much.", ""),
        ("Lesson 123, GPT-345, `678`, $910$, H200, [a](b-234).", ""),
        ("**Discuss** What of 999 GB?", ""),
    ],
)
def test_what_is_tied(text, output):
    assert list(lesson(text, output).untied()) == []


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("It takes 1.63 GiB.", "1.6243 GiB"),
        ("It takes 1.62 MiB.", "1744830464 bytes"),
        ("It takes 28 %.", "0.294"),
        ("It takes 29 %.", "29 tokens"),
        ("It has 4,097 tokens.", ""),
        ("That is 6 · 64 · 522 bytes = 192 KiB.", ""),
        ("The work is 6 · 70 · 10⁹ · 15 · 10¹² = 6.4 · 10²⁴ FLOPs.", ""),
    ],
)
def test_what_is_not(text, output):
    assert list(lesson(text, output).untied())


@pytest.mark.parametrize("source", ["x = 4097 / 0", "x = 10**400", "x = (-8) ** 0.5 + 4097j", "x = 4097 + len([])"])
def test_code_that_has_no_value_before_it_runs_ties_nothing_but_its_numbers(source):
    assert [number.digits for _, number in lesson("It has 4,098 tokens.", source=source).untied()] == ["4,098"]


def test_what_a_word_multiplies_by():
    """As the SI and IEC define the prefixes."""
    prefixes = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    known = {f"{prefix}B": factor for prefix, factor in prefixes.items()}
    for prefix in "GTP":
        known |= dict.fromkeys((f"{prefix}FLOP", f"{prefix}FLOPs"), 10 ** (9 + 3 * "GTP".index(prefix)))
    known |= {
        "%": 1 / 100,
        "M": 10**6,
        "B": 10**9,
        "T": 10**12,
        "ms": 1e-3,
        "µs": 1e-6,
        "ns": 1e-9,
        "milliseconds": 1e-3,
        "microseconds": 1e-6,
    }
    known |= {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
    assert known == FACTORS
