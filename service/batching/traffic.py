"""What arrivals follow: how the policy knows that somebody is about to come.

Two things are followed by arrivals: answers, whose clients send their next request, and the first
arrival of a burst. After each, arrivals are counted over one window (a little less than L(1), the
shortest that a batch takes), in 16 bins. What is learned is how many come by each bin's end, as a
moving average, and how many more than if they were spread evenly over the window. Poisson arrivals
are spread evenly whatever their rate, so their excess is noise; only an excess beyond three
standard errors, and of some size, is believed. That is the evidence without which nobody waits.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

_BINS = 16

# The window over L(1): a client that is answered alone and comes back is none that follows itself.
_WINDOW = 0.9

# Weight of the newest window, and with it the square of a standard error over the variance.
_NEWEST = 1 / 8
_ERROR = _NEWEST / (2 - _NEWEST)

# What an excess must be to be believed: standard errors from nothing, a share of all that come.
_SURE = 3.0
_SHARE = 0.3

# Fewer arrivals than this are none.
_NOBODY = 1 / 64

# Weight of the newest batch in how busy it has been.
_NEWEST_BATCH = 0.05


class Prospect(NamedTuple):
    """What is expected after something that arrivals follow."""

    since: float  # clock seconds of what happened
    more: float  # items still expected in its window
    by: tuple[tuple[float, float], ...]  # (moment, how many of them until then), where sure


class Echo:
    """How many items arrive, and when, after something that happens again and again."""

    __slots__ = (
        "_after",
        "_counts",
        "_excess",
        "_opened",
        "_sure",
        "_total",
        "_variance",
        "_weight",
        "_window",
    )

    def __init__(self) -> None:
        self._opened = -inf
        self._window = 0.0
        self._weight = 1
        self._counts = [0] * _BINS
        self._total = 0
        # For each bin's end, a unit of weight: arrivals, those beyond an even spread, variance.
        self._after = [0.0] * _BINS
        self._excess = [0.0] * _BINS
        self._variance = [1.0] * _BINS
        self._sure: tuple[int, ...] = ()  # the bins by whose end an excess is believed

    @property
    def expecting(self) -> bool:
        """Whether anything was learned that makes arrivals sure."""
        return bool(self._sure)

    def is_open(self, now: float) -> bool:
        """Whether the last window is not over."""
        return now < self._opened + self._window

    def happened(self, now: float, weight: int, window_s: float) -> None:
        """Begin a window; `weight` is how many arrivals it would take to answer each one."""
        self._learn()
        self._opened, self._weight, self._window = now, weight, window_s

    def arrived(self, now: float, items: int) -> None:
        """Count items that came."""
        if self.is_open(now):
            self._total += items
            self._counts[int((now - self._opened) / self._window * _BINS)] += items

    def forget(self) -> None:
        """Leave the window unfinished; nothing is learned from it."""
        self._opened, self._total = -inf, 0
        self._counts = [0] * _BINS

    def prospect(self, now: float) -> Prospect | None:
        """What to expect, where something sure is to come."""
        if not self._sure or not self.is_open(now):
            return None
        passed = int((now - self._opened) / self._window * _BINS)
        before = self._after[passed - 1] if passed else 0.0
        usual = self._after[-1] - before
        # Who should have come already and did not is still expected, until nobody comes any more.
        more = self._weight * self._after[-1] - self._total
        if usual < _NOBODY or more <= 0:
            return None
        by = [
            (
                self._opened + (place + 1) / _BINS * self._window,
                more * (self._after[place] - before) / usual,
            )
            for place in self._sure
            if place >= passed
        ]
        return Prospect(self._opened, more, tuple(by))

    def _learn(self) -> None:
        """Take the last window's counts into the averages, and forget them."""
        total, self._total = self._total, 0
        if total == 0 and self._after[-1] < _NOBODY:
            return  # nobody came where nobody was expected
        counts, weight = self._counts, self._weight
        come = 0
        sure = []
        for place in range(_BINS):
            come += counts[place]
            counts[place] = 0
            after = self._after[place] + _NEWEST * (come / weight - self._after[place])
            off = (come - total * (place + 1) / _BINS) / weight - self._excess[place]
            excess = self._excess[place] + _NEWEST * off
            variance = (1 - _NEWEST) * (self._variance[place] + _NEWEST * off * off)
            self._after[place], self._excess[place] = after, excess
            self._variance[place] = variance
            if excess > _SHARE * after and excess * excess > _SURE * _SURE * _ERROR * variance:
                sure.append(place)
        self._sure = tuple(sure)


class Traffic:
    """What happened lately, told by whoever runs the batches; it asks no clock."""

    __slots__ = (
        *("_answers", "_bursts"),
        *("_free_since", "_idle_until", "_idle_s", "_busy_s"),
    )

    def __init__(self) -> None:
        self._answers = Echo()
        self._bursts = Echo()
        self._free_since = self._idle_until = inf
        self._busy_s = 0.0  # moving averages, a batch
        self._idle_s = 0.0

    @property
    def idle(self) -> float:
        """The share of the time in which there was nothing to do lately."""
        both = self._busy_s + self._idle_s
        return self._idle_s / both if both else 0.0

    @property
    def expecting(self) -> bool:
        """Whether anything is known that arrivals follow."""
        return self._answers.expecting or self._bursts.expecting

    def arrived(self, now: float, items: int, shortest_s: float) -> None:
        """Items came; `shortest_s` is L(1)."""
        self._idle_until = min(self._idle_until, now)
        self._answers.arrived(now, items)
        if self._bursts.is_open(now):
            self._bursts.arrived(now, items)
        else:
            self._bursts.happened(now, 1, _WINDOW * shortest_s)

    def dispatched(self, now: float) -> None:
        """A batch was begun."""
        if self._free_since < inf:
            idle_s = min(self._idle_until, now) - self._free_since
            self._idle_s += _NEWEST_BATCH * (idle_s - self._idle_s)

    def answered(
        self, now: float, items: int, took_s: float, shortest_s: float, *, alone: bool
    ) -> None:
        """A batch of so many items ended; `alone` where nobody waits.

        Nobody waits for the client of a single item to come back, unless somebody is there who
        could: what follows its answer is of no interest.
        """
        self._busy_s += _NEWEST_BATCH * (took_s - self._busy_s)
        self._free_since, self._idle_until = now, inf
        if items > 1 or not alone:
            self._answers.happened(now, items, _WINDOW * shortest_s)

    def failed(self, now: float) -> None:
        """A batch failed: who tries again at once is no burst, and no client that thinks."""
        self._free_since, self._idle_until = now, inf
        self._answers.forget()
        self._bursts.forget()

    def prospects(self, now: float) -> Sequence[Prospect]:
        """What is expected to come."""
        both = (self._answers.prospect(now), self._bursts.prospect(now))
        return [prospect for prospect in both if prospect is not None]
