"""How the ledger is written down for a reader."""

import re

from claims.settled import Cited, settlements

from cs336kit.course.claims_page import WIDTH, row, stored, table, value, without_sources
from cs336kit.teach import claims


def settling(topic):
    return [test for test in settlements() if test.claim.topic == topic]


def test_no_statement_names_a_source():
    statements = {claim.id: without_sources(claim.claim) for claim in claims()}
    assert [id for id, said in statements.items() if re.search(r"\w-notes\b", said) or len(said) < 10] == []


def test_a_statement_loses_the_number_of_its_equation():
    assert without_sources("(6.1) cache = 2pBSDL/T bytes (also long-notes, short-notes).") == "cache = 2pBSDL/T bytes."
    assert without_sources("GPT-3 (175B) takes 2 bytes.") == "GPT-3 (175B) takes 2 bytes."


def test_rows_hold_what_the_tests_return():
    by_id = {entry["id"]: entry for entry in stored(settling("inference"))}
    assert list(by_id) == [claim.id for claim in claims("inference")]
    assert by_id["inf-now-compute-bound"]["said"] == "compute" != by_id["inf-now-compute-bound"]["so"][0] == "memory"
    for entry in by_id.values():
        same = [so == entry["said"] for so in entry["so"]]
        assert same == {"holds": [True], "holds-with-condition": [True, False]}.get(entry["verdict"], [False])


def test_a_cited_claim_has_its_source_and_no_value():
    cited = next(test for test in settling("transformer") if test.claim.id == "tf-mup-no-sqrt")
    assert isinstance(cited.settle(), Cited)
    assert row(cited).said is None and "2203.03466" in row(cited).truth


def test_values_are_short():
    assert value({"a": 2.0, "b": [1, 1 / 3]}) == "a: 2, b: [1, 0.333333]"
    assert value("memory") == "memory" and value(True) == "True" and value(12288) == "12,288"
    assert len(value(list(range(100)))) <= WIDTH and value(list(range(100))).endswith("…")


def test_a_table_has_a_line_for_each_claim():
    rows = [row(test) for test in settling("collectives")]
    lines = table(rows).splitlines()
    assert len(lines) == len(rows) + 2 and all(line.count("|") - line.count("\\|") == 5 for line in lines)
