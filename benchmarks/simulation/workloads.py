"""Lists what to simulate: the times of batches, arrivals, and the load.

A load is a share of the capacity, max n / L(n); of a closed loop it is the number of clients.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

import numpy as np

from benchmarks.simulation.server import Item, Workload

# L(1..8) in seconds. A GPU that a single image leaves mostly idle; a CPU on which every image
# costs the same; kernels whose tiles hold four images, or two; a small network, done sooner than
# any event loop could have waited for company.
PROFILES: Mapping[str, Sequence[float]] = {
    "flat": tuple(0.001 + 0.0006 * (n - 1) / 7 for n in range(1, 9)),
    "linear": tuple(0.001 + 0.007 * n for n in range(1, 9)),
    "steps": (0.004,) * 4 + (0.0072,) * 4,
    "pairs": (0.001, 0.001, 0.0012, 0.0012, 0.0019, 0.0019, 0.002, 0.002),
    "short": tuple(30e-6 + 5e-6 * (n - 1) for n in range(1, 9)),
}


@dataclass(frozen=True)
class Point:
    """Names one point of the sweep."""

    profile: str
    workload: str
    load: float  # of capacity, or clients an engine
    timeout: float = inf  # in L(max_batch)
    engines: int = 1

    @property
    def seconds(self) -> Sequence[float]:
        """Return L(1..max_batch) in seconds."""
        return PROFILES[self.profile]

    @property
    def timeout_s(self) -> float:
        """Return the seconds after which an answer is worth nothing."""
        return self.timeout * self.seconds[-1]

    @property
    def closed(self) -> bool:
        """Return whether `load` counts clients."""
        return self.workload in _THINKING

    def requests(self, count: int, seed: int) -> Workload:
        """Return a workload of about `count` requests."""
        if self.closed:
            mean, think = _THINKING[self.workload]
            mean_s = max(mean * self.seconds[0], _HTTP_S)
            return Workload(
                clients=int(self.load) * self.engines,
                think=lambda draw: mean_s * think(draw),
                requests=count,
                timeout_s=self.timeout_s,
            )
        rate = self.load * capacity(self.seconds) * self.engines
        moments = _ARRIVING[self.workload](np.random.default_rng(seed), rate, count, self.seconds)
        return Workload([Item(t, t + self.timeout_s) for t in moments])


def capacity(seconds: Sequence[float]) -> float:
    """Return the most items a second that batches can carry."""
    return max(n / took for n, took in enumerate(seconds, 1))


def _poisson(
    draw: np.random.Generator, rate: float, count: int, _: Sequence[float]
) -> Sequence[float]:
    return list(np.cumsum(draw.exponential(1 / rate, count)))


def _waves(
    draw: np.random.Generator, rate: float, count: int, seconds: Sequence[float]
) -> Sequence[float]:
    """Return Poisson arrivals in waves of 20 L(8), a quarter of the time at 1.8 times the mean
    rate."""
    high, share, wave_s = 1.8, 0.25, 20 * seconds[-1]
    moments: list[float] = []
    now, up = 0.0, False
    while len(moments) < count:
        lasts = draw.exponential(wave_s if up else wave_s * (1 - share) / share)
        factor = high if up else (1 - high * share) / (1 - share)
        came = draw.poisson(rate * factor * lasts)
        moments += sorted(now + draw.uniform(0, lasts, came))
        now, up = now + lasts, not up
    return moments[:count]


def _bursts(
    draw: np.random.Generator, rate: float, count: int, seconds: Sequence[float]
) -> Sequence[float]:
    """Return bursts of about 8 arrivals within a fifth of L(1), which begin at Poisson times."""
    moments: list[float] = []
    now = 0.0
    while len(moments) < count:
        now += draw.exponential(8 / rate)
        moments += list(now + draw.uniform(0, 0.2 * seconds[0], draw.poisson(7) + 1))
    return sorted(moments)[:count]


_ARRIVING: Mapping[
    str, Callable[[np.random.Generator, float, int, Sequence[float]], Sequence[float]]
] = {"Poisson": _poisson, "waves": _waves, "bursts": _bursts}

# Clients think for so many L(1), drawn around 1, and no less than it takes to answer and ask.
_HTTP_S = 0.0001
_THINKING: Mapping[str, tuple[float, Callable[[Random], float]]] = {
    "closed, quick": (0.1, lambda draw: draw.uniform(0.8, 1.2)),
    "closed, slow": (0.4, lambda draw: draw.uniform(0.8, 1.2)),
    "closed, random": (0.3, lambda draw: draw.expovariate(1)),
    "closed, idle": (5.0, lambda draw: draw.expovariate(1)),
}

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
CLIENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
OVERLOADS = (0.5, 0.8, 1.0, 1.2, 1.5)
TIMEOUTS = (1.5, 3.0, 10.0)


def sweep(engines: int = 1) -> Iterator[Point]:
    """Return every point of the sweep."""
    for profile in PROFILES:
        for workload in _ARRIVING:
            for load in LOADS:
                yield Point(profile, workload, load, engines=engines)
        for workload in _THINKING:
            for clients in CLIENTS:
                yield Point(profile, workload, clients, engines=engines)
        for workload in ("Poisson", "bursts"):
            for timeout in TIMEOUTS:
                for load in OVERLOADS:
                    yield Point(profile, workload, load, timeout, engines)
