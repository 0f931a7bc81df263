"""The ledger of claims itself, and that each of its claims is settled by one test."""

import ast
import inspect
import re
import textwrap
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from claims.settled import Cited, judge, near, outcome_of, settlements, settles, untied, untied_truth
from notebooks.test_prose import is_listed, worth

from cs336course.prose import Pool, numbers
from cs336kit.lessons.claims import VERDICTS, claims

TOPICS = sorted({claim.topic for claim in claims()})


def test_ids_are_unique_and_every_claim_says_something():
    every = claims()
    assert len({claim.id for claim in every}) == len(every) > 300
    for claim in every:
        assert claim.claim and claim.source and claim.topic and claim.truth, claim.id
        assert claim.verdict in VERDICTS, claim.id


def test_a_topic_is_a_part():
    assert {claim.topic for claim in claims("napkin")} == {"napkin"}


def test_an_unknown_topic_lists_the_known_ones():
    with pytest.raises(ValueError, match="no claims on the topic 'astrology'.*floats.*napkin"):
        claims("astrology")


@pytest.mark.parametrize("topic", TOPICS)
def test_every_claim_of_a_topic_is_settled_once(topic):
    settled = Counter(test.claim.id for test in settlements() if test.claim.topic == topic)
    assert settled == {claim.id: 1 for claim in claims(topic)}


@pytest.mark.parametrize("test", settlements(), ids=lambda test: test.claim.id)
def test_what_is_so_is_computed(test):
    home = Path(inspect.getfile(inspect.unwrap(test.settle)))
    assert home.stem.removeprefix("test_").replace("_", "-") == test.claim.topic
    tree = ast.parse(textwrap.dedent(inspect.getsource(test.settle)))
    outcomes = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    for outcome in (node for node in outcomes if isinstance(node, ast.Tuple)):
        for so in outcome.elts[1:]:
            assert any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(so)), ast.unparse(outcome)


#: Claims with numbers that only the claim or only its test has: which ones, and why.
ELSEWHERE = {
    "act-gpt3-s2-dominates": ("3", "the exponent of 1e3, an order of magnitude"),
    "amp-scaler-skips-inf": ("0.5 15 2 3", "an example of the test"),
    "avogadro-precision": ("6.022e23", "a constant that only its error is computed from"),
    "chain-rule-4x": ("3", "the x of the test"),
    "contiguous-copies": ("4 5 6", "the numbers of the test's tensor"),
    "fp8-developed-by-nvidia": ("2022", "the year is not what is wrong"),
    "fp8-e4m3-no-inf": ("0", "none, in the claim's words"),
    "fp8-h100-only": ("0", "no other, in the claim's words"),
    "gf-loss-elementwise": ("4 6", "B and K of the test"),
    "grads-accumulate-from-zero": ("2 3 4", "the x of the test, and the slopes there"),
    "hw-training-intensity-bs": ("80", "the card's name"),
    "hw-v100-math": ("32", "the card's name"),
    "inf-s2-to-linear": ("4", "twice the sequence, squared"),
    "init-trunc-abs-bounds": ("0", "none, in the claim's words"),
    "mem-headcount-letter": ("0.5", "half the head's width in the test"),
    "mfu-timing-snippet": ("1", "the share of the time that is right"),
    "mse-broadcast": ("0", "the loss of perfect predictions"),
    "row-slice-shares": ("1 2 3", "the numbers of the test's tensor"),
    "tf-softmax-index": ("1.3", "the number of an equation"),
}


@pytest.mark.parametrize("test", settlements(), ids=lambda test: test.claim.id)
def test_a_claim_and_its_test_have_the_same_numbers(test):
    found = untied(test.claim, test.settle)
    listed, _ = ELSEWHERE.get(test.claim.id, ("", ""))
    assert sorted({text.split()[0] for text in found}) == listed.split(), found


def test_another_number_is_seen_in_a_claim_and_in_what_is_typed_as_said():
    tests = {test.claim.id: test for test in settlements()}
    test = tests["a100-312"]
    changed = replace(test.claim, claim=test.claim.claim.replace("312", "321"))
    assert untied(test.claim, test.settle) == []
    assert untied(changed, test.settle) == [
        "3.12e+14 is typed as said, and is not in the claim",
        "321 is in the claim, and not in its test",
    ]


#: Numbers of truths that are tied to nothing else: by claim, those that are computed and those that are given.
TRUTHS = tomllib.loads(Path(__file__).with_name("truths.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("test", settlements(), ids=lambda test: test.claim.id)
def test_every_number_of_a_truth_is_tied_or_listed(test):
    own = TRUTHS.get(test.claim.id, {})
    listed = [text for group in own.values() for text in group]
    loose = untied_truth(test.claim, test.settle)
    assert [f"{n.digits} {n.word}" for n in loose if not any(is_listed(text, n) for text in listed)] == []
    assert [text for text in listed if not any(is_listed(text, n) for n in loose)] == [], "listed and not needed"
    for text, expression in own.get("computed", {}).items():
        assert next(numbers(text)) in Pool([(worth(expression), "")]), f"{text} is {worth(expression):g}: {expression}"


def test_the_list_of_truths_names_claims():
    assert {*TRUTHS} <= {claim.id for claim in claims()}


def test_few_claims_rest_on_a_citation():
    cited = [test.claim.id for test in settlements() if "Cited(" in inspect.getsource(test.settle)]
    assert len(cited) < 0.05 * len(settlements()), cited


def test_an_unknown_id_is_refused():
    with pytest.raises(ValueError, match=r"no claim 'earth-flat'.*topic"):
        settles("earth-flat")


def test_a_function_that_pytest_would_not_run_is_refused():
    with pytest.raises(ValueError, match=f"{HOLDS.id}: pytest would not run earth_is_flat; call it test_earth_is_flat"):

        @settles(HOLDS.id)
        def earth_is_flat():
            return 1, 1


@pytest.mark.parametrize("name", ["docs/verification.md", "notebooks/21_claims.ipynb"])
def test_the_readme_and_the_lesson_give_the_number_of_claims(name):
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    said = re.findall(r"\b(\d{3}) (?:checkable )?sentences", text)
    assert {*said} == {str(len(claims()))}, f"the ledger has {len(claims())} claims: correct the number in {name}"


HOLDS = claims("napkin")[0]


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize("outcome", [(1, 1), (1, 2), (1, 1, 2), (1, 2, 1), (1, 1, 1), (1, 2, 2)], ids=str)
def test_the_verdict_follows_from_the_outcome(verdict, outcome):
    follows = {"holds": (1, 1), "holds-with-condition": (1, 1, 2)}.get(verdict, (1, 2))
    claim = replace(HOLDS, verdict=verdict)
    if outcome == follows:
        judge(claim, outcome)
    else:
        with pytest.raises(AssertionError, match=HOLDS.id):
            judge(claim, outcome)


def test_a_wrong_verdict_is_noticed_with_both_values():
    with pytest.raises(AssertionError, match=r"'wrong' in the ledger, but what is said is 2.5 and what is so is 2.5"):
        judge(replace(HOLDS, verdict="wrong"), (2.5, 2.5))


@pytest.mark.parametrize("so", [[1, 2], "(1, 2)", True, None], ids=repr)
def test_what_always_differs_settles_nothing(so):
    with pytest.raises(AssertionError, match="cannot be compared"):
        judge(replace(HOLDS, verdict="wrong"), ((1, 2), so))
    with pytest.raises(AssertionError, match="cannot be compared"):
        judge(replace(HOLDS, verdict="wrong"), ({"a": 1}, {"b": 1}))


def test_a_citation_names_its_source():
    judge(HOLDS, Cited("ZeRO, section 3.1", "16 bytes"))
    with pytest.raises(AssertionError, match="names its source"):
        judge(HOLDS, Cited("", "16 bytes"))


def test_near_snaps_only_what_is_near():
    assert near(1.01, 1.0, relative=0.02) == 1.0
    assert near(1.03, 1.0, relative=0.02) == 1.03
    assert near([1.01, [1.03]], [1.0, [1.0]], relative=0.02) == [1.0, [1.03]]


def test_the_outcome_of_an_action():
    assert outcome_of(lambda: 1) == "runs"
    assert outcome_of(lambda: 1 / 0) == "ZeroDivisionError"
