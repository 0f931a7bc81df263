import argparse
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import adapters, hf_fields, kept, published, sharded, traced


@pytest.mark.filterwarnings("ignore:'benchmarks.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("layouts ten", "COUNT: 'ten' is not a number: write 70e9, 70B or 15T"),
        ("layouts 1.5", "COUNT: '1.5' is not a whole number"),
        ("layouts -5", "COUNT is -5: at least 0 configurations can be drawn"),
        ("layouts 1 2", "'2' belongs to no option: --help lists them"),
        *(
            (f"{name} 4", "'4' belongs to no option: --help lists them")
            for name in ("bubbles", "classroom", "estimators", "training")
        ),
    ],
)
def test_what_a_benchmark_does_not_know_is_one_sentence(words, said, monkeypatch, capsys):
    module, *arguments = words.split()
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as left:
        runpy.run_module(f"benchmarks.{module}", run_name="__main__")
    assert left.value.code == 2 and capsys.readouterr() == ("", f"{said}\n")


@pytest.mark.parametrize("module", [adapters, kept, sharded, traced])
def test_an_architecture_that_is_none_is_one_sentence(module, capsys):
    with pytest.raises(SystemExit) as left:
        module.main(["lama"])
    said = capsys.readouterr()
    assert left.value.code == 2 and said.out == "" and said.err.count("\n") == 1
    assert said.err.startswith("unknown architecture 'lama'. Did you mean 'llama'?")


@pytest.mark.parametrize("names", [kept.FAMILIES, adapters.FAMILIES, traced.ROWS])
def test_architectures_that_are_some_are_taken(names):
    found = traced.named(argparse.ArgumentParser(), names, "", ["llama", "gpt2"])
    assert found.names == ["llama", "gpt2"]
    assert traced.named(argparse.ArgumentParser(), names, "", []).names == []


@pytest.mark.filterwarnings("ignore:'benchmarks.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", ["architectures", "hf_fields", "kept", "lesson_coverage", "published", "steadiness"])
def test_help_is_printed_and_nothing_is_run_or_written(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setattr(Path, "write_text", None)
    with pytest.raises(SystemExit) as left:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    said = capsys.readouterr()
    assert left.value.code == 0 and said.out.startswith(f"usage: python -m benchmarks.{name} ") and said.err == ""


def test_words_that_no_published_row_has_are_refused_with_the_sources(capsys):
    assert published.main(["llamas-of-mars"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("no row has 'llamas-of-mars'. The sources: ") and said.out == ""


def test_the_table_of_fields_says_what_has_changed(tmp_path, monkeypatch, capsys):
    path = tmp_path / "hf_fields.json"
    path.write_text('{"gone": {}, "llama": {"fields": {}}}')
    monkeypatch.setattr(hf_fields, "table", lambda: {"llama": {"fields": {"hidden_size": 64}}, "new": {}})
    for said in ("new, changed or gone are gone, llama, new", "unchanged"):
        assert hf_fields.main([], path) == 0
        assert capsys.readouterr().out == f"hf_fields.json: {said}\n"
