"""Traffic learns which events cause arrivals, and expects no other arrivals."""

from random import Random

import pytest

from service.batching.traffic import Echo, Traffic


def taught(windows: list[list[float]], weight: int = 4) -> Echo:
    """Return an echo that has seen windows of one second. In each window, items arrived after these
    times."""
    echo = Echo()
    for number, moments in enumerate(windows):
        start = 10.0 * number
        echo.happened(start, weight, 1.0)
        for moment in moments:
            echo.arrived(start + moment, 1)
    echo.happened(10.0 * len(windows), weight, 1.0)
    return echo


def test_clients_that_come_back_are_expected_when_they_usually_do() -> None:
    echo = taught([[0.21, 0.22, 0.23, 0.24]] * 30)
    prospect = echo.prospect(300.0)
    assert prospect is not None
    assert prospect.since == 300.0
    assert prospect.more == pytest.approx(4, rel=0.05)
    soonest, items = prospect.by[0]
    assert soonest == 300.25
    assert items == pytest.approx(4, rel=0.05)


def test_who_has_come_is_expected_no_longer_and_who_is_late_still_is() -> None:
    echo = taught([[0.21, 0.22, 0.23, 0.24]] * 30)
    for moment in (300.20, 300.21, 300.22):
        echo.arrived(moment, 1)
    prospect = echo.prospect(300.22)
    assert prospect is not None
    assert prospect.more == pytest.approx(1, abs=0.1)
    echo.arrived(300.24, 1)
    assert echo.prospect(300.24) is None


def test_once_nobody_comes_any_more_nobody_is_expected() -> None:
    echo = taught([[0.21, 0.22, 0.23, 0.24]] * 30)
    assert echo.prospect(300.26) is None
    assert echo.prospect(301.0) is None


def test_one_in_a_hundred_that_takes_longer_is_not_waited_for() -> None:
    """A late arrival is one of four, and counts an eighth. With each window, its weight shrinks by
    an eighth."""
    late = [0.21, 0.22, 0.23, 0.6]
    usual = [0.21, 0.22, 0.23, 0.24]
    assert taught([usual] * 30 + [late] + [usual] * 4).prospect(350.3) is not None
    assert taught([usual] * 30 + [late] + [usual] * 9).prospect(400.3) is None


def test_a_few_windows_are_no_evidence() -> None:
    assert taught([[0.1] * 4] * 3).prospect(30.0) is None
    assert taught([]).prospect(0.0) is None


def test_who_stays_away_is_forgotten() -> None:
    echo = taught([[0.2] * 4] * 30 + [[]] * 60)
    assert echo.prospect(900.0) is None
    assert not echo.expecting


def test_of_eight_that_become_four_four_are_expected() -> None:
    echo = taught([[0.2] * 4] * 30 + [[0.2] * 2] * 60)
    prospect = echo.prospect(900.0)
    assert prospect is not None
    assert prospect.more == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("rate", [0.3, 2.0, 20.0])
def test_poisson_arrivals_of_any_rate_make_nobody_expected(rate: float) -> None:
    draw = Random(1)
    expecting = 0
    echo = Echo()
    now = 0.0
    for number in range(3000):
        echo.happened(now, 4, 1.0)
        after = draw.expovariate(rate)
        while after < 1:
            echo.arrived(now + after, 1)
            after += draw.expovariate(rate)
        expecting += echo.prospect(now) is not None and number > 20
        now += 2.0
    assert expecting < 0.03 * 3000


def test_a_window_left_unfinished_teaches_nothing() -> None:
    echo = Echo()
    for number in range(30):
        echo.happened(10.0 * number, 4, 1.0)
        for _ in range(4):
            echo.arrived(10.0 * number + 0.2, 1)
        echo.forget()
    echo.happened(300.0, 4, 1.0)
    assert echo.prospect(300.0) is None


def test_arrivals_outside_a_window_are_not_counted() -> None:
    echo = Echo()
    echo.arrived(0.5, 3)
    for number in range(30):
        echo.happened(10.0 * number, 4, 1.0)
        echo.arrived(10.0 * number + 1.0, 4)
    echo.happened(300.0, 4, 1.0)
    assert not echo.expecting


# --- traffic -------------------------------------------------------------------------------------


def test_bursts_are_learned_from_their_first_arrival() -> None:
    traffic = Traffic()
    for number in range(30):
        for after in (0.0, 0.03, 0.05, 0.08):
            traffic.arrived(10.0 * number + after, 1, 1.0)
    traffic.arrived(300.0, 1, 1.0)
    (prospect,) = traffic.prospects(300.0)
    assert prospect.since == 300.0
    assert prospect.more == pytest.approx(3, rel=0.05)


def test_a_client_that_is_answered_alone_and_comes_back_makes_nobody_expected() -> None:
    traffic = Traffic()
    for number in range(100):
        now = 1.02 * number
        traffic.arrived(now, 1, 1.0)
        assert not traffic.prospects(now)
        traffic.dispatched(now)
        traffic.answered(now + 1.0, 1, 1.0, 1.0, alone=True)
    assert not traffic.expecting()


def test_idle_time_is_an_average_over_some_two_hundred_batches() -> None:
    traffic = Traffic()
    for number in range(3000):
        now = 2.0 * number
        traffic.arrived(now, 1, 1.0)
        traffic.dispatched(now)
        traffic.answered(now + 1.0, 1, 1.0, 1.0, alone=True)
    assert traffic.idle == pytest.approx(0.5, abs=0.01)
    for number in range(200):
        now = 6000.0 + number
        traffic.arrived(now - 0.5, 1, 1.0)
        traffic.dispatched(now)
        traffic.answered(now + 1.0, 1, 1.0, 1.0, alone=False)
    assert 0.2 < traffic.idle < 0.35, "by a factor of e less, beside as much busy time"


def test_two_clients_that_miss_each_other_are_found_out() -> None:
    """One client's request runs while the other's waits. Each client sends again 0.05 after its
    answer."""
    traffic = Traffic()
    for number in range(40):
        now = 1.0 * number
        traffic.answered(now, 1, 1.0, 1.0, alone=False)
        traffic.dispatched(now)
        traffic.arrived(now + 0.05, 1, 1.0)
    traffic.answered(40.0, 1, 1.0, 1.0, alone=False)
    (prospect, *_) = traffic.prospects(40.0)
    assert prospect.since == 40.0
    assert prospect.more == pytest.approx(1, rel=0.1)


def test_who_tries_again_after_a_failure_is_no_burst() -> None:
    traffic = Traffic()
    for number in range(100):
        traffic.arrived(0.01 * number, 1, 1.0)
        traffic.dispatched(0.01 * number)
        traffic.failed(0.01 * number)
    assert not traffic.expecting()


def test_after_a_failure_nothing_counts_to_the_burst_before_it() -> None:
    traffic = Traffic()
    for number in range(40):  # bursts of four
        for part in range(4):
            traffic.arrived(10.0 * number + 0.01 * part, 1, 0.1)
    assert traffic.prospects(390.04) or traffic._bursts.is_open(390.04)
    traffic.arrived(400.0, 1, 0.1)
    assert traffic.prospects(400.0)
    traffic.failed(400.0)
    traffic.arrived(400.0, 3, 0.1)  # retries
    assert not [one for one in traffic.prospects(400.0) if one.since < 400.0]
    assert traffic._bursts._opened == 400.0
    assert traffic._bursts._total == 0


def test_idle_is_the_share_of_the_time_with_nothing_to_do() -> None:
    traffic = Traffic()
    assert traffic.idle == 0
    now = 0.0
    for _ in range(200):
        traffic.arrived(now + 1.0, 1, 1.0)  # after a second of nothing
        traffic.dispatched(now + 1.5)  # half a second of waiting for company is not idle
        traffic.answered(now + 4.0, 1, 2.5, 1.0, alone=True)
        now += 4.0
    assert traffic.idle == pytest.approx(1 / 3.5, rel=0.01)


def test_the_rate_counts_all_that_come_on_all_engines() -> None:
    traffic = Traffic(2)
    for second in range(1000):  # three items a second, in batches of half a second on each engine
        for engine, items in ((0, 2), (1, 1)):
            traffic.arrived(second + 0.5 * engine, items, 0.5)
            traffic.dispatched(second + 0.5 * engine, engine)
            traffic.answered(
                second + 0.5 * engine + 0.5, items, 0.5, 0.5, alone=False, engine=engine
            )
    assert traffic.rate == pytest.approx(3.0, rel=0.05)
