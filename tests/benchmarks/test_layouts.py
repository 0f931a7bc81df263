from benchmarks.layouts import sweep


def test_random_layouts_have_no_fault():
    """Parts that add up, more shards that never cost, bounds in order, errors that are sentences; 10,000 in `make bench`."""
    seen, wrong = sweep(120, seed=1)
    assert not wrong
    assert seen["answered"] > 60
