import hashlib
from importlib.resources import files

import numpy as np
import pytest

from cs336kit.lm import course_text, decode, encode

pytestmark = pytest.mark.torch


def test_the_text_is_frozen_and_small():
    data = course_text().encode()
    provenance = (files("cs336kit.lm") / "corpus" / "PROVENANCE.txt").read_text()
    assert len(data) <= 1_000_000
    assert hashlib.sha256(data).hexdigest() in provenance and f"{len(data):,}" in provenance
    assert "PYTHON SOFTWARE FOUNDATION LICENSE" in (files("cs336kit.lm") / "corpus" / "LICENSE.txt").read_text()


def test_round_trip():
    for text in ("", "plain", "naïve — 數 🜚", course_text()):
        tokens = encode(text)
        assert tokens.dtype == np.uint8 and decode(tokens) == text
    assert len(encode("ï")) == 2


def test_half_a_character_is_marked():
    assert decode(encode("ï")[:1]) == "\N{REPLACEMENT CHARACTER}"


def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match="takes a str, got bytes"):
        encode(b"bytes")
    with pytest.raises(ValueError, match="0 to 255"):
        decode([256])
    with pytest.raises(ValueError, match="float"):
        decode([1.5])


def test_the_first_and_the_last_byte():
    assert decode([0, 65]) == "\0A" and decode([]) == "" and decode([255]) == "\N{REPLACEMENT CHARACTER}"
    for token in (-1, 256):
        with pytest.raises(ValueError, match=f"from 0 to 255, got int64 from {token} to {token}"):
            decode([token])
