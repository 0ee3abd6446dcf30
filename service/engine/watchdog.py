"""Computes the time after which an engine counts as hung, and decides whether to restart it again.
This module starts no threads and reads no clock."""

from collections import deque
from dataclasses import dataclass
from math import inf

from service.batching.latency import Latency

# The time limit of a batch as a multiple of its expected time, and the least limit: a busy machine
# may delay anything for a while.
_TIMES = 50.0
_LEAST_S = 10.0

# The time limit of a restart as a multiple of the first warm-up's time, and the least limit.
_RESTART_TIMES = 10.0
_RESTART_LEAST_S = 120.0

# This many restarts within this many seconds are too many.
_TOO_MANY = 3
WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits how long an engine's calls may take, in seconds. 0 means no limit."""

    batch_s: float | None = None  # None: derived from the expected time of a batch
    warm_up_s: float = 0.0

    def batch(self, latency: Latency, size: int) -> float:
        """Return the time limit for a batch of `size` images, or inf if there is none."""
        if self.batch_s is not None:
            return self.batch_s or inf
        return max(_LEAST_S, _TIMES * latency.of(size)) if latency.known else inf

    def restart(self, first_s: float) -> float:
        """Return the time limit for a restart, given that the first warm-up took `first_s`."""
        return max(_RESTART_LEAST_S, _RESTART_TIMES * first_s)


class Restarts:
    """Counts the recent restarts of an engine. Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_TOO_MANY - 1)

    def another(self, now: float) -> bool:
        """Return whether to restart again at the time `now`. If so, count the restart."""
        times = self._times
        if len(times) == times.maxlen and now - times[0] <= WITHIN_S:
            return False
        times.append(now)
        return True
