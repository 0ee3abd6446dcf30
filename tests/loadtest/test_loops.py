"""Open and closed loops in virtual time: their send times and their records."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import numpy as np
import pytest

from loadtest.clock import Clock
from loadtest.journal import INTERRUPTED, NOT_SENT, OK, TOO_LATE, Columns, Journal, Outcome
from loadtest.loops import Arrivals, Send, arrivals, closed_loop, open_loop
from loadtest.summary import Load, summarise
from tests.support.service.virtual_time import now, run


class VirtualClock(Clock):
    """The clock of the running event loop."""

    def now(self) -> float:
        return now()

    async def until(self, moment: float) -> None:
        await asyncio.sleep(max(0.0, moment - now()))


class OneAtATime:
    """A server that takes 1 ms per request, in order, and stops for a second at 5 s."""

    def __init__(self) -> None:
        self._free = 0.0

    async def send(self, _: int) -> Outcome:
        begin = max(now(), self._free)
        if 5 <= begin < 6:
            begin = 6.0
        self._free = begin + 0.001
        await asyncio.sleep(self._free - now())
        return Outcome(OK)


def even(rate: float, seconds: float, send: Send, max_outstanding: int = 1000) -> Columns:
    journal = Journal()
    moments = arrivals(Arrivals.EVEN, rate, seconds)
    run(open_loop(moments, send, journal, VirtualClock(), max_outstanding))
    return journal.columns()


def closed(clients: int, seconds: float, send: Send) -> Columns:
    journal = Journal()
    run(closed_loop(clients, seconds, send, journal, VirtualClock()))
    return journal.columns()


def latencies_ms(columns: Columns, seconds: float = 10) -> Mapping[str, float | None]:
    return summarise(Load(rate=1), columns, (0, seconds), client_cpu=0).latency_ms


def takes(seconds: float, kind: str = OK) -> Send:
    async def send(_: int) -> Outcome:
        await asyncio.sleep(seconds)
        return Outcome(kind)

    return send


def test_an_open_loop_shows_a_stall_in_every_request_due_and_a_closed_one_hides_it() -> None:
    open_ms = latencies_ms(even(100, 10, OneAtATime().send))
    # 100 of 1000 requests came in the second that the server stood still, evenly: a tenth of all
    # waited, half of those for more than 0.5 s.
    assert open_ms["p50"] == pytest.approx(1)
    assert open_ms["p99"] == pytest.approx(900, abs=20)
    assert open_ms["max"] == pytest.approx(1001, abs=1)
    closed_ms = latencies_ms(closed(1, 10, OneAtATime().send))
    assert closed_ms["p99"] == pytest.approx(1)
    assert closed_ms["p99.9"] == pytest.approx(1)
    assert closed_ms["max"] == pytest.approx(1001, abs=1)


def test_requests_are_sent_on_time_while_earlier_ones_wait() -> None:
    columns = even(10, 1, takes(3))
    assert np.allclose(np.sort(columns.sent), np.arange(10) / 10)
    assert np.allclose(columns.done - columns.intended, 3)


def test_latency_counts_from_the_intended_time() -> None:
    class LateClock(VirtualClock):
        async def until(self, moment: float) -> None:
            await asyncio.sleep(max(0.0, moment + 0.25 - now()))

    journal = Journal()
    moments = arrivals(Arrivals.EVEN, 1, 3)
    run(open_loop(moments, takes(0.5), journal, LateClock(), 10))
    summary = summarise(Load(rate=1), journal.columns(), (0, 3), client_cpu=0)
    assert summary.latency_ms["p50"] == pytest.approx(750)
    assert summary.send_lag_ms["p50"] == pytest.approx(250)
    assert summary.sent_late


def test_a_request_that_is_a_second_late_is_not_sent() -> None:

    class AsleepAtFirst(VirtualClock):
        async def until(self, moment: float) -> None:
            await asyncio.sleep(max(1.25, moment) - now())

    journal = Journal()
    run(open_loop(arrivals(Arrivals.EVEN, 10, 2), takes(0.1), journal, AsleepAtFirst(), 100))
    summary = summarise(Load(rate=10), journal.columns(), (0, 2), client_cpu=0)
    # Those of 0, 0.1 and 0.2 s.
    assert summary.errors == {TOO_LATE: 3}
    assert summary.answered == 17
    assert summary.latency_ms["max"] == pytest.approx(1050)
    assert summary.sent_late


def test_a_loop_that_lags_sends_every_request() -> None:
    sent = []

    async def send(number: int) -> Outcome:
        sent.append(number)
        return Outcome(OK)

    journal = Journal()
    run(open_loop(np.full(50, -0.5), send, journal, VirtualClock(), 20))
    assert sent == list(range(50))
    assert journal.good == 50


def test_a_request_beyond_the_limit_is_an_error_and_not_a_delay() -> None:
    columns = even(10, 2, takes(1.05), max_outstanding=5)
    unsent = columns.kind == columns.kinds.index(NOT_SENT)
    # Five go out, the next six find them still under way: 1.05 s at 10 a second.
    assert unsent.sum() == 10
    assert np.isnan(columns.sent[unsent]).all()
    assert (columns.sent[~unsent] == columns.intended[~unsent]).all()
    summary = summarise(Load(rate=10), columns, (0, 2), client_cpu=0)
    assert summary.errors == {NOT_SENT: 10}
    assert summary.answered == 10


def test_closed_loop_clients_send_again_after_each_answer() -> None:
    columns = closed(3, 1.95, takes(0.5))
    assert len(columns.kind) == 12
    assert np.allclose(sorted(set(columns.sent.round(9))), [0, 0.5, 1, 1.5])
    assert (columns.sent == columns.intended).all()


def test_every_request_of_a_closed_loop_has_a_number_of_its_own() -> None:
    numbers = []

    async def send(number: int) -> Outcome:
        numbers.append(number)
        await asyncio.sleep(0.1)
        return Outcome(OK)

    closed(4, 1, send)
    assert sorted(numbers) == list(range(len(numbers)))


def test_a_refused_client_pauses() -> None:
    assert len(closed(1, 1, takes(0, "429")).kind) == pytest.approx(100, abs=2)


@pytest.mark.parametrize("loop", ["open", "closed"])
def test_cancelling_records_outstanding_requests_as_interrupted(loop: str) -> None:
    journal = Journal()

    async def main() -> None:
        clock = VirtualClock()
        moments = arrivals(Arrivals.EVEN, 5, 2)
        driving: dict[str, Callable[[], Awaitable[None]]] = {
            "open": lambda: open_loop(moments, takes(0.5), journal, clock, 10),
            "closed": lambda: closed_loop(3, 10, takes(0.5), journal, clock),
        }
        task = asyncio.ensure_future(driving[loop]())
        await asyncio.sleep(0.7)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    columns = journal.columns()
    assert columns.kinds == (OK, INTERRUPTED)
    # Sent at 0, 0.2, 0.4, 0.6, or three at 0 and at 0.5.
    assert (columns.kind == 0).sum() == (2 if loop == "open" else 3)
    assert (columns.kind == 1).sum() == (2 if loop == "open" else 3)


def test_an_exception_from_send_is_raised() -> None:
    async def broken(_: int) -> Outcome:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        even(10, 1, broken)


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


def test_poisson_gaps_are_exponential_and_independent() -> None:
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
def test_even_arrivals_are_one_period_apart(rate: float, seconds: float, count: int) -> None:
    moments = arrivals(Arrivals.EVEN, rate, seconds)
    assert len(moments) == count
    assert moments[0] == 0
    assert np.allclose(np.diff(moments), 1 / rate)
    assert moments[-1] < seconds
