import pytest

from cs336kit.teach import claims
from cs336kit.teach.claims import VERDICTS


def test_ids_are_unique_and_every_claim_says_something():
    every = claims()
    assert len({claim.id for claim in every}) == len(every) > 300
    for claim in every:
        assert claim.claim and claim.source and claim.topic, claim.id
        assert claim.verdict is None or claim.verdict in VERDICTS, claim.id
        assert (claim.verdict is None) == (claim.truth is None), claim.id


def test_a_topic_is_a_part():
    assert {claim.topic for claim in claims("napkin")} == {"napkin"}


def test_an_unknown_topic_lists_the_known_ones():
    with pytest.raises(ValueError, match="no claims on the topic 'astrology'.*floats.*napkin"):
        claims("astrology")
