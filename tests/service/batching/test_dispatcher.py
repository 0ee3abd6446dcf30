"""The data that the policy keeps between decisions, and its computing time."""

import time
from collections.abc import Callable
from random import Random

import pytest

from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency
from service.batching.policy import SHORT_S
from tests.support.models.slowness import slowness

FLAT = tuple(1 + 0.6 * (n - 1) / 7 for n in range(1, 9))


class Clients:
    """Eight clients, each of which sends again some time after its answer, and their outcomes."""

    def __init__(self, l1: float, think: Callable[[Random], float]) -> None:
        self.dispatcher = Dispatcher(Latency(tuple(l1 * each for each in FLAT)))
        self.seconds = tuple(l1 * each for each in FLAT)  # what batches really take
        self.think = think
        self.now = 0.0
        self.waits = 0
        self.sizes: list[int] = []
        self._draw = Random(1)
        self._coming = sorted(think(self._draw) for _ in range(8))
        self._depth = 0

    def play(self, batches: int, added: Callable[[Random], float] = lambda _: 0.0) -> None:
        """Run this many batches. Each batch seems to take `added` seconds longer than it does."""
        for _ in range(batches):
            while not (size := self._decide()):
                pass
            self.dispatcher.dispatched(self.now, size)
            self.sizes.append(size)
            self._depth -= size
            ends = self.now + self.seconds[size - 1] + added(self._draw)
            while self._coming and self._coming[0] < ends:
                self._arrive()
            self.now = ends
            self.dispatcher.answered(ends, self._depth)
            self._coming += [ends + self.think(self._draw) for _ in range(size)]
            self._coming.sort()

    def _decide(self) -> int:
        if not self._depth:
            self._arrive()
        decision = self.dispatcher.decide(self.now, self._depth)
        if decision.dispatch:
            return decision.dispatch
        self.waits += 1
        if self._coming and self._coming[0] < decision.look_again:
            self._arrive()
        else:
            self.now = decision.look_again
        return 0

    def _arrive(self) -> None:
        self.now = self._coming.pop(0)
        self._depth += 1
        self.dispatcher.arrived(self.now, 1)


def steady(l1: float) -> Callable[[Random], float]:
    return lambda draw: 0.1 * l1 * draw.uniform(0.8, 1.2)


def test_eight_steady_clients_are_waited_for_where_batches_take_a_millisecond() -> None:
    clients = Clients(0.001, steady(0.001))
    clients.play(300)
    assert clients.waits > 100
    assert sum(clients.sizes[-50:]) > 7.5 * 50


@pytest.mark.parametrize("l1", [30e-6, 0.9 * SHORT_S])
def test_the_same_clients_are_not_waited_for_where_batches_are_short(l1: float) -> None:
    clients = Clients(l1, steady(l1))
    clients.play(1000)
    assert clients.waits == 0


def test_a_busy_event_loop_does_not_make_short_batches_long() -> None:
    """Most batches seem to take milliseconds, because the event loop does other work before it
    notices their end."""
    clients = Clients(30e-6, steady(0.001))
    clients.play(2000, lambda draw: 0.0 if draw.random() < 0.1 else 0.002 * draw.random())
    assert clients.dispatcher.latency().of(1) > SHORT_S
    assert clients.waits == 0


def test_an_engine_that_has_become_slow_is_waited_for_again() -> None:
    clients = Clients(0.9 * SHORT_S, steady(0.002))
    clients.play(100)
    assert clients.waits == 0
    clients.seconds = tuple(0.002 * each for each in FLAT)
    clients.play(1000)
    assert clients.waits > 100
    assert sum(clients.sizes[-50:]) > 7.5 * 50


def test_whoever_comes_while_a_batch_is_waited_for_changes_nothing_until_it_is_enough() -> None:
    clients = Clients(0.001, steady(0.001))
    clients.play(200)
    clients.play(1)
    dispatcher, now = clients.dispatcher, clients.now
    dispatcher.arrived(now, 1)
    first = dispatcher.decide(now, 1)
    assert (first.dispatch, first.enough) == (0, 8)
    for depth in range(2, 8):
        dispatcher.arrived(now, 1)
        assert dispatcher.decide(now, depth) is first
    dispatcher.arrived(now, 1)
    assert dispatcher.decide(now, 8).dispatch == 8
    dispatcher.dispatched(now, 8)
    assert dispatcher.decide(now, 1).dispatch == 0, "a batch runs"
    early = now + 1e-5
    dispatcher.answered(early, 1)
    assert early < first.look_again
    assert dispatcher.decide(early, 1) is not first


def test_a_short_batch_costs_the_policy_microseconds() -> None:
    """The fastest of many measurements takes about 2 µs of CPU time. It once took 17 µs."""
    dispatcher = Dispatcher(Latency(tuple(30e-6 * each for each in FLAT)))

    def batch(now: float) -> None:
        for _ in range(8):
            dispatcher.arrived(now, 1)
        dispatcher.dispatched(now, dispatcher.decide(now, 8).dispatch)
        dispatcher.answered(now + 50e-6, 0)

    costs = []
    for turn in range(40):
        began = time.thread_time()
        for number in range(50):
            batch((50 * turn + number) * 100e-6)
        costs.append((time.thread_time() - began) / 50 / slowness())
    assert min(costs) < 12e-6


# --- several engines -----------------------------------------------------------------------------


def test_each_engine_learns_its_own_latency() -> None:
    dispatcher = Dispatcher(Latency(FLAT), Latency(FLAT))
    for number in range(100):
        for engine, took in ((0, 1.0), (1, 3.0)):
            dispatcher.dispatched(10.0 * number, 1, engine)
            dispatcher.answered(10.0 * number + took, 0, engine)
    assert dispatcher.latency(0).of(1) == pytest.approx(1.0, rel=0.01)
    assert dispatcher.latency(1).of(1) == pytest.approx(3.0, rel=0.05)


def test_the_engine_that_is_free_first_is_counted_on_and_one_that_restarts_is_not() -> None:
    dispatcher = Dispatcher(Latency((1.0,)), Latency((1.0,)))
    dispatcher.dispatched(0.0, 1, 0)
    dispatcher.dispatched(0.5, 1, 1)
    assert dispatcher.first_free(0.6) == 0
    assert dispatcher.completion(0.6, 0, 1) == 2.0
    assert dispatcher.completion(0.6, 1, 1) == 2.5
    assert dispatcher.wait_s(0.6, 0) == pytest.approx(0.9)
    dispatcher.serve(0, serves=False)
    assert dispatcher.first_free(0.6) == 1
    assert dispatcher.completion(0.6, 0, 1) == 2.5
    dispatcher.serve(1, serves=False)
    assert dispatcher.first_free(0.6) == 0, "all are, where none serves"


def test_an_engine_that_hangs_is_expected_later_and_later() -> None:
    dispatcher = Dispatcher(Latency((1.0,)), Latency((1.0,)))
    dispatcher.dispatched(0.0, 1, 0)
    for now in (10.0, 20.0):
        dispatcher.dispatched(now, 1, 1)
        assert dispatcher.first_free(now) == 1
        assert dispatcher.completion(now, 0, 1) == now + 2
        dispatcher.answered(now + 1, 0, 1)
