"""Simulates an honest client during floods, for CHANGELOG's promise that clients take turns.

The queue, its turns and the policy are the server's code. The engine and the clock are simulated. A
flood is a client that keeps 128 images waiting, in two requests of 64 images. During k floods, an
honest client's p50 may grow to k+1 times its value without floods. The client's share of the engine
may fall to 1/(k+1), or to the share that the client needs if this is less. If small batches waste
the engine's time, batches stay as large as the shares of other clients allow. Then the p50 is
bounded by the time of two of these batches instead, which is 2.3 times for "flat" and one flood. In
`fifo`, the queue does not distinguish clients.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import inf
from random import Random
from statistics import median
from typing import NamedTuple

from benchmarks.simulation.workloads import PROFILES
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency
from service.batching.policy import NO_HURRY, due
from service.batching.queue import Backlog, Posted
from service.fair_queue import ANYONE, Client

HONEST = "honest"
FLOODS = (1, 2, 4, 8, 16)

# The factor by which a result may exceed the bound, because of a closed loop's phase.
SLACK = 1.05

_HTTP_S = 0.0001
_BATCHES = 400  # approximate number of batches in a run


class Habit(NamedTuple):
    """Describes how a client sends requests."""

    connections: int
    images: int = 1  # per request
    think: float = 0.0  # mean, in L(1)


FLOOD = Habit(2, 64)
HABITS: Mapping[str, Habit] = {
    "thinks": Habit(1, think=5.0),
    "asks again at once": Habit(1),
    "wants the engine": Habit(16),
}


class Result(NamedTuple):
    """Holds the honest client's median latency and its share of the engine."""

    p50_s: float
    share: float  # of the batches' time; the items of a batch share its time equally


def simulate(seconds: Sequence[float], habit: Habit, floods: int, *, fair: bool = True) -> Result:
    """Return the result of an honest client during `floods` floods. If `fair` is False, the queue
    treats all clients as one client."""
    habits = {HONEST: habit, **{f"flood {number}": FLOOD for number in range(floods)}}
    draw, numbers = Random(0), count()
    waiting: Backlog[str, None] = Backlog()
    dispatcher = Dispatcher(Latency(tuple(seconds)))
    coming = [
        (draw.uniform(0, seconds[0]), next(numbers), name)
        for name, kept in habits.items()
        for _ in range(kept.connections)
    ]
    heapq.heapify(coming)
    parts: list[tuple[Posted[str, None], int, int]] = []
    undone: dict[Posted[str, None], int] = {}
    took: list[float] = []
    got = dict.fromkeys(habits, 0.0)
    began, ends, again, last = 0.0, inf, inf, _BATCHES * seconds[-1]
    while (now := min(coming[0][0] if coming else inf, ends, again)) < last:
        again = inf
        if ends <= now:
            items = sum(part[2] for part in parts)
            dispatcher.answered(now, waiting.depth)
            for request, _, size in parts:
                name = request.items[0]
                got[name] += (now - began) * size / items
                undone[request] -= size
                if not undone[request]:
                    del undone[request]
                    if name == HONEST:
                        took.append(now - request.submitted)
                    think = habits[name].think * seconds[0]
                    pause = draw.expovariate(1 / think) if think else 0.0
                    heapq.heappush(coming, (now + _HTTP_S + pause, next(numbers), name))
            parts, ends = [], inf
        while coming and coming[0][0] <= now:
            name = heapq.heappop(coming)[2]
            client, images = Client(name) if fair else ANYONE, habits[name].images
            moment = due(now)
            own = (name,) * images
            request = Posted(waiting, own, now, None, client, moment, NO_HURRY, images)
            undone[request] = images
            inside = waiting.enter(request)
            inside += sum(part[2] for part in parts if part[0].client == client)
            dispatcher.arrived(now, images, client.name, inside)
        if not parts and waiting.depth:
            decision = dispatcher.decide(now, waiting.depth)
            again = decision.look_again
            if decision.dispatch:
                batch = waiting.take(decision.dispatch, now)
                names, parts = batch.items, batch.parts
                clients = (part[0].client.name for part in parts)
                dispatcher.dispatched(now, len(names), 0, clients)
                began, ends = now, now + seconds[len(names) - 1]
    return Result(median(took) if took else inf, got[HONEST] / (sum(got.values()) or 1.0))


def bound(seconds: Sequence[float], floods: int) -> float:
    """Return the factor by which the p50 may grow during `floods` floods."""
    rates = [n / second for n, second in enumerate(seconds, 1)]
    enough = next(n for n, rate in enumerate(rates) if rate >= max(rates) / (floods + 1))
    return max(floods + 1.0, 2 * seconds[enough] / seconds[0])


class Row(NamedTuple):
    """Holds the result for one profile, habit and number of floods."""

    profile: str
    habit: str
    floods: int
    growth: float  # of p50
    most: float
    share: float
    fifo: float  # growth of p50 if clients do not take turns

    @property
    def met(self) -> bool:
        """Return whether the result keeps the promise."""
        wanted = self.habit != "wants the engine" or self.share * (self.floods + 1) >= 1 / SLACK
        return wanted and self.growth <= SLACK * self.most


def rows(floods: Sequence[int] = FLOODS) -> Iterator[Row]:
    """Yield a row for each profile, habit and number of floods. Only profiles with long batches are
    included, because short batches are not shared."""
    for profile in ("flat", "linear", "steps"):
        seconds = PROFILES[profile]
        for name, habit in HABITS.items():
            alone = simulate(seconds, habit, 0).p50_s
            for number in floods:
                p50_s, share = simulate(seconds, habit, number)
                fifo = simulate(seconds, habit, number, fair=False).p50_s
                most = bound(seconds, number)
                yield Row(profile, name, number, p50_s / alone, most, share, fifo / alone)
