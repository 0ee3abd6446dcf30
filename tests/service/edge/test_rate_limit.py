"""The limit on the images that a client may send per second."""

import pytest

from service.edge.rate_limit import RateLimit


def test_a_client_has_a_seconds_worth_of_requests_at_once_and_then_its_rate() -> None:
    limit = RateLimit(10)
    assert [limit.take("a", 0.0) for _ in range(10)] == [0.0] * 10
    assert limit.take("a", 0.0) == pytest.approx(0.1)
    assert limit.take("b", 0.0) == 0.0
    assert limit.take("a", 0.05) == pytest.approx(0.05)  # what is refused takes nothing
    assert limit.take("a", 0.1) == 0.0
    assert limit.take("a", 0.1) == pytest.approx(0.1)
    assert 99 <= sum(limit.take("a", now / 100) == 0.0 for now in range(11, 1011)) <= 100


def test_a_rate_below_one_lets_one_request_in_and_says_how_long_the_next_waits() -> None:
    limit = RateLimit(0.25)
    assert limit.take("a", 7.0) == 0.0
    assert limit.take("a", 8.0) == pytest.approx(3.0)
    assert limit.take("a", 11.0) == 0.0


def test_clients_that_do_nothing_are_forgotten() -> None:
    limit = RateLimit(2)
    for number in range(1000):
        limit.take(number, 0.0)
    limit.take("busy", 0.4)
    limit.forget(0.6)
    assert list(limit._buckets) == ["busy"]
    assert limit.take("busy", 0.6) == 0.0
    assert limit.take("busy", 0.6) > 0
