"""What sets published models beside transformers' modules: a name that nobody knows is no model that agrees."""

import pytest

from benchmarks import architectures


@pytest.mark.parametrize("words", [["llama-3-9b"], ["gpt2", "gtp2"], ["--flags", "lama"]])
def test_an_unknown_name_is_refused_before_anything_runs(capsys, words):
    assert architectures.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("unknown ") and words[-1] in said.err and "Did you mean" in said.err and said.out == ""


@pytest.mark.parametrize(("found", "code"), [(["exact"] * 4, 0), (["exact"] * 3 + ["+1.000% (101 for 100)"], 1)])
def test_a_model_that_is_off_ends_with_1(monkeypatch, capsys, found, code):
    monkeypatch.setattr(architectures, "differences", lambda values: found)
    assert architectures.main(["gpt2"]) == code and f"{1 - code} of 1 exact" in capsys.readouterr().out


@pytest.mark.parametrize("off", [0, 1])
def test_a_switch_that_is_off_ends_with_1(monkeypatch, capsys, off):
    monkeypatch.setattr(architectures, "flipped", lambda model_type: {"bias": {}})
    monkeypatch.setattr(architectures, "counted", lambda values: 100)
    monkeypatch.setattr(architectures, "predicted", lambda values: 100 + off)
    assert architectures.main(["--flags", "llama"]) == off and f"wrong {off}" in capsys.readouterr().out
