"""The limit on the images that a client may send per second."""

from collections import OrderedDict
from typing import Any

import pytest

from service.edge import rate_limit
from service.edge.rate_limit import RateLimit


class Counted(OrderedDict[object, Any]):
    """Counts the buckets that are looked at."""

    pops = 0

    def popitem(self, last: bool = True) -> tuple[object, Any]:
        self.pops += 1
        return super().popitem(last)


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


def test_a_client_that_waits_as_long_as_it_was_told_is_let_in() -> None:
    """A request takes a token when it begins, and the others when its images are counted."""
    limit = RateLimit(1.5)
    assert limit.take("a", 0.0) == 0.0
    assert limit.take("a", 0.0, 9, taken=1) == 0.0
    assert limit.take("b", 0.0) == 0.0
    now = 0.0
    for images in (1, 5, 9):
        wait_s = limit.take("a", now, images, taken=1)
        now += wait_s + 1e-6  # which no client can avoid
        assert wait_s > 0
        assert limit.take("a", now) == 0.0
        assert limit.take("a", now, images, taken=1) == 0.0


def test_full_buckets_are_forgotten_whether_or_not_anybody_looks() -> None:
    """On a server of gRPC alone there are no sweeps."""
    limit = RateLimit(2)
    for number in range(20_000):
        limit.take(number, number / 1000)  # a bucket is full after half a second
    assert len(limit._buckets) <= 1001
    for number in range(10_000):
        limit.take(number, 100.0)
    limit._buckets = looked_at = Counted(limit._buckets)
    limit.forget(100.0)
    assert looked_at.pops == rate_limit._LOOK
    assert len(limit._buckets) == 10_000
    for _ in range(5):
        limit.forget(101.0)
    assert not limit._buckets
