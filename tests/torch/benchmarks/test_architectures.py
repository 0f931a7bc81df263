"""What sets published models beside transformers' modules: a name that nobody knows is no model that agrees."""

import pytest

from benchmarks import architectures


@pytest.mark.parametrize("words", [["llama-3-9b"], ["gpt2", "gtp2"], ["--flags", "lama"]])
def test_an_unknown_name_is_refused_before_anything_runs(capsys, words):
    assert architectures.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("unknown ") and words[-1] in said.err and "Did you mean" in said.err and said.out == ""
