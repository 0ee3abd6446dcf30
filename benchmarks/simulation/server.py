"""Simulates the engines of a server and their common queue. The events are arrivals, ends of
batches, and timers. Times are in seconds. A batch of n items takes L(n), multiplied by random
noise. After each event, the scheduler decides about one engine. After the end of a batch, this is
the engine that ran it; after other events, it is the engine that has been idle longest. The
server's batcher does the same."""

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import NamedTuple, Protocol

from service.batching.policy import Urgency


@dataclass(slots=True)
class Item:
    """A request with one image."""

    arrived: float
    deadline: float = inf
    client: int | None = None  # in a closed loop; it sends its next request after this answer
    priority: int = 0

    @property
    def urgency(self) -> Urgency:
        """Return the item's deadline and priority in the type that the policy expects."""
        return Urgency(self.deadline, self.priority)


class Choice(NamedTuple):
    """Holds a scheduler's decision: the items to refuse, how many of the other items to dispatch
    from the front of the queue, and the time of the next decision."""

    dispatch: int = 0
    look_again: float = inf
    refused: Sequence[int] = ()  # indices in the queue


class Scheduler(Protocol):
    """Decides which batches the engines run, and at which position an arrival joins `queue`. Only
    the server changes the queue."""

    def position(self, now: float, item: Item, queue: Sequence[Item], /) -> int | None:
        """Return the index at which an arrival joins the queue, or None to refuse it."""

    def decide(self, now: float, queue: Sequence[Item], engine: int | None, /) -> Choice:
        """Decide what the idle engine `engine` does now. If all engines are busy, `engine` is None,
        and nothing can be dispatched."""

    def dispatched(self, now: float, items: int, engine: int, /) -> None:
        """Called when an engine has begun a batch."""

    def answered(self, now: float, waiting: int, engine: int, /) -> None:
        """Called when an engine's batch has ended and `waiting` items wait."""


@dataclass(frozen=True)
class Workload:
    """Describes when requests arrive: either at listed times, or from clients that send the next
    request some time after each answer."""

    arrivals: Sequence[Item] = ()
    clients: int = 0
    think: Callable[[random.Random], float] = lambda _: 0.0  # seconds
    requests: int = 0  # the total that clients send


@dataclass
class Outcome:
    """Holds the results of a simulation."""

    offered: int = 0
    refused: int = 0
    late: int = 0  # answered after the deadline
    latencies: list[float] = field(default_factory=list)  # s, of requests answered in time
    sizes: list[int] = field(default_factory=list)  # of the batches
    ended: float = 0.0


def simulate(
    scheduler: Scheduler,
    seconds: Sequence[float],
    workload: Workload,
    *,
    seed: int = 0,
    noise: float = 0.03,
    engines: int = 1,
) -> Outcome:
    """Simulate `workload` to its end. `seconds` has the mean times of batches of 1, 2, … items. The
    time of a single batch deviates from its mean at random; `noise` is the relative standard
    deviation."""
    return _Server(scheduler, seconds, workload, seed, noise, engines).run()


class _Server:
    def __init__(
        self,
        scheduler: Scheduler,
        seconds: Sequence[float],
        workload: Workload,
        seed: int,
        noise: float,
        engines: int,
    ) -> None:
        self._scheduler = scheduler
        self._seconds = seconds
        self._workload = workload
        # Two generators, so that batch times do not change the arrivals.
        self._thinking, self._noise = random.Random(seed), random.Random(seed + 1)
        self._deviation = noise
        self._coming: list[tuple[float, int, Item]] = []
        self._numbers = 0
        self._queue: list[Item] = []
        self._running: list[tuple[float, int, list[Item]]] = []  # a heap of end, engine and batch
        self._idle = list(range(engines))  # idle longest first
        self._look_again = inf
        self._outcome = Outcome()
        for item in workload.arrivals:
            self._come(item)
        for client in range(workload.clients):
            self._think(0.0, client)

    def run(self) -> Outcome:
        """Process events until all requests have arrived and been answered."""
        outcome = self._outcome
        while True:
            arrival = self._coming[0][0] if self._coming else inf
            ends = self._running[0][0] if self._running else inf
            now = min(arrival, ends, self._look_again)
            if now == inf:
                assert not self._queue, "items wait, and no event is left"
                return outcome
            outcome.ended = now
            ended = []
            while self._running and self._running[0][0] <= now:
                ended.append(self._answer(now))
            # The scheduler sees requests that arrive at the same time together, like in an event
            # loop.
            while self._coming and self._coming[0][0] <= now:
                self._arrive(now, heapq.heappop(self._coming)[2])
            self._look_again = inf
            for engine in ended or self._idle[:1]:
                self._decide(now, engine)
            if not self._idle:
                self._decide(now, None)

    def _decide(self, now: float, engine: int | None) -> None:
        if not self._queue:
            return
        choice = self._scheduler.decide(now, self._queue, engine)
        for position in sorted(choice.refused, reverse=True):
            self._refuse(now, self._queue.pop(position))
        if choice.dispatch and engine is not None:
            batch = self._queue[: choice.dispatch]
            del self._queue[: choice.dispatch]
            items = len(batch)
            took = self._seconds[items - 1] * exp(self._noise.gauss(0, self._deviation))
            heapq.heappush(self._running, (now + took, engine, batch))
            self._idle.remove(engine)
            self._outcome.sizes.append(items)
            self._scheduler.dispatched(now, items, engine)
            if self._idle:
                self._decide(now, self._idle[0])
        else:
            self._look_again = max(choice.look_again, now)

    def _answer(self, now: float) -> int:
        _, engine, batch = heapq.heappop(self._running)
        self._idle.append(engine)
        self._scheduler.answered(now, len(self._queue), engine)
        for item in batch:
            if now <= item.deadline:
                self._outcome.latencies.append(now - item.arrived)
            else:
                self._outcome.late += 1
            self._think(now, item.client)
        return engine

    def _refuse(self, now: float, item: Item) -> None:
        self._outcome.refused += 1
        self._think(now, item.client)

    def _arrive(self, now: float, item: Item) -> None:
        self._outcome.offered += 1
        position = self._scheduler.position(now, item, self._queue)
        if position is None:
            self._refuse(now, item)
        else:
            self._queue.insert(position, item)

    def _think(self, now: float, client: int | None) -> None:
        if client is not None and self._numbers < self._workload.requests:
            arrival = now + self._workload.think(self._thinking)
            self._come(Item(arrival, client=client))

    def _come(self, item: Item) -> None:
        self._numbers += 1
        heapq.heappush(self._coming, (item.arrived, self._numbers, item))
