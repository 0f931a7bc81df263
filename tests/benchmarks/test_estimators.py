from dataclasses import replace

import pytest

from benchmarks import estimators


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch):
    """The models with three blocks each: what the others cost is the same again."""
    models = {name: replace(config, layers=3) for name, config in estimators.MODELS.items()}
    monkeypatch.setattr(estimators, "MODELS", models)


def test_the_kit_is_exact_on_every_quantity_of_a_small_and_a_sparse_model():
    table = estimators.compare_estimators([("gpt2", 64), ("mixtral-8x7b", 16)])
    column = table.headers.index("cs336kit")
    assert [row[1] for row in table.rows] == [*estimators.QUANTITIES, "parameters", "forward FLOPs"]
    assert all(row[column].startswith("exact, ") for row in table.rows), table


def test_estimators_that_are_missing_or_fail_do_not_stop_the_others(monkeypatch):
    monkeypatch.setattr(estimators, "ESTIMATORS", {**estimators.ESTIMATORS, "absent": None})
    monkeypatch.setattr(estimators, "_NEEDED", {**estimators._NEEDED, "absent": "no_such_package"})
    assert "absent" not in estimators.installed() and "cs336kit" in estimators.installed()
    assert estimators._estimate(lambda: 1 / 0, 1) == "ZeroDivisionError: division by zero"
    assert estimators._estimate(lambda: 110, 100).startswith("+10.00%, ")


def test_missing_estimators_are_named(monkeypatch, capsys):
    monkeypatch.setattr(estimators, "compare_estimators", lambda: "the table")
    monkeypatch.setattr(estimators, "installed", lambda: {"cs336kit": None})
    assert estimators.main() == 0
    assert "not installed here: llm-flops, llm-analysis" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["llama-3.2-1b", "falcon-7b"])
def test_truth_is_counted_from_modules(name):
    counted = estimators.truth(estimators.MODELS[name], 32)
    assert set(counted) == set(estimators.QUANTITIES) and all(counted.values())
