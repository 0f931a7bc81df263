import json
import math

import pytest

from cs336kit.cli import main
from cs336kit.predict import MODELS, compute_optimal, parameters, scaling_laws
from cs336kit.predict.scaling import OPTIMAL_KEYS

BY_NAME = {law.name: law for law in scaling_laws()}


def law(answer, name):
    return next(one for one in answer.laws if one.law.name == name)


def test_every_law_has_a_source_and_its_spread():
    for each in scaling_laws():
        assert "arXiv:" in each.source and each.title
        assert each.low is None or each.low <= each.high
    assert [each.name for each in scaling_laws() if each.low is None] == ["kaplan"]


@pytest.mark.parametrize("name", ["chinchilla-1", "chinchilla-2", "chinchilla-3"])
def test_rows_of_the_tables_are_six_n_d_and_are_met(name):
    for size, flops, tokens in BY_NAME[name].numbers["rows"]:
        # The tokens are printed with two digits or three.
        assert 6 * size * tokens == pytest.approx(flops, rel=0.06)
        one = law(compute_optimal(flops=flops), name)
        assert (one.parameters, one.tokens) == (pytest.approx(size), pytest.approx(tokens)) and not one.extrapolated
        assert law(compute_optimal(parameters=size), name).flops == pytest.approx(flops)
        assert law(compute_optimal(tokens=tokens), name).parameters == pytest.approx(size)
    assert law(compute_optimal(flops=1e18), name).extrapolated and law(compute_optimal(flops=1e30), name).extrapolated


def test_the_refit_is_where_the_loss_is_smallest():
    numbers = {name: BY_NAME["besiroglu"].numbers[name]["value"] for name in ("E", "A", "B", "alpha", "beta")}
    one = law(compute_optimal(flops=1e24), "besiroglu")

    def loss(size):
        tokens = 1e24 / 6 / size
        return numbers["E"] + numbers["A"] / size ** numbers["alpha"] + numbers["B"] / tokens ** numbers["beta"]

    sizes = [math.exp(math.log(1e9) + i * math.log(1e4) / 20_000) for i in range(20_001)]
    assert one.parameters == pytest.approx(min(sizes, key=loss), rel=2e-3)
    assert 6 * one.parameters * one.tokens == pytest.approx(1e24)
    for what in ("parameters", "tokens"):
        back = law(compute_optimal(**{what: getattr(one, what)}), "besiroglu")
        assert back.flops == pytest.approx(1e24)
    assert BY_NAME["besiroglu"].exponent == pytest.approx(
        numbers["beta"] / (numbers["alpha"] + numbers["beta"]), abs=1e-3
    )


def test_kaplan_grows_models_faster_than_tokens():
    one = law(compute_optimal(flops=8.64e19), "kaplan")
    assert (one.parameters, one.tokens) == (1.3e9, 2e10)
    ten = law(compute_optimal(flops=8.64e20), "kaplan")
    assert ten.parameters / one.parameters == pytest.approx(10**0.73)


def test_a_model_is_its_parameters_and_for_kaplan_those_without_tables():
    config = MODELS["gpt2"]
    answer = compute_optimal(parameters=config)
    assert law(answer, "chinchilla-1").parameters == pytest.approx(parameters(config).total)
    assert law(answer, "kaplan").parameters == pytest.approx(parameters(config).total - (50257 + 1024) * 768)


@pytest.mark.parametrize("given", [{}, {"flops": 1e20, "tokens": 1e9}])
def test_one_number_is_given(given):
    with pytest.raises(ValueError, match="give one of flops, parameters and tokens"):
        compute_optimal(**given)


def test_never_one_number_without_its_spread(capsys):
    for arguments in (["--flops", "1e24"], ["--model", "llama-3-8b"], ["--tokens", "15T"], ["--model", "70B"]):
        assert main(["optimal", *arguments]) == 0
        out = capsys.readouterr().out
        assert "all laws: " in out and " to " in out and all(len(line) <= 80 for line in out.splitlines())
        assert main(["optimal", *arguments, "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert list(values) == list(OPTIMAL_KEYS) and len(values["laws"]) == len(BY_NAME)
        for what, (low, high) in values["range"].items():
            assert low == min(one[what] for one in values["laws"]) and high == max(one[what] for one in values["laws"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give one of --flops, --model and --tokens"),
        (["--flops", "1e24", "--tokens", "1T"], "got --flops and --tokens"),
        (["--model", "lama-3-8b"], "Did you mean 'llama-3-8b'"),
        (["--flops", "0"], "flops must be"),
    ],
)
def test_bad_input_is_a_sentence(capsys, arguments, sentence):
    assert main(["optimal", *arguments]) == 2
    assert sentence in capsys.readouterr().err
