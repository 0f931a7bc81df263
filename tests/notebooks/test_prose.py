"""Numbers in prose: each is tied to what its lesson computes, or stands in constants.toml; a wrong digit is seen."""

import math
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from few import one_in
from nbformat import v4

from cs336course.arithmetic import FACTORS, equations
from cs336course.lessons import find, read
from cs336course.prose import Pool, Prose, formulas, numbers, said, stated, years
from cs336course.shares import shares
from cs336kit import lm, predict
from cs336kit.lessons.claims import claims
from cs336kit.measure.seconds import DEFAULT_SPREAD
from cs336kit.predict import MODELS

HERE = Path(__file__).parent
CONSTANTS = tomllib.loads((HERE / "constants.toml").read_text(encoding="utf-8"))
#: Those of the whole course stand beside those of the lessons.
FORMULAS, YEARS = CONSTANTS.pop("formulas"), CONSTANTS.pop("years")
SHARES = tomllib.loads((HERE / "shares.toml").read_text(encoding="utf-8"))
#: What a listed share has to end with where it stands right behind it.
UNIT = re.compile(r" (?:(?:milli|micro|nano)?seconds?|minutes?|hours?|days?|percent|[kKMGT]i?B)\b")
#: A ridge with the accelerator that it is said of: "153 sequences on an A100", "the ridge of an H100, which is 295".
RIDGE = re.compile(
    r"\b(?P<before>\d{3})(?: sequences| FLOPs (?:per|for each) byte)? (?:on|for) an? (?P<chip>[AH]\d{2,3})\b"
    r"|\b(?P<named>[AH]\d{2,3})(?:, which|, whose ridge) is (?:at )?(?P<behind>\d{3})\b"
)
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
    assert not found, "\n".join(
        [
            "tied to nothing that the lesson computes; correct it, show it, or list it in tests/notebooks/constants.toml:",
            *found,
        ]
    )


def worth(expression):
    """What an expression of constants.toml gives."""
    scope = {"math": math, "predict": predict, "lm": lm, "MODELS": MODELS, "parameters": parameters}
    scope |= {"DEFAULT_SPREAD": DEFAULT_SPREAD, "TransformerConfig": predict.TransformerConfig}
    return float(eval(expression, scope | {"verdicts": Counter(claim.verdict for claim in claims())}))


@pytest.mark.parametrize("lesson", CONSTANTS)
def test_constants_are_needed_and_true(lesson, proses):
    untied = [number for _, number in (*proses[lesson].untied(), *proses[lesson].untitled())]
    assert [text for text in listed(lesson) if not any(is_listed(text, number) for number in untied)] == []
    for text, expression in CONSTANTS[lesson].get("computed", {}).items():
        value = worth(expression)
        assert next(numbers(text)) in Pool([(value, "")]), f"{text} is {value:g}: {expression}"


def unlisted(lesson, prose):
    """What a lesson's prose says that stands in no list: shares in words, numbers in formulas, years; and what is not so."""
    own = SHARES.get(lesson, {})
    given = [phrase for phrases in own.get("given", {}).values() for phrase in phrases]
    for place, text in enumerate(prose.texts):
        told = said(text)
        for share in shares(told):
            rest = " ".join(told[share.start :].split())
            phrase = max((p for p in [*own.get("computed", {}), *given] if rest.startswith(p)), key=len, default=None)
            if phrase is None:
                yield f"cell {place}: '{rest[:60]}…' stands in no list: say in shares.toml what it is"
            elif UNIT.match(rest[len(phrase) :]):
                yield f"cell {place}: '{phrase}' is listed without the unit after it: '{rest[:60]}…'"
            elif phrase in own.get("computed", {}) and not share.holds(worth(own["computed"][phrase])):
                yield f"cell {place}: '{phrase}' is {worth(own['computed'][phrase]):.3g}"
        card = CONSTANTS.get(lesson, {}).get("card", {}) if "**The card**" in text else None
        for term, begin, end in formulas(text):
            if card is not None:
                spans = [(at, at + len(clause)) for clause in card for at in _places(text, clause)]
                if not any(a <= begin and end <= b for a, b in spans):
                    yield f"cell {place}: the card says '{text[max(0, begin - 30) : end]}', which constants.toml does not list"
            elif term not in FORMULAS:
                yield f"cell {place}: '{text[max(0, begin - 30) : end]}' has a number that constants.toml does not list"
        for ridge in RIDGE.finditer(told):
            chip, number = ridge["chip"] or ridge["named"], int(ridge["before"] or ridge["behind"])
            if number not in ridges(chip):
                yield f"cell {place}: '{ridge[0]}', and the ridge of an {chip} is {ridges(chip)}"
        for name, year in years(text):
            if YEARS.get(name) != year:
                yield f"cell {place}: '{name} {year}' is not in the list of years"
    for place, number in prose.untitled():
        if not known(lesson, number):
            yield f"cell {place}: its slide's title or notes say {number.digits} {number.word}, and the lesson does not"


def ridges(chip):
    """The FLOPs per byte in bf16 above which each accelerator of this name is not limited by its memory."""
    named = [one for one in predict.accelerators() if one.name.startswith(f"{chip.lower()}-")]
    return sorted({round(one.peak("bf16") / one.cell("bandwidth").value) for one in named})


def _places(text, part):
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_shares_formulas_and_years_are_listed_and_true(path, proses):
    assert not [*unlisted(path.name[:2], proses[path.name[:2]])]


def test_what_is_listed_of_shares_formulas_and_years_is_needed_and_true(proses):
    for lesson, own in SHARES.items():
        told = [
            " ".join(said(text)[share.start :].split()) for text in proses[lesson].texts for share in shares(said(text))
        ]
        phrases = [*own.get("computed", {}), *(p for group in own.get("given", {}).values() for p in group)]
        assert [p for p in phrases if not any(rest.startswith(p) for rest in told)] == [], lesson
    texts = [text for prose in proses.values() for text in prose.texts]
    found = {term for text in texts if "**The card**" not in text for term, *_ in formulas(text)}
    assert found == {*FORMULAS}
    assert {name for text in texts for name, _ in years(text)} == {*YEARS}
    for term, expression in FORMULAS.items():
        assert int(re.match(r"\d+", term)[0]) == worth(expression), f"{term} is {worth(expression):g}: {expression}"
    for lesson, groups in CONSTANTS.items():
        for clause, expression in groups.get("card", {}).items():
            assert any("**The card**" in text and clause in text for text in proses[lesson].texts), (lesson, clause)
            first = next(formulas(clause))[0]
            assert int(re.match(r"\d+", first)[0]) == worth(expression), (
                f"{clause}: {expression} is {worth(expression):g}"
            )


def test_a_year_is_not_before_the_number_in_arxiv_that_stands_beside_it(proses):
    texts = [text for prose in proses.values() for text in prose.texts]
    linked = [
        found for text in texts for found in re.findall(r"(20\d\d)\b[^()\n]*\(https://arxiv\.org/abs/(\d\d)", text)
    ]
    assert len(linked) > 20 and all(0 <= int(year) - 2000 - int(number) <= 3 for year, number in linked)


@pytest.mark.parametrize("part", one_in(4, range(4)))
def test_a_wrong_digit_is_seen(proses, part):
    """One digit of every number that is looked at is made wrong, in every way; at least 95 in 100 are seen."""
    seen = every = 0
    for lesson, prose in proses.items():
        for place, text in [*enumerate(prose.texts)][part::4]:
            equal = [(a, b) for a, b, true in equations(text) if true]
            for number in stated(text):
                inside = any(a <= number.start < b for a, b in equal)
                for slip in number.slips():
                    every += 1
                    changed = text[: number.start] + slip.digits + text[number.start + len(number.digits) :]
                    holds = inside and any(a <= number.start < b for a, b, true in equations(changed) if true)
                    seen += not (holds or prose.tied(place, slip) or known(lesson, slip))
    print(f"{seen} of {every} wrong digits are seen: {seen / every:.1%}")
    assert seen > 0.95 * every


def lesson(text, output="", source="x = 4096"):
    shown = [v4.new_output("stream", text=output)] if output else []
    return Prose([v4.new_code_cell(source, outputs=shown), v4.new_markdown_cell(text)])


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
        ("That is 512 · 64 bytes = 32 KiB.", ""),
        ("That is 6 · 7 MB = 42 MB.", ""),
        ("It takes 1.6 GiB.", "memory in GiB\n1.6"),
        ("The work is 6 · 70 · 10⁹ · 15 · 10¹² = 6.3 · 10²⁴ FLOPs.", ""),
        ("It is 128 · 2⁻¹⁰ = 2⁻³, and no slip.", ""),
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
        ("It takes 1.6 GiB.", "memory in MiB\n1.6"),
        ("It has 11 · 17 parts, and 512 too many.", ""),
        ("It has 4,097 tokens.", ""),
        ("That is 6 · 64 · 522 bytes = 192 KiB.", ""),
        ("It is 007 · 111 = 777.", ""),
        ("It is 128 · 2⁻¹⁰ = 2⁻⁴.", ""),
        ("It is 2⁰³ · 111 = 888.", ""),
        ("The work is 6 · 70 · 10⁹ · 15 · 10¹² = 6.4 · 10²⁴ FLOPs.", ""),
    ],
)
def test_what_is_not(text, output):
    assert list(lesson(text, output).untied())


@pytest.mark.parametrize(
    ("text", "digits", "word", "value", "half"),
    [
        ("1,024 tokens", "1,024", "tokens", 1024, 0.5),
        ("1.50 GiB", "1.50", "GiB", 1.5, 0.005),
        ("3e-4", "3", "", 3e-4, 0.5e-4),
        ("2.5E+3", "2.5", "", 2500, 50),
        ("6 · 10⁹ FLOPs", "6", "FLOPs", 6e9, 0.5e9),
        ("1.2 × 10⁻³ s", "1.2", "s", 1.2e-3, 0.05e-3),
        ("29 %", "29", "%", 29, 0.5),
    ],
)
def test_a_number_its_word_and_what_half_of_its_last_digit_is(text, digits, word, value, half):
    (number,) = numbers(f"It is {text}.")
    assert (number.digits, number.word, number.start) == (digits, word, 6)
    assert (number.value, number.half) == (pytest.approx(value), pytest.approx(half))


def test_a_number_is_looked_at_if_another_seldom_says_the_same():
    def texts(*telling):
        return [stated(f"It is {text} so.") for text in telling]

    assert all(
        texts("123", "1,024", "12 %", "5 %", "12 GB", "1.5", "0.25", "10.0", "7 GB", "12 tokens", "27 times", "4,069²")
    )
    assert not any(texts("12", "7", "0.5", "0.05", "12 more", "12 is", "7 tokens", "7 times", "007", "10²³", "64²"))
    assert [n.digits for n in (*numbers("99"), *numbers("0.99"), *numbers("9.9"), *numbers("0.999")) if n.short] == [
        "99", "0.99", "9.9",
    ]  # fmt: skip


def test_wrong_digits_are_all_those_that_could_stand_there():
    assert [slip.digits for slip in next(numbers("12")).slips()] == [*(f"{n}2" for n in (2, 3, 4, 5, 6, 7, 8, 9)),
                                                                    *(f"1{n}" for n in (0, 1, 3, 4, 5, 6, 7, 8, 9))]  # fmt: skip
    assert "0.5" in [slip.digits for slip in next(numbers("1.5")).slips()]


@pytest.mark.parametrize(
    ("text", "value", "word", "same"),
    [
        ("0.13", 0.125, "", True), ("0.12", 0.125, "", True), ("0.13", 0.137, "", False), ("0.13", 0.123, "", False),
        ("250", -250, "", True),  # a sign is not looked at
        ("1.5 GiB", 1536, "MiB", True), ("1.5 GiB", 1400, "MiB", False),
        ("1.52 GiB", 1.52, "", True), ("15 GiB", 15, "", False),  # a short one with a unit is no bare number
        ("15 GiB", 15 * 2**30, "", True), ("15 GiB", 15, "GiB", True), ("15", 15, "GiB", True), ("15 %", 0.15, "", True),
    ],
)  # fmt: skip
def test_a_number_is_a_value_that_rounds_to_it(text, value, word, same):
    assert (next(numbers(text)) in Pool([(value, word)])) == same


def test_a_short_number_belongs_to_the_cells_beside_it():
    def untied(text, place):
        cells = [v4.new_code_cell("x = 4.7" if i == 5 else "x = 123456" if i == 0 else "x") for i in range(11)]
        return list(Prose([*cells[:place], v4.new_markdown_cell(text), *cells[place:]]).untied())

    # Four code cells before it and two after it; a long one may be tied to any.
    assert [bool(untied("It is 4.7 high.", place)) for place in range(11)] == [
        place not in range(4, 10) for place in range(11)
    ]
    assert not untied("It is 123,456 high.", 10) and untied("It is 123,457 high.", 10)
    # What a cell shows ties nothing above it, and what it is given does.
    shown = v4.new_code_cell("x", outputs=[v4.new_output("stream", text="987654 and 4.7")])
    for text in ("It is 987,654 high.", "It is 4.7 high."):
        cells = [v4.new_markdown_cell(text), shown]
        assert list(Prose(cells).untied()) and not list(Prose(cells[::-1]).untied())
    # A short one that is said twice is tied if it has a unit; a long one in any case.
    assert untied("It is 4.6 high. It is 4.6 wide.", 5) and not untied("It is 4.6 GB. It is 4.6 GB.", 5)
    assert not untied("It is 987 high. It was 987 high.", 5)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("x = 64**2", "4,096"), ("x = -(-4096)", "4,096"), ("x = 2**100 / 2**90", "1,024"), ("x = 4000 + 96", "4,096"),
        ("x = 5000 - 904", "4,096"), ("x = 4 * 1024", "4,096"), ("x = 'of 4096 tokens'", "4,096"),
        ("x = 10**-2 * 12345", "123.45"),
    ],
)  # fmt: skip
def test_what_code_computes_from_literals_ties(source, value):
    assert not list(lesson(f"It has {value} tokens.", source=source).untied())


def test_an_alternative_text_and_a_unit_apart_tie_too():
    shown = v4.new_output("display_data", {"image/svg+xml": "<svg>"}, metadata={"image/svg+xml": {"alt": "up to 47.5"}})
    assert not list(Prose([v4.new_code_cell("x", outputs=[shown]), v4.new_markdown_cell("To 47.5.")]).untied())
    assert not list(lesson("It takes 47 GB.", "GB: 47").untied()) and list(lesson("It takes 47 GB.", "MB: 47").untied())
    # The parts that are written by machine are not prose.
    page = v4.new_markdown_cell("It takes 47 GB.", metadata={"tags": ["page"]})
    assert not list(Prose([page]).untied())


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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("a = 700 + 81", 781),
        ("a = 900 - 119", 781),
        ("a = 11 * 71", 781),
        ("a = 1562 / 2", 781),
        ("a = 2 ** 0.5", 1.41),
        ("a = 3 * -1.57", 4.71),
        ("a = b + 781", 781),
        ("a = 'of 781 parts'", 781),
    ],
)
def test_what_code_computes_from_numbers_alone_is_a_value(code, said):
    assert list(lesson(f"It is {said}.", source=code).untied()) == []
    assert list(lesson(f"It is {said + 1}.", source=code).untied())


@pytest.mark.parametrize("code", ["a = 781 / 0", "a = (-781) ** 0.5", "a = 781 // 1e-9", "a = True + 780", "a = ~781"])
def test_what_has_no_value_ties_no_other_number(code):
    assert list(lesson("It is 782.", source=code).untied())


def test_a_number_of_the_first_cell_may_be_said_beside_it():
    cells = [v4.new_code_cell("x = 4.7"), v4.new_markdown_cell("It is 4.7 high.")]
    assert not list(Prose(cells).untied())
    assert not list(Prose([v4.new_markdown_cell("It is 4.7.", metadata={"tags": ["page"]})]).untied())
    # Said twice is no proof for a short number without a unit, nor for what is said once.
    assert [number.digits for _, number in Prose([v4.new_markdown_cell("It is 4.7 or 4.7 or 123 or 0.5 GB.")]).untied()] == [
        "4.7", "4.7", "123", "0.5",
    ]  # fmt: skip
    assert not list(Prose([v4.new_markdown_cell("It is 123 parts of 12 %, or 123 parts of 12 %.")]).untied())
