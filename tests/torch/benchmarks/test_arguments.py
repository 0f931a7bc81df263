import runpy
import sys

import pytest


@pytest.mark.filterwarnings("ignore:'benchmarks.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("layouts ten", "argument COUNT: 'ten' is not a number: write 70e9, 70B or 15T"),
        ("layouts 1.5", "argument COUNT: '1.5' is not a whole number"),
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
