"""When requests are to be sent, decided before the first one is: open-loop arrivals."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Moments = NDArray[np.float64]


class Arrivals(StrEnum):
    """How requests that know nothing of each other are spread over time."""

    POISSON = "poisson"  # as from very many clients: independent of each other
    EVEN = "even"  # like a clock


def arrivals(kind: Arrivals, rate: float, seconds: float, seed: int = 0) -> Moments:
    """Ascending moments in [0, `seconds`), `rate` a second of them; the same for the same seed.

    A Poisson process given its count is that many independent uniform moments, in order.
    """
    if kind is Arrivals.EVEN:
        return np.arange(np.ceil(rate * seconds)) / rate
    random = np.random.default_rng(seed)
    return np.sort(random.uniform(0, seconds, random.poisson(rate * seconds)))
