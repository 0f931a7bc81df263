from cs336kit.teach import figures

ALT = "A sentence that says what the figure shows, long enough to be of use to someone."


def test_trajectories_has_a_panel_for_each_path():
    paths = {name: [(-8.0, 2.0), (-4.0, -1.0), (0.0, 0.0)] for name in ("SGD", "Momentum", "Adam", "AdamW")}
    one, two = (figures.trajectories(paths, curvatures=(1.0, 25.0), alt=ALT) for _ in range(2))
    assert one.svg == two.svg and len(one.svg) < 150_000


def test_step_sizes_and_state_bars_draw():
    steps = [1, 10, 100]
    for figure in (
        figures.step_sizes(
            steps, {"corrected": ([1.0] * 100, [1.0] * 3), "not": ([2.0] * 100, [3.0, 2.0, 1.0])}, alt=ALT
        ),
        figures.state_bars({"sgd": {"fp32": 0.0, "bf16": 0.0}, "adamw": {"fp32": 8.0, "bf16": 4.0}}, alt=ALT),
    ):
        assert figure.svg.startswith("<svg") and len(figure.svg) < 150_000
