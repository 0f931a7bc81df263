"""How the values that settle the ledger are written down for a reader."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from claims.settled import Cited, compare_with_file

from cs336course import claims_page
from cs336course.claims_page import WIDTH, entry, same, value
from cs336kit import command as cli
from cs336kit.lessons.claims import claims, settled, stored


def test_the_file_has_an_entry_for_each_claim_and_no_other():
    assert sorted(stored()) == sorted(claim.id for claim in claims())
    assert len(stored()) == len(settled()) == len(claims())


def test_no_statement_names_a_source():
    texts = [text for one in settled() for text in (one.claim.claim, one.truth)]
    assert [text for text in texts if re.search(r"\bnotes\b|^\([A-Z\d]+\.\d+\)|\blecture\b", text)] == []
    assert min(len(one.claim.claim) for one in settled()) >= 10


def test_what_a_reader_sees_agrees_with_the_verdict():
    for one in settled():
        so, verdict = one.so, one.claim.verdict
        if one.source:
            assert not one.said and not so and one.computed.startswith("cited: ")
            continue
        as_said = [text == one.said or text.startswith("as said") for text in so]
        assert as_said == {"holds": [True], "holds-with-condition": [True, False]}.get(verdict, [False]), one.claim.id


def test_every_value_is_short_and_none_is_a_bare_bool():
    texts = [text for one in settled() for text in (one.said, *one.so)]
    assert max(map(len, texts)) <= WIDTH and not {"True", "False", "yes"} & {*texts}


def test_values_in_few_digits():
    assert value({"a": 2.0, "b": [1, 1 / 3]}) == "a: 2, b: [1, 0.3333]"
    assert value("memory") == value(["memory"]) == "memory" and value((True, 12288)) == "[yes, 12,288]"
    assert value(1979e12) == "1.979e15" and value(999_999_999) == "999,999,999" and value(-0.00001) == "-1e-05"
    assert value(10**9) == "1e09" and value(-(10**9)) == "-1e09" and value([1, 2]) == "[1, 2]" and value((1,)) == "[1]"


def test_what_is_too_long_or_a_bare_bool_becomes_a_phrase():
    assert entry((True, True, False)) == {"said": "", "so": ["as said", "not as said"]}
    assert entry((False, False)) == {"said": "", "so": ["as said"]}
    assert entry(([[0.1] * 50], [[0.1] * 50])) == {"said": "", "so": ["as said, in all of 50 values"]}
    assert entry(([0.1] * 50, [0.2] * 50)) == {"said": "", "so": ["not as said"]}
    named = {f"the value with number {i}": i for i in range(9)}
    assert entry((named, named)) == {"said": "", "so": ["as said, in all of 9 values"]}
    assert entry((["x" * 30, "y" * 30],) * 2) == {"said": "", "so": ["as said, in all of 2 values"]}
    assert entry(("x" * 56, "x")) == {"said": "x" * 56, "so": ["x"]}
    assert entry(("x" * 57, "x")) == {"said": "", "so": ["not as said"]}
    assert entry(("x" * 57, "x" * 57)) == {"said": "", "so": ["as said"]}
    assert entry((162.0, 0.318)) == {"said": "162", "so": ["0.318"]}
    assert entry(Cited("a paper", "16 bytes")) == {"said": "", "so": [], "source": "a paper: 16 bytes"}


def test_the_last_digits_may_differ_and_nothing_else():
    old = {"said": "0", "so": ["296 of 1e5", "[1.31, -2.5e-06]"]}
    assert same(old, old | {"so": ["297 of 1e5", "[1.309, -2.5e-06]"]})
    # One in a hundred, of the stored one.
    assert same({"said": "", "so": ["100"]}, {"said": "", "so": ["101"]})
    assert not same({"said": "", "so": ["100"]}, {"said": "", "so": ["101.1"]})
    assert same({"said": "", "so": ["-1,000"]}, {"said": "", "so": ["-991"]})
    # However small it is.
    assert same({"said": "", "so": ["2.5e-06"]}, {"said": "", "so": ["2.52e-06"]})
    assert not same({"said": "", "so": ["2.5e-06"]}, {"said": "", "so": ["5e-06"]})
    assert not same({"said": "", "so": ["0"]}, {"said": "", "so": ["0.001"]})
    for other in (["300 of 1e5", "[1.31, -2.5e-06]"], ["296 in 1e5", "[1.31, -2.5e-06]"], ["296 of 1e5"]):
        assert not same(old, old | {"so": other})
    assert not same({"said": "", "so": [], "source": "x"}, {"said": "", "so": []})


def test_a_test_fails_where_readers_would_see_other_values():
    claim = next(claim for claim in claims() if claim.id == "init-18.9")
    compare_with_file(claim, (18.9, 128.0))
    for outcome in ((18.9, 140.0), (18.9, 128.0, 128.0), Cited("a paper", "128")):
        with pytest.raises(AssertionError, match=r"init-18.9: settled.json says .*lessons claims"):
            compare_with_file(claim, outcome)


def test_outside_of_a_clone_the_command_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="in a clone"):
        claims_page.write()
    with pytest.raises(SystemExit):
        cli.main(["lessons", "claims", "03"])
    assert "leave the numbers out" in capsys.readouterr().err


def test_in_a_clone_its_own_tests_are_run(monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(claims_page.TESTS.resolve())])
    settled = SimpleNamespace(settlements=lambda: ["the tests"])
    monkeypatch.setitem(sys.modules, "claims", SimpleNamespace(settled=settled))
    monkeypatch.setitem(sys.modules, "claims.settled", settled)
    monkeypatch.chdir(Path(__file__).parents[2])
    for _ in range(2):
        assert claims_page._of_the_clone() == ["the tests"]
        assert sys.path[0] == str(claims_page.TESTS.resolve()), "before any other package of that name"
    assert sys.path.count(str(claims_page.TESTS.resolve())) == 1


def test_writing_again_keeps_what_differs_in_its_last_digits(tmp_path, monkeypatch):
    class Test:
        def __init__(self, id, outcome):
            self.claim, self.settle = next(claim for claim in claims() if claim.id == id), lambda: outcome

    tests = [Test("init-18.9", (18.9, 128.0))]
    monkeypatch.chdir(tmp_path)
    (tmp_path / claims_page.FILE).parent.mkdir(parents=True)
    assert "changed: init-18.9" in claims_page.write(tests)
    tests = [Test("init-18.9", (18.9, 128.4))]
    assert claims_page.write(tests).endswith("unchanged") and '"so": ["128"]' in claims_page.FILE.read_text()
    assert "init-18.9" in claims_page.write([Test("init-18.9", (18.9, 140.0))])
    claims_page.write([Test("init-18.9", ("2 µs", "2 µs"))])
    assert "2 µs" in claims_page.FILE.read_text(encoding="utf-8"), "as a reader writes it"
    # What is no longer there is named, too.
    assert claims_page.write([]).endswith("new or changed: init-18.9")
