"""Predicts when further items arrive, so that the policy can decide whether a batch should wait for
them.

Arrivals follow two kinds of events: answers, after which clients send their next requests, and the
first arrival of a burst. After each event, arrivals are counted in 16 bins over one window, which
is a little shorter than L(1), the time of the shortest batch. For each bin, two moving averages are
learnt. One is the number of arrivals by the end of the bin. The other is the excess of this number
over an even spread.

Poisson arrivals of any rate are spread evenly, so their excess is noise. An excess counts as
evidence only if it is sizeable and above three standard errors. Without evidence no batch waits.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from service.batching.latency import NEWEST

_BINS = 16

# The window's length divided by L(1). It is below 1: otherwise a client that is always answered
# alone would seem to follow itself.
_WINDOW = 0.9

# The variance of a moving average, divided by the variance of its entries.
_ERROR = NEWEST / (2 - NEWEST)

# An excess is evidence if it is at least this many standard errors and this share of all arrivals.
# With a share of 0.3, two clients with random think times get up to 10% less than the highest
# throughput; with 0.2, up to 7%; with 0.12, up to 6%, but their p99 grows by 5%.
_SURE = 3.0
_SHARE = 0.2

# Fewer arrivals than this count as none.
_FEWEST = 1 / 64

# Weight of the newest batch in the averages of busy and idle time. With 0.05 the averages are
# noise: with linear L, Poisson arrivals and a load of 0.8, the p99 is 12% above the p99 of the
# least mean. With 0.005 it is 4% above.
_NEWEST_BATCH = 0.005


class Prospect(NamedTuple):
    """Describes the arrivals that are expected after an event, from now to the end of the event's
    window."""

    since: float  # clock seconds of the event
    more: float  # items still expected before the window ends
    by: tuple[tuple[float, float], ...]  # (moment, items until then), where there is evidence


class Echo:
    """Learns how many items arrive after a recurring event, and when they arrive."""

    def __init__(self) -> None:
        self._opened = -inf
        self._window = 0.0
        self._weight = 1
        self._counts = [0] * _BINS
        self._total = 0
        # By the end of each bin, per unit of weight:
        self._after = [0.0] * _BINS  # arrivals
        self._excess = [0.0] * _BINS  # those beyond an even spread
        self._variance = [1.0] * _BINS  # of the excess
        self._sure: tuple[int, ...] = ()  # the bins with evidence

    @property
    def expecting(self) -> bool:
        """Return whether items are expected to arrive after the event."""
        return bool(self._sure)

    def is_open(self, now: float) -> bool:
        """Return whether the window after the last event has not ended yet."""
        return now < self._opened + self._window

    def happened(self, now: float, weight: int, window_s: float) -> None:
        """Begin to count arrivals for `window_s` seconds after an event. `weight` is the number of
        answers in the event, or 1 for a burst. The averages are per unit of weight."""
        self._learn()
        self._opened, self._weight, self._window = now, weight, window_s

    def arrived(self, now: float, items: int) -> None:
        """Count items that arrived."""
        if self.is_open(now):
            self._total += items
            self._counts[int((now - self._opened) / self._window * _BINS)] += items

    def forget(self) -> None:
        """Discard the counts of the current window, so that the averages do not change."""
        self._opened, self._total = -inf, 0
        self._counts = [0] * _BINS

    def prospect(self, now: float) -> Prospect | None:
        """Return the expected arrivals, or None if there is no evidence of any."""
        if not self._sure or not self.is_open(now):
            return None
        passed = int((now - self._opened) / self._window * _BINS)
        before = self._after[passed - 1] if passed else 0.0
        usual = self._after[-1] - before
        # Late arrivals are still expected, until the usual window of arrivals is over.
        more = self._weight * self._after[-1] - self._total
        if usual < _FEWEST or more <= 0:
            return None
        by = tuple(
            (
                self._opened + (part + 1) / _BINS * self._window,
                more * (self._after[part] - before) / usual,
            )
            for part in self._sure
            if part >= passed
        )
        return Prospect(self._opened, more, by)

    def _learn(self) -> None:
        """Add the last window's counts to the averages, and reset the counts."""
        total, self._total = self._total, 0
        if total == 0 and self._after[-1] < _FEWEST:
            return
        counts, weight = self._counts, self._weight
        come = 0
        sure = []
        for part in range(_BINS):
            come += counts[part]
            counts[part] = 0
            after = self._after[part] + NEWEST * (come / weight - self._after[part])
            off = (come - total * (part + 1) / _BINS) / weight - self._excess[part]
            excess = self._excess[part] + NEWEST * off
            variance = (1 - NEWEST) * (self._variance[part] + NEWEST * off * off)
            self._after[part], self._excess[part] = after, excess
            self._variance[part] = variance
            if excess > _SHARE * after and excess * excess > _SURE * _SURE * _ERROR * variance:
                sure.append(part)
        self._sure = tuple(sure)


class Traffic:
    """Learns from the arrivals and batches that the dispatcher reports. Callers pass the current
    time.

    Each engine has its own `Echo` of answers, because the windows after the answers of several
    engines would overlap.
    """

    def __init__(self, engines: int = 1) -> None:
        self._answers = [Echo() for _ in range(engines)]
        self._bursts = Echo()
        self._free_since = [inf] * engines
        self._waiting_since = inf  # the first arrival after the last batch began
        self._came = 0  # items since the last answer
        self._items = 0.0  # moving averages, a batch
        self._busy_s = 0.0
        self._idle_s = 0.0

    @property
    def idle(self) -> float:
        """Return the fraction of recent time in which an engine had nothing to do."""
        both = self._busy_s + self._idle_s
        return self._idle_s / both if both else 0.0

    @property
    def rate(self) -> float:
        """Return how many items per second arrived recently."""
        both = self._busy_s + self._idle_s
        return len(self._answers) * self._items / both if both else 0.0

    def expecting(self, engine: int = 0) -> bool:
        """Return whether further items are expected after this engine's answers, or after the first
        item of a burst."""
        return self._answers[engine].expecting or self._bursts.expecting

    def arrived(self, now: float, items: int, shortest_s: float) -> None:
        """Count items that arrived. `shortest_s` is the time of a batch of one item."""
        self._waiting_since = min(self._waiting_since, now)
        self._came += items
        for answers in self._answers:
            answers.arrived(now, items)
        if self._bursts.is_open(now):
            self._bursts.arrived(now, items)
        else:
            self._bursts.happened(now, 1, _WINDOW * shortest_s)

    def dispatched(self, now: float, engine: int = 0) -> None:
        """Record that a batch began."""
        free_since = self._free_since[engine]
        if free_since < inf:
            idle_s = max(0.0, min(self._waiting_since, now) - free_since)
            self._idle_s += _NEWEST_BATCH * (idle_s - self._idle_s)
        self._waiting_since = inf

    def answered(
        self,
        now: float,
        items: int,
        took_s: float,
        shortest_s: float,
        *,
        alone: bool,
        engine: int = 0,
    ) -> None:
        """Record that a batch of `items` ended. `alone` means that no other item waits.

        Arrivals after a batch are not counted if the batch had one item and no other item waits.
        """
        self._busy_s += _NEWEST_BATCH * (took_s - self._busy_s)
        self._items += _NEWEST_BATCH * (self._came - self._items)
        self._came = 0
        self._free_since[engine] = now
        if items > 1 or not alone:
            self._answers[engine].happened(now, items, _WINDOW * shortest_s)

    def failed(self, now: float, engine: int = 0) -> None:
        """Record that a batch failed. Nothing is learnt from the arrivals after it, because they
        are retries."""
        self._free_since[engine] = now
        for answers in self._answers:
            answers.forget()
        self._bursts.forget()

    def prospects(self, now: float, engine: int = 0) -> Sequence[Prospect]:
        """Return the arrivals that are expected before this engine's next batch."""
        both = (self._answers[engine].prospect(now), self._bursts.prospect(now))
        return [prospect for prospect in both if prospect is not None]
