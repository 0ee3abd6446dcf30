"""When requests are to be sent."""

import numpy as np
import pytest

from loadtest.schedule import Arrivals, arrivals


def test_the_same_seed_gives_the_same_moments_and_another_one_others() -> None:
    one = arrivals(Arrivals.POISSON, 50, 10, seed=1)
    assert np.array_equal(one, arrivals(Arrivals.POISSON, 50, 10, seed=1))
    assert not np.array_equal(one, arrivals(Arrivals.POISSON, 50, 10, seed=2))


def test_poisson_moments_ascend_within_the_time() -> None:
    moments = arrivals(Arrivals.POISSON, 300, 4, seed=3)
    assert (np.diff(moments) >= 0).all()
    assert moments[0] >= 0
    assert moments[-1] < 4


def test_poisson_counts_have_the_mean_and_the_variance_of_the_rate() -> None:
    counts = np.array([len(arrivals(Arrivals.POISSON, 20, 5, seed)) for seed in range(2000)])
    # Both estimates of 100 are within 5 of their standard errors.
    assert abs(counts.mean() - 100) < 5 * np.sqrt(100 / 2000)
    assert abs(counts.var() - 100) < 5 * 100 * np.sqrt(2 / 2000)


def test_poisson_gaps_are_exponential_and_forget_the_last_one() -> None:
    rate = 100.0
    gaps = np.diff(arrivals(Arrivals.POISSON, rate, 1000, seed=5))
    # Kolmogorov and Smirnov's statistic, its 1e-6 quantile for large n: sqrt(-ln(a / 2) / (2 n)).
    ordered = np.sort(gaps)
    expected = 1 - np.exp(-rate * ordered)
    n = len(gaps)
    steps = np.arange(n + 1) / n
    farthest = max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    assert farthest < np.sqrt(-np.log(0.5e-6) / (2 * n))
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize(("rate", "seconds", "count"), [(10, 1, 10), (3, 1, 3), (0.5, 3, 2)])
def test_even_moments_are_as_far_apart_as_the_rate_says(
    rate: float, seconds: float, count: int
) -> None:
    moments = arrivals(Arrivals.EVEN, rate, seconds)
    assert len(moments) == count
    assert moments[0] == 0
    assert np.allclose(np.diff(moments), 1 / rate)
    assert moments[-1] < seconds
