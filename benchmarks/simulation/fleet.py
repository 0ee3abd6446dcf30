"""A fleet in virtual time: a load balancer, and behind it replicas that decode, queue and batch.

    arrivals → balancer → replica: decode threads → queue → Convoy's policy → engines

Each replica runs the policy that serves (`service/batching/dispatcher.py`). A replica that fails
loses the requests inside; one that is deployed finishes them first. Health checks are immediate and
the network is free.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency

Seconds = NDArray[np.float64]

# Relative deviation of a batch's time.
_NOISE = 0.03


class Hardware(NamedTuple):
    """What one replica is, by measurement."""

    seconds: tuple[float, ...]  # L(1..max_batch) of each engine
    decode_s: float = 0.0
    decoders: int = 1  # decode threads
    max_queue: int = 128  # images; requests beyond it are refused
    engines: int = 1

    @property
    def capacity(self) -> float:
        """The most requests a second: of the engines, or of the decoders if they are slower."""
        engines = self.engines * max(n / took for n, took in enumerate(self.seconds, 1))
        return min(engines, self.decoders / self.decode_s) if self.decode_s else engines


class Outage(NamedTuple):
    """Replicas that take no requests for a while."""

    begins: float
    ends: float
    replicas: range
    loses: bool  # the requests inside: True for a failure, False for a deployment


@dataclass
class Outcome:
    """What became of the requests."""

    latencies: Seconds  # of those answered, in order of arrival
    refused: int = 0
    lost: int = 0


class Balancer:
    """Chooses among the replicas that are up; `inside` counts the requests of each."""

    def __init__(self, replicas: int, seed: int) -> None:
        self.up = list(range(replicas))
        self.is_up = [True] * replicas
        self.inside = [0] * replicas
        self._draw = Random(seed).random

    def choose(self) -> int:
        """A replica that is up; `changed` must be called for it afterwards."""
        raise NotImplementedError

    def changed(self, replica: int) -> None:
        """`inside` of a replica has changed, or it is up again."""

    def switch(self, replicas: Iterable[int], *, up: bool) -> None:
        """Take replicas out, or in again; ValueError: none is left."""
        for replica in replicas:
            self.is_up[replica] = up
            self.changed(replica)
        self.up = [replica for replica, is_up in enumerate(self.is_up) if is_up]
        if not self.up:
            raise ValueError("no replica is up")


class RoundRobin(Balancer):
    """One after another."""

    _turn = -1

    def choose(self) -> int:
        """The next."""
        self._turn = (self._turn + 1) % len(self.up)
        return self.up[self._turn]


class PowerOfTwo(Balancer):
    """Of two that are drawn, the one with fewer requests (Mitzenmacher 2001)."""

    def choose(self) -> int:
        """The better of two."""
        up, draw, inside = self.up, self._draw, self.inside
        one, other = up[int(draw() * len(up))], up[int(draw() * len(up))]
        return one if inside[one] <= inside[other] else other


class LeastConnections(Balancer):
    """The one with the fewest requests, in turn among equals."""

    def __init__(self, replicas: int, seed: int) -> None:
        super().__init__(replicas, seed)
        # Replicas by `inside`. An entry that no longer holds is dropped when it is met.
        self._having = [deque(range(replicas))]
        self._fewest = 0

    def choose(self) -> int:
        """The first with the fewest."""
        while True:
            having = self._having[self._fewest]
            while having:
                replica = having.popleft()
                if self.inside[replica] == self._fewest and self.is_up[replica]:
                    return replica
            self._fewest += 1

    def changed(self, replica: int) -> None:
        """Enter it where it belongs now."""
        count = self.inside[replica]
        while count >= len(self._having):
            self._having.append(deque())
        self._having[count].append(replica)
        self._fewest = min(self._fewest, count)


BALANCERS: Mapping[str, Callable[[int, int], Balancer]] = {
    "round robin": RoundRobin,
    "power of two": PowerOfTwo,
    "least connections": LeastConnections,
}


class _Replica:
    """One replica; `run` numbers its lives, so that events of an earlier one are ignored."""

    __slots__ = ("batches", "decoders", "dispatcher", "idle", "queue", "run")

    def __init__(self, hardware: Hardware, run: int = 0) -> None:
        self.run = run
        self.queue: deque[int] = deque()  # requests, by their number
        self.batches: list[list[int]] = [[] for _ in range(hardware.engines)]
        self.idle = list(range(hardware.engines))  # the longest first
        self.decoders = [0.0] * hardware.decoders  # when each is free
        self.dispatcher = Dispatcher(*[Latency(hardware.seconds)] * hardware.engines)


_DECODED, _ENDED, _LOOK, _DOWNS, _UPS = range(5)


class _Fleet:
    def __init__(
        self, hardware: Hardware, arrivals: Seconds, balancer: Balancer, seed: int
    ) -> None:
        self._hardware = hardware
        self._arrivals = arrivals
        self._balancer = balancer
        self._replicas = [_Replica(hardware) for _ in balancer.inside]
        self._events: list[tuple[float, int, int, int, int, int]] = []
        self._number = 0
        draw = np.random.default_rng(seed)
        self._noise: list[float] = draw.lognormal(0, _NOISE, 4096).tolist()
        self._answered = np.full(len(arrivals), inf)
        self.refused = self.lost = 0

    def post(self, moment: float, kind: int, place: int, run: int = 0, about: int = 0) -> None:
        """Have an event happen."""
        self._number += 1
        heapq.heappush(self._events, (moment, self._number, kind, place, run, about))

    def run(self, outages: Sequence[Outage]) -> Outcome:
        """All requests, to their end."""
        for number, outage in enumerate(outages):
            self.post(outage.begins, _DOWNS, number)
            self.post(outage.ends, _UPS, number)
        events = self._events
        for request, arrival in enumerate([*self._arrivals.tolist(), inf]):
            while events and events[0][0] <= arrival:
                now, _, kind, place, run, about = heapq.heappop(events)
                if kind >= _DOWNS:
                    self._switch(outages[place], down=kind == _DOWNS)
                    continue
                replica = self._replicas[place]
                if run != replica.run:
                    continue
                if kind == _DECODED:
                    replica.queue.append(about)
                    replica.dispatcher.arrived(now, 1)
                elif kind == _ENDED:
                    self._answer(now, place, replica, about)
                if replica.queue and replica.idle:
                    engine = about if kind == _ENDED else replica.idle[0]
                    self._decide(now, place, replica, engine)
            if arrival < inf:
                self._arrive(arrival, request)
        latencies = self._answered - self._arrivals
        return Outcome(latencies[np.isfinite(latencies)], self.refused, self.lost)

    def _arrive(self, now: float, request: int) -> None:
        balancer, hardware = self._balancer, self._hardware
        place = balancer.choose()
        count = balancer.inside[place]
        if count >= hardware.max_queue + len(hardware.seconds):
            self.refused += 1
            balancer.changed(place)
            return
        balancer.inside[place] = count + 1
        balancer.changed(place)
        replica = self._replicas[place]
        if hardware.decode_s:
            free = max(now, replica.decoders[0]) + hardware.decode_s
            heapq.heapreplace(replica.decoders, free)
            self.post(free, _DECODED, place, replica.run, request)
            return
        replica.queue.append(request)
        replica.dispatcher.arrived(now, 1)
        if replica.idle:
            self._decide(now, place, replica, replica.idle[0])

    def _decide(self, now: float, place: int, replica: _Replica, engine: int) -> None:
        queue = replica.queue
        decision = replica.dispatcher.decide(now, len(queue), (), engine)
        items = decision.dispatch
        if items:
            replica.idle.remove(engine)
            replica.batches[engine] = [queue.popleft() for _ in range(items)]
            replica.dispatcher.dispatched(now, items, engine)
            took = self._hardware.seconds[items - 1] * self._noise[self._number % 4096]
            self.post(now + took, _ENDED, place, replica.run, engine)
            if queue and replica.idle:
                self._decide(now, place, replica, replica.idle[0])
        elif decision.look_again < inf:
            self.post(max(decision.look_again, now), _LOOK, place, replica.run)

    def _answer(self, now: float, place: int, replica: _Replica, engine: int) -> None:
        batch = replica.batches[engine]
        self._answered[batch] = now
        self._balancer.inside[place] -= len(batch)
        self._balancer.changed(place)
        replica.idle.append(engine)
        replica.dispatcher.answered(now, len(replica.queue), engine)

    def _switch(self, outage: Outage, *, down: bool) -> None:
        balancer = self._balancer
        if down and outage.loses:
            for place in outage.replicas:
                self.lost += balancer.inside[place]
                balancer.inside[place] = 0
                self._replicas[place] = _Replica(self._hardware, self._replicas[place].run + 1)
        balancer.switch(outage.replicas, up=not down)


def simulate(
    hardware: Hardware,
    replicas: int,
    arrivals: Seconds,
    balancer: str = "least connections",
    outages: Sequence[Outage] = (),
    seed: int = 0,
) -> Outcome:
    """What becomes of requests that arrive at these moments, in order, with one image each.

    ValueError: outages leave no replica up.
    """
    chosen = BALANCERS[balancer](replicas, seed)
    return _Fleet(hardware, arrivals, chosen, seed).run(outages)


def poisson(rate: float, requests: int, seed: int = 0) -> Seconds:
    """Moments of Poisson arrivals."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, requests))


def with_burst(arrivals: Seconds, factor: float, begins: float, ends: float) -> Seconds:
    """The same requests; from `begins` to `ends` they come `factor` times as fast."""
    faster = begins + (arrivals - begins) / factor
    later = arrivals - (ends - begins) * (factor - 1)
    return np.where(arrivals <= begins, arrivals, np.where(faster <= ends, faster, later))
