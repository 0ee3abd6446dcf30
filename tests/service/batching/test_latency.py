"""L(n) is measured, interpolated and updated."""

from itertools import pairwise
from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.batching.latency import Latency, measure

LINE = {n: 1.0 + 0.1 * n for n in range(1, 9)}


def test_what_was_not_measured_lies_on_the_line_through_its_neighbours() -> None:
    latency = Latency.measured({1: 1.1, 4: 1.4, 8: 1.8}, 8)
    assert latency.seconds == pytest.approx(tuple(LINE.values()))
    assert Latency.measured({2: 1.2, 4: 1.4}, 8).seconds == pytest.approx(tuple(LINE.values()))


def test_one_size_stands_for_all_where_nothing_else_is_known() -> None:
    assert Latency.measured({1: 2.0}, 3).seconds == (2.0, 2.0, 2.0)
    assert Latency.measured({}, 3) == Latency.unknown(3)
    assert not Latency.unknown(3).known


def test_a_larger_batch_never_takes_less_whatever_was_measured() -> None:
    assert Latency.measured({1: 1.0, 2: 3.0, 3: 2.0}, 3).seconds == (1.0, 2.5, 2.5)


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=8))
def test_measured_times_rise_and_stay_within_what_was_measured(times: list[float]) -> None:
    seconds = Latency.measured(dict(enumerate(times, 1)), len(times)).seconds
    assert all(a <= b for a, b in pairwise(seconds))
    assert min(times) <= seconds[0] * (1 + 1e-9)
    assert seconds[-1] <= max(times) * (1 + 1e-9)
    if all(a <= b for a, b in pairwise(times)):
        assert seconds == pytest.approx(tuple(times))


def test_many_items_take_the_fewest_batches() -> None:
    latency = Latency((1.0, 1.5, 1.6))
    assert [latency.of(n) for n in (0, 1, 3, 4, 8)] == [0.0, 1.0, 1.6, 2.6, 4.7]
    assert latency._replace(error=0.1).within(4) == pytest.approx(2.6 * 1.2)


def test_the_first_batch_seen_stands_for_all_sizes() -> None:
    assert Latency.unknown(3).observed(2, 0.5).seconds == (0.5, 0.5, 0.5)


def test_a_batch_that_takes_a_hundred_times_as_long_counts_as_one_of_four_times() -> None:
    latency = Latency(tuple(LINE.values())).observed(2, 100 * LINE[2])
    assert latency.of(2) == pytest.approx(4**0.25 * LINE[2])


def test_the_error_is_an_average_over_some_eight_batches() -> None:
    latency = Latency(tuple(LINE.values())).observed(2, 1.5 * LINE[2])
    assert latency.error == pytest.approx(0.5 / 8)


def test_an_engine_that_slows_down_is_followed_even_for_sizes_that_do_not_run() -> None:
    latency = Latency(tuple(LINE.values()))
    for _ in range(30):
        latency = latency.observed(2, 3 * LINE[2])
    assert latency.of(2) == pytest.approx(3 * LINE[2], rel=0.05)
    assert latency.of(1) > 1.5 * LINE[1]
    assert latency.of(8) > 1.5 * LINE[8]


def test_one_batch_that_was_interrupted_changes_nothing_much() -> None:
    latency = Latency(tuple(LINE.values()))
    for took in (1.1, 1.1, 30.0, 1.1, 1.1):
        latency = latency.observed(1, took)
    assert latency.seconds == pytest.approx(tuple(LINE.values()))


def test_it_settles_on_noisy_times_and_knows_how_noisy_they_are() -> None:
    draw = Random(0)
    latency = Latency((2.0,) * 8)
    for _ in range(2000):
        n = draw.randint(1, 8)
        latency = latency.observed(n, LINE[n] * exp(draw.gauss(0, 0.05)))
    assert latency.seconds == pytest.approx(tuple(LINE.values()), rel=0.05)
    assert latency.error == pytest.approx(0.04, abs=0.02)  # the mean of |N(0, 0.05)|


def test_noise_of_one_size_does_not_add_up_in_the_others() -> None:
    draw = Random(0)
    latency = Latency(tuple(LINE.values()))
    for _ in range(5000):
        latency = latency.observed(8, LINE[8] * exp(draw.gauss(0, 0.03)))
        assert latency.of(7) / latency.of(8) == pytest.approx(LINE[7] / LINE[8], rel=0.025)


def test_a_size_that_never_runs_goes_nowhere_however_noisy_the_others_are() -> None:
    """On a busy event loop, most of the observed time is spent outside the batch, especially for
    small batches."""
    draw = Random(2)
    latency = Latency((30e-6,) * 8)
    most = 0.0
    for _ in range(20_000):
        n = draw.randint(1, 4)
        seen = (500e-6, 300e-6, 400e-6, 200e-6)[n - 1]
        latency = latency.observed(n, seen * exp(draw.gauss(0, 1)))
        most = max(most, latency.of(8))
    assert most < 5e-3


@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1e3)), max_size=30),
    st.booleans(),
)
def test_whatever_is_seen_a_larger_batch_never_takes_less(
    seen: list[tuple[int, float]], measured: bool
) -> None:
    latency = Latency((1.0, 1.1, 1.2, 1.3, 1.4, 1.5)) if measured else Latency.unknown(6)
    for n, took in seen:
        latency = latency.observed(n, took)
        assert all(a <= b for a, b in pairwise(latency.seconds))
        assert not measured or latency.seconds[0] > 0


# --- measuring -----------------------------------------------------------------------------------


def test_measuring_takes_the_median_of_several_rounds() -> None:
    calls: list[int] = []

    def run(n: int) -> float:
        calls.append(n)
        return LINE[n] * (10 if len(calls) < 10 else 1)  # the first round and one are slow

    latency = measure(run, 8, budget_s=1e9, rounds=5)
    assert latency.seconds == pytest.approx(tuple(LINE.values()))
    assert sorted(calls) == sorted([*range(1, 9)] * 5)


def test_measuring_begins_nothing_that_would_take_too_long() -> None:
    ran: list[int] = []

    def run(n: int) -> float:
        ran.append(n)
        return float(n)

    latency = measure(run, 8, budget_s=10.5, rounds=5)
    assert ran == [1, 8, 1], "4 would have ended after 13 s, the second 8 after 18"
    assert latency.seconds == pytest.approx(tuple(range(1, 9)))
    assert measure(run, 8, budget_s=0) == Latency.unknown(8)


def test_measuring_asks_the_sizes_that_say_most_first() -> None:
    ran: list[int] = []

    def run(n: int) -> float:
        ran.append(n)
        return 0.0

    measure(run, 8, budget_s=1, rounds=1)
    assert ran == [1, 8, 4, 2, 6, 3, 5, 7]
    ran.clear()
    measure(run, 1, budget_s=1, rounds=2)
    assert ran == [1, 1]
