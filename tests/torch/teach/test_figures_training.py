import pytest

from cs336kit import teach

ALT = "A sentence that says what the figure shows to someone who cannot see it."
DRAW = {
    "loss_curves": lambda: teach.figures.loss_curves(
        {"fp32": [5.5, 4.0, 3.5, 3.2], "bf16": [5.5, 4.1, 3.5, 3.3]},
        levels={"ln 256": 5.5},
        points={"held out": [(4, 3.1)]},
        smooth=2,
        alt=ALT,
    ),
    "loss_differences": lambda: teach.figures.loss_differences(
        {"fp32": [5.5, 4.0, 3.5, 3.2], "bf16": [5.5, 4.1, 3.5, 3.3]}, reference="fp32", tolerance=0.1, smooth=2, alt=ALT
    ),
    "unseen_share": lambda: teach.figures.unseen_share([0, 1, 2], [1, 0.37, 0.14], [1, 0.36, 0.13], alt=ALT),
    "lost_updates": lambda: teach.figures.lost_updates({"bf16": [1.0] * 9, "fp32": range(9)}, every=2, alt=ALT),
    "loss_scale": lambda: teach.figures.loss_scale([8, 4, 4, 8], [1], alt=ALT),
    "magnitudes": lambda: teach.figures.magnitudes(
        range(-3, 0), {"a": [0.2, 0.5, 0.3], "b": [0.1, 0.1, 0.8]}, limits={"fp16": -2}, alt=ALT
    ),
}


@pytest.mark.parametrize("name", DRAW)
def test_figures_are_deterministic_and_small(name):
    figure = DRAW[name]()
    assert figure.svg == DRAW[name]().svg and figure.alt == ALT and len(figure.svg) < 150_000
