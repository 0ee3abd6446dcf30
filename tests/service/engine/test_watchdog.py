"""The time limit of an engine, and the number of its restarts."""

from math import inf

import pytest

from service.batching.latency import Latency
from service.engine.watchdog import Bounds, Restarts


def test_a_batch_may_take_what_is_set_or_many_times_what_it_should() -> None:
    latency = Latency.measured({1: 0.1, 8: 0.8}, 8)
    assert Bounds().batch(latency, 8) == pytest.approx(40)
    assert Bounds().batch(latency, 1) == 10, "never little"
    assert Bounds(3).batch(latency, 8) == 3
    assert Bounds(0).batch(latency, 8) == inf
    assert Bounds(3).batch(Latency.unknown(8), 1) == 3
    assert Bounds().batch(Latency.unknown(8), 1) == inf, "unknown L(n) has no bound"
    assert Bounds().restart(first_s=1.0) == 120
    assert Bounds().restart(first_s=60.0) == 600


@pytest.mark.parametrize(
    ("moments", "allowed"),
    [
        ([0, 1, 2], [True, True, False]),
        ([0, 200, 300], [True, True, False]),
        ([0, 200, 301, 302], [True, True, True, False]),
        ([0, 400, 800, 1200], [True] * 4),
    ],
)
def test_the_third_restart_within_five_minutes_is_not_tried(
    moments: list[float], allowed: list[bool]
) -> None:
    restarts = Restarts()
    assert [restarts.another(moment) for moment in moments] == allowed
