import contextlib
import itertools
import math
import random
import sys
import time

import pytest
import torch

from cs336kit import measure
from cs336kit.measure.seconds import Timing

pytestmark = pytest.mark.torch

seconds_module = sys.modules[Timing.__module__]  # `measure.seconds` is the function


class Clock:
    """A clock that a test moves by hand: timing code is checked without any real time."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def function(self, durations):
        durations = iter(durations)

        def run():
            self.now += next(durations)

        return run


def test_median_quartiles_and_spread(monkeypatch):
    clock = Clock(monkeypatch)
    warm_and_probe = [9.0] * 4
    timing = measure.seconds(
        clock.function([*warm_and_probe, 1.0, 1.01, 1.02, 1.03, 1.04]), device="cpu", budget_seconds=1e9
    )
    assert timing.repeats == pytest.approx((1.0, 1.01, 1.02, 1.03, 1.04)) and timing.settled
    assert (timing.first_quartile, timing.median, timing.third_quartile) == pytest.approx((1.01, 1.02, 1.03))
    assert timing.spread == pytest.approx(0.02 / 1.02) and float(timing) == timing.median


def test_quartiles_are_close_after_consecutive_repeats_or_it_goes_on(monkeypatch):
    # Close after the fifth and sixth repeat, not after the seventh, which is slow again; then after three in a row.
    durations = [9.0] * 4 + [2.0, 1, 1, 1, 1, 1, 2.0] + [1.0] * 20
    clock = Clock(monkeypatch)
    timing = measure.seconds(
        clock.function(durations), device="cpu", spread=0.2, at_least=3, at_most=20, budget_seconds=1e9
    )
    assert len(timing.repeats) == 11 and timing.settled


def test_warm_up_is_thrown_away(monkeypatch):
    clock = Clock(monkeypatch)
    timing = measure.seconds(
        clock.function(itertools.chain([100.0] * 8, itertools.repeat(1.0))), device="cpu", warmup=7
    )
    assert set(timing.repeats) == {1.0}


def test_repeats_until_the_spread_is_small(monkeypatch):
    clock = Clock(monkeypatch)
    noisy = [1.0, 3.0, 1.0, 3.0, 2.0]
    timing = measure.seconds(
        clock.function(itertools.chain([1.0] * 4, noisy, itertools.repeat(2.0))), device="cpu", budget_seconds=1e9
    )
    assert timing.settled and len(timing.repeats) > 5 and timing.median == 2.0


def test_it_says_when_the_spread_stays_large(monkeypatch):
    clock = Clock(monkeypatch)
    timing = measure.seconds(
        clock.function(itertools.chain([1.0] * 4, itertools.cycle([1.0, 2.0, 3.0]))),
        device="cpu", at_most=12, budget_seconds=1e9,
    )  # fmt: skip
    assert not timing.settled and len(timing.repeats) == 12 and "spread still large" in repr(timing)


def test_noise_does_not_settle_by_luck(monkeypatch):
    """Repeats whose quartiles lie 13 % apart: now and then those of the first five, or six, or ten lie within 5 %."""
    clock, noise = Clock(monkeypatch), random.Random(0)
    durations = (noise.gauss(1.0, 0.1) for _ in itertools.count())
    timings = [measure.seconds(clock.function(durations), device="cpu", budget_seconds=1e9) for _ in range(200)]
    assert sum(timing.settled for timing in timings) <= 10
    assert all(timing.settled is (timing.spread <= 0.05) for timing in timings)


def test_what_still_grows_faster_is_not_settled(monkeypatch):
    durations = (1 + 0.3 * math.exp(-call / 10) for call in itertools.count(-4))
    timing = measure.seconds(Clock(monkeypatch).function(durations), device="cpu", budget_seconds=1e9)
    assert len(timing.repeats) == 50 and timing.median < 1.05


def test_outliers_alone_do_not_keep_it_from_settling(monkeypatch):
    durations = itertools.cycle([1.0, 1.01, 0.99, 1.5, 1.02])
    timing = measure.seconds(Clock(monkeypatch).function(durations), device="cpu", budget_seconds=1e9)
    assert timing.settled and len(timing.repeats) < 12


def test_the_budget_ends_it(monkeypatch):
    clock = Clock(monkeypatch)
    timing = measure.seconds(
        clock.function(itertools.chain([1.0] * 4, itertools.cycle([1.0, 2.0, 3.0]))), device="cpu", budget_seconds=9.0
    )
    # 1 + 2 + 3 + 1 + 2 seconds are within it, the next 3 are not.
    assert not timing.settled and timing.repeats == (1, 2, 3, 1, 2, 3)


def test_quartiles_as_far_apart_as_was_asked_for_are_close_enough(monkeypatch):
    function = Clock(monkeypatch).function([1.0] * 4 + [4.0, 4.0, 4.0, 5.0, 5.0])
    assert measure.seconds(function, device="cpu", spread=0.25, budget_seconds=1e9).settled


def test_short_functions_are_called_several_times(monkeypatch):
    clock = Clock(monkeypatch)
    timing = measure.seconds(clock.function(itertools.repeat(1e-5)), device="cpu")
    # Four times as many until a batch takes 1e-4 seconds: 4 calls take 4e-5 of them, 16 take 1.6e-4.
    assert timing.calls == 16 and timing.median == pytest.approx(1e-5)


def test_the_same_function_twice_agrees(monkeypatch):
    clock = Clock(monkeypatch)
    noisy = itertools.cycle([1.0, 1.04, 0.98, 1.01, 1.03, 0.99, 1.02])
    first, second = (measure.seconds(clock.function(noisy), device="cpu", budget_seconds=1e9) for _ in range(2))
    assert first.settled and second.settled and first.agrees_with(second)
    assert abs(first.median - second.median) <= (first.spread + second.spread) * first.median


def test_agreement_is_a_close_median_or_an_overlap():
    timing = lambda *repeats: Timing(repeats, 1, "cpu", True)  # noqa: E731
    assert not timing(1.0, 2.0).agrees_with(timing(2.5, 3.0)) and not timing(2.5, 3.0).agrees_with(timing(1.0, 2.0))
    # The middle halves count, not the ends.
    assert timing(1.0, 3.0).agrees_with(timing(2.0, 9.0)) is timing(2.0, 9.0).agrees_with(timing(1.0, 3.0)) is False
    assert timing(1.0, 3.0).agrees_with(timing(2.0, 4.0)) and timing(2.0, 4.0).agrees_with(timing(1.0, 3.0))
    # One interrupted call of fifty does not hide that the others take twice as long.
    calm, interrupted = timing(*[2.0] * 50), timing(*[1.0] * 49, 3.0)
    assert not calm.agrees_with(interrupted) and not interrupted.agrees_with(calm)
    assert timing(1.0, 1.0).agrees_with(timing(2.0, 2.0), within=0.5)  # half of the larger one
    assert timing(1.0, 1.01).agrees_with(timing(1.04, 1.05)) and not timing(1.0, 1.01).agrees_with(timing(1.1, 1.11))
    assert not timing(1.0, 1.01).agrees_with(timing(1.04, 1.05), within=0.01)
    with pytest.raises(ValueError, match="within must be"):
        timing(1.0, 1.0).agrees_with(timing(1.0, 1.0), within=0)


def test_a_real_function_timed_twice_agrees_within_the_stated_spread():
    x = torch.randn(128, 128)

    def twice():
        return [measure.seconds(lambda: x @ x, device="cpu", budget_seconds=0.2) for _ in range(2)]

    # A busy machine may slow one of the two down; over twenty pairs it cannot do so every time.
    assert any(first.agrees_with(second) for first, second in (twice() for _ in range(20)))


def test_a_real_clock_runs_too():
    timing = measure.seconds(lambda: time.sleep(0.002), device="cpu", at_most=5)
    assert min(timing.repeats) >= 0.002 and timing.device == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_gpu_is_timed_by_events():
    x = torch.randn(1024, 1024, device="cuda")
    timing = measure.seconds(lambda: x @ x)
    assert timing.device == "cuda" and timing.median > 0


def test_a_gpu_is_kept_busy_for_a_while_before_it_is_timed(monkeypatch):
    clock = Clock(monkeypatch)
    slow = clock.function(itertools.chain([2e-3] * 53, itertools.repeat(1e-3)))  # three calls, and those of 0.1 s
    monkeypatch.setattr(seconds_module, "_cuda_repeat", seconds_module._cpu_repeat)
    monkeypatch.setattr(seconds_module, "_device", torch.device)
    assert measure.seconds(slow, device="cuda").median == pytest.approx(1e-3)


def test_a_batch_on_a_gpu_takes_a_millisecond(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr(seconds_module, "_cuda_repeat", seconds_module._cpu_repeat)
    monkeypatch.setattr(seconds_module, "_device", torch.device)
    # 16 calls of 50 µs are 0.8 ms, and the host may need 0.1 ms of that to start the first.
    assert measure.seconds(clock.function(itertools.repeat(5e-5)), device="cuda").calls == 64


def test_repr_chooses_the_unit():
    assert repr(Timing((0.002, 0.002), 1, "cpu", True)) == "2 ms (quartiles 2 to 2, 2 repeats on cpu)"
    assert repr(Timing((3e-7, 3e-7), 1, "cpu", True)).startswith("300 ns")
    for median, said in (
        (1.0, "1 s"),
        (1.5, "1.5 s"),
        (0.999, "999 ms"),
        (1e-3, "1 ms"),
        (1e-6, "1 µs"),
        (5e-10, "0.5 ns"),
    ):
        assert repr(Timing((median, median), 1, "cpu", True)).startswith(f"{said} (")


def test_nothing_to_time_is_a_sentence():
    with pytest.raises(RuntimeError, match="as long as calling an empty function: there is nothing to time"):
        measure.seconds(lambda: None, device="cpu")
    with pytest.raises(RuntimeError, match="returned a generator, so its body has not run"):
        measure.seconds(lambda: (x for x in range(3)), device="cpu")
    with pytest.raises(TypeError, match="but got a Tensor: put 'lambda:' before it"):
        measure.seconds(torch.ones(3) + 1)


@pytest.mark.parametrize(
    "interrupted", [range(0), range(1), range(4), range(3, 9), range(20, 60), range(0, 9_000, 2000)]
)
def test_nothing_to_time_is_refused_on_a_busy_machine_too(monkeypatch, interrupted):
    """Calls of 20 ns, some of which another program interrupts for a millisecond."""
    clock = Clock(monkeypatch)
    mine = clock.function(2e-8 + 1e-3 * (call in interrupted) for call in itertools.count())
    monkeypatch.setattr(seconds_module, "_nothing", clock.function(itertools.repeat(2e-8)))
    with pytest.raises(RuntimeError, match="there is nothing to time"):
        measure.seconds(mine, device="cpu", warmup=1)


@pytest.mark.parametrize(
    ("mine", "empty", "refused"),
    [
        ([2.0] * 7, [1.0] * 7, False),  # twice as long as calling nothing is something
        ([1.999] * 7, [1.0] * 7, True),
        ([9.0] * 6 + [1.9], [1.0] * 7, True),  # one burst that nothing interrupts is enough, of each
        ([9.0] * 7, [8.0] * 6 + [1.0], False),
    ],
)
def test_the_fastest_of_seven_bursts_is_held_against_that_of_an_empty_function(monkeypatch, mine, empty, refused):
    times = {time.sleep: iter(mine), seconds_module._nothing: iter(empty)}
    monkeypatch.setattr(seconds_module, "_cpu_repeat", lambda function, calls, where: calls * next(times[function]))
    with pytest.raises(RuntimeError, match=r"takes 2e\+00 s, as long") if refused else contextlib.nullcontext():
        seconds_module._refuse_nothing(time.sleep, torch.device("cpu"))


def test_what_takes_as_long_as_an_empty_call_may_and_a_batch_must_is_timed_one_by_one(monkeypatch):
    clock = Clock(monkeypatch)
    for name in ("SHORTEST_BATCH_SECONDS", "LONGEST_EMPTY_CALL_SECONDS"):
        monkeypatch.setattr(seconds_module, name, 0.5)
    monkeypatch.setattr(seconds_module, "_nothing", clock.function(itertools.repeat(0.5)))
    timing = measure.seconds(clock.function(itertools.repeat(0.5)), device="cpu")
    assert (timing.median, timing.calls) == (0.5, 1)


def test_bad_settings_are_sentences():
    work = lambda: sum(range(1000))  # noqa: E731
    with pytest.raises(ValueError, match="at_least must be 2 or more and no larger than at_most, got 1 and 50"):
        measure.seconds(work, device="cpu", at_least=1)
    with pytest.raises(ValueError, match="at_least must be 2 or more"):
        measure.seconds(work, device="cpu", at_least=9, at_most=3)
    with pytest.raises(ValueError, match="spread must be"):
        measure.seconds(work, device="cpu", spread=0)
    with pytest.raises(ValueError, match="is not a device"):
        measure.seconds(work, device="gpu")
