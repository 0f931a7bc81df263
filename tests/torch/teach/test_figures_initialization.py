from cs336kit.teach import figures

ALT = "A sentence that says what the figure shows, long enough to be of use to someone."


def test_signal_through_layers_has_a_column_for_each_panel_and_is_deterministic():
    series = {"plain": ([1.0] * 11, [1.1] * 11, [0.1] * 11), "falling": ([2.0**-n for n in range(11)],) * 3}
    one, two = (figures.signal_through_layers({"up": series, "down": series}, alt=ALT) for _ in range(2))
    assert one.svg == two.svg and one.svg.count('id="axes_') == 4 and ALT in one.svg
    assert len(one.svg) < 150_000


def test_growth_and_tails_draw():
    steps = [float(n) for n in range(49)]
    for figure in (
        figures.growth({"plain": (steps, steps)}, xlabel="additions", ylabel="mean of squares", alt=ALT),
        figures.tails((0, 1, 2), {"normal": [500, 200], "cut": [700, 0]}, alt=ALT),
    ):
        assert figure.svg.startswith("<svg") and len(figure.svg) < 150_000
