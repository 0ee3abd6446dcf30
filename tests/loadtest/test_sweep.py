"""The search for a rate, with servers that are functions."""

import asyncio
from collections.abc import Callable

import pytest

from loadtest.summary import Load, Summary
from loadtest.sweep import MAX_RATE, PRECISION, SweepResult, find_rate


def step(
    rate: float,
    p99_ms: float | None,
    *,
    errors: int = 0,
    client_cpu: float = 0.1,
    interrupted: bool = False,
) -> Summary:
    return Summary(
        load=Load(rate=rate),
        seconds=1,
        requests=100,
        answered=100 - errors,
        throughput=rate,
        latency_ms={"p99": p99_ms},
        errors={"429": errors} if errors else {},
        late=None,
        refused=0,
        phases_ms={},
        batch_sizes=None,
        send_lag_ms={"p99": 0.0},
        client_cpu=client_cpu,
        interrupted=interrupted,
    )


def search(server: Callable[[float], Summary], start: float = 10, bound: float = 50) -> SweepResult:
    async def measure(load: Load) -> Summary:
        assert load.rate is not None
        return server(load.rate)

    return asyncio.run(find_rate(measure, bound, start))


def queue(capacity: float) -> Callable[[float], Summary]:
    """Return a server whose p99 grows like a queue's: 10 ms when idle, 50 ms at 80% of its
    capacity."""

    def server(rate: float) -> Summary:
        if rate >= capacity:
            return step(rate, 9999)
        return step(rate, 10 / (1 - rate / capacity))

    return server


@pytest.mark.parametrize("capacity", [3.0, 12.5, 100.0, 777.0, 20_000.0])
@pytest.mark.parametrize("start", [1.0, 10.0, 300.0])
def test_it_finds_the_highest_rate_within_the_bound_to_5_percent(
    capacity: float, start: float
) -> None:
    found = search(queue(capacity), start)
    if start / 64 > 0.8 * capacity:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.load.rate is not None
    assert 0.8 * capacity / PRECISION <= found.best.load.rate <= 0.8 * capacity
    assert not found.limited_by_client
    assert len(found.steps) < 25


def test_a_rate_with_errors_is_too_high_however_fast_it_answers() -> None:
    found = search(lambda rate: step(rate, 1, errors=int(rate > 70)))
    assert found.best is not None
    assert found.best.load.rate == pytest.approx(70, rel=0.05)


def test_a_limit_of_the_load_generator_is_reported() -> None:
    def server(rate: float) -> Summary:
        return step(rate, 99 if rate > 500 else 9, client_cpu=0.95 if rate > 300 else 0.4)

    found = search(server)
    assert found.best is not None
    assert found.best.load.rate == pytest.approx(500, rel=0.05)
    assert found.limited_by_client


def test_the_search_stops_at_the_highest_rate() -> None:
    found = search(lambda rate: step(rate, 1))
    assert found.best is not None
    assert MAX_RATE / 2 < (found.best.load.rate or 0) <= MAX_RATE


def test_the_search_stops_at_the_lowest_rate() -> None:
    found = search(lambda rate: step(rate, 60))
    assert found.best is None
    rates = [each.load.rate for each in found.steps]
    assert rates == [10 / 2**n for n in reversed(range(7))]


def test_a_server_without_valid_answers_keeps_no_bound() -> None:
    assert search(lambda rate: step(rate, None)).best is None


def test_an_interruption_ends_the_search_with_the_best_rate_so_far() -> None:
    found = search(lambda rate: step(rate, 1, interrupted=rate > 30))
    assert found.best is not None
    assert found.best.load.rate == 20
    assert len(found.steps) == 3
