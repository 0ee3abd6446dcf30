"""Lists the inputs of simulations. A profile states L(n), the time of a batch of n. A workload
states when requests arrive, at a given load. A load is a fraction of the capacity, which is the
maximum of n / L(n)."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from benchmarks.simulation.server import Item, Workload

# L(1) to L(8) in seconds. "flat" is a GPU that a single image leaves mostly idle. "linear" is a CPU
# on which every image costs the same. "steps" and "pairs" are kernels whose tiles hold four images
# or two. "short" is a small network, which ends before any event loop could wait for further
# images.
PROFILES: Mapping[str, Sequence[float]] = {
    "flat": tuple(0.001 + 0.0006 * (n - 1) / 7 for n in range(1, 9)),
    "linear": tuple(0.001 + 0.007 * n for n in range(1, 9)),
    "steps": (0.004,) * 4 + (0.0072,) * 4,
    "pairs": (0.001, 0.001, 0.0012, 0.0012, 0.0019, 0.0019, 0.002, 0.002),
    "short": tuple(30e-6 + 5e-6 * (n - 1) for n in range(1, 9)),
}


def capacity(seconds: Sequence[float]) -> float:
    """Return the highest throughput in items per second: the maximum of n / L(n)."""
    return max(n / took for n, took in enumerate(seconds, 1))


def poisson(rate: float, count: int, seed: int, timeout_s: float = inf) -> Workload:
    """Return a workload with Poisson arrivals, `rate` per second on average. Answers that take
    longer than `timeout_s` do not count."""
    moments = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count)).tolist()
    return Workload([Item(moment, moment + timeout_s) for moment in moments])
