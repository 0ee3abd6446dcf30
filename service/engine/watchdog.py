"""When an engine counts as hung, and when another restart is no use. No threads, no clock."""

from collections import deque
from dataclasses import dataclass
from math import inf

from service.batching.latency import Latency

# A batch is given so many times what one of its size takes, and no less than so many seconds:
# a busy machine may hold anything up for a while.
_TIMES = 50.0
_LEAST_S = 10.0

# A new engine is given so many times what the first took to become ready, and no less than this.
_RESTART_TIMES = 10.0
_RESTART_LEAST_S = 120.0

# The restart before which it is given up, if all were within so many seconds.
_TOO_MANY = 3
_WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an engine may take, in seconds; 0: as long as it takes."""

    batch_s: float | None = None  # None: by how long such batches take
    warm_up_s: float = 0.0

    def batch(self, latency: Latency, size: int) -> float:
        """Seconds for a batch of `size`; inf where it is not bounded."""
        if self.batch_s is not None:
            return self.batch_s or inf
        return max(_LEAST_S, _TIMES * latency.of(size)) if latency.known else inf

    @property
    def warm_up(self) -> float:
        """Seconds to become ready for the first time; inf where it is not bounded."""
        return self.warm_up_s or inf

    def restart(self, first_s: float) -> float:
        """Seconds to become ready again, for one that took `first_s` at first."""
        return max(_RESTART_LEAST_S, _RESTART_TIMES * first_s)


class Restarts:
    """The moments of the last restarts, in seconds of one clock."""

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=_TOO_MANY - 1)

    def another(self, now: float) -> bool:
        """Whether to try another now, which then counts as one."""
        moments = self._moments
        if len(moments) == moments.maxlen and now - moments[0] <= _WITHIN_S:
            return False
        moments.append(now)
        return True
