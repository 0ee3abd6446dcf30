"""Keeps a table L(n), the time of a batch of n items. L(n) is measured at start-up and updated
after batches. The batching policy, the check of deadlines and the header Retry-After use this
table.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median
from typing import NamedTuple

# Weight of the newest measurement in a moving average. There are averages of a relative error and
# of arrivals after an event. An entry of L(n) is also averaged with measurements of other sizes,
# because a device that is slower is slower for every size.
NEWEST = 1 / 8

# The same weight for the entry of the measured size. Both weights apply to logarithms.
_OWN = 0.25

# The largest slowdown or speedup that one batch may show.
_MOST = 4.0

# The errors of most batches are below this multiple of the mean relative error.
_MARGIN = 2.0


class Latency(NamedTuple):
    """Holds the seconds that batches of 1 to max_batch items take. The seconds never decrease with
    n, and are all 0 if unknown.

    Immutable: `observed` returns a new object.
    """

    seconds: tuple[float, ...]
    error: float = 0.0  # mean relative error of a batch's prediction
    # The last three batches' times, divided by their predictions. Their median counts, so that a
    # single interrupted batch changes nothing.
    ratios: tuple[float, ...] = ()
    # Each size's own average, which may fall with n; empty: `seconds`. If one size's entry were
    # changed for its neighbour's sake, the others would follow its way back for ever.
    followed: tuple[float, ...] = ()

    @staticmethod
    def unknown(max_batch: int) -> "Latency":
        """Return a table without any measurement."""
        return Latency((0.0,) * max_batch)

    @staticmethod
    def measured(seconds: Mapping[int, float], max_batch: int) -> "Latency":
        """Return a table made from the measured times of some batch sizes, interpolated linearly
        between them. If only one size was measured, its time is used for all sizes.
        """
        if not seconds:
            return Latency.unknown(max_batch)
        known = sorted(seconds)
        return Latency(_rising([_on_line(known, seconds, n) for n in range(1, max_batch + 1)]))

    @property
    def known(self) -> bool:
        """Return whether the table has measured times. Otherwise, all times are 0."""
        return self.seconds[0] > 0

    @property
    def max_batch(self) -> int:
        """Return the size of the largest batch."""
        return len(self.seconds)

    @property
    def most_rivals(self) -> float:
        """Return 2 L(max_batch) / L(1). With this many clients or more, fairness does not limit the
        batch size.

        Returns 0 if the latency is unknown. The module `service/batching/policy.py` explains the
        number under "Fairness".
        """
        return 2 * self.seconds[-1] / self.seconds[0] if self.known else 0.0

    def of(self, items: int) -> float:
        """Return the time in seconds to run `items` in as few batches as possible, one after
        another."""
        if items <= len(self.seconds):
            return self.seconds[items - 1] if items else 0.0
        full, rest = divmod(items, len(self.seconds))
        return full * self.seconds[-1] + self.of(rest)

    def within(self, items: int) -> float:
        """Return `of(items)` plus a margin, so that `items` are nearly always done in this time.
        The margin comes from the errors of recent predictions."""
        return self.of(items) * (1 + _MARGIN * self.error)

    def after(self, each_s: float) -> "Latency":
        """Return the table for batches in which each item takes `each_s` seconds more, for example
        because it must be decoded."""
        return Latency(tuple(took + n * each_s for n, took in enumerate(self.seconds, 1)))

    def observed(self, n: int, took_s: float) -> "Latency":
        """Return a new table, updated with the time of one batch: `n` items took `took_s`
        seconds."""
        if not self.known:
            return Latency((max(took_s, 0.0),) * len(self.seconds))
        if took_s <= 0:
            return self
        followed = self.followed or self.seconds
        ratio = took_s / followed[n - 1]
        recent = (*self.ratios[-2:], ratio)
        believed = min(max(sorted(recent)[len(recent) // 2], 1 / _MOST), _MOST)
        off = min(abs(took_s / self.seconds[n - 1] - 1), 1.0)
        # All other entries change by the same ratio. Otherwise noise that averages out in this
        # entry would add up in others.
        others = believed**NEWEST
        moved = [s * others for s in followed]
        moved[n - 1] = followed[n - 1] * believed**_OWN
        now = tuple(moved)
        seconds = now if moved == sorted(moved) else _around(moved, n)
        return Latency(seconds, self.error + NEWEST * (off - self.error), recent, now)


def measure(
    run: Callable[[int], float], max_batch: int, *, budget_s: float, rounds: int = 5
) -> Latency:
    """Return L(n), measured with `run(n)`, which runs a batch of n items and returns its seconds.
    Each entry is the median of up to `rounds` calls.

    The most informative sizes (1, max_batch, the middle between them, ...) come first. A run is
    skipped if it is expected to make the total exceed `budget_s`.
    """
    times: dict[int, list[float]] = {}
    spent = 0.0
    for _ in range(rounds):
        for n in _spread(max_batch):
            known = max((size for size in times if size <= n), default=0)
            likely = median(times[known]) * n / known if known else 0.0  # or less
            if spent + likely >= budget_s:
                continue
            took = run(n)
            spent += took
            times.setdefault(n, []).append(took)
    return Latency.measured({n: median(some) for n, some in times.items()}, max_batch)


def _spread(max_batch: int) -> list[int]:
    """Return the batch sizes in the order of measurement. Both ends come first, and then the
    middles of gaps: 1, 8, 4, 2, 6, 3, 5, 7."""
    order = [1, max_batch] if max_batch > 1 else [1]
    gaps = [(1, max_batch)]
    for low, high in gaps:  # a breadth-first search, as the list grows while it is iterated
        if high - low > 1:
            middle = (low + high) // 2
            order.append(middle)
            gaps += [(low, middle), (middle, high)]
    return order


def _on_line(known: Sequence[int], seconds: Mapping[int, float], n: int) -> float:
    """Return the time of a batch of n items, interpolated linearly between the nearest sizes in
    `known`, which is sorted."""
    if len(known) == 1:
        return seconds[known[0]]
    above = min(max(bisect_left(known, n), 1), len(known) - 1)
    low, high = known[above - 1], known[above]
    slope = (seconds[high] - seconds[low]) / (high - low)
    return seconds[low] + slope * (n - low)


def _around(seconds: Sequence[float], n: int) -> tuple[float, ...]:
    """Return a non-decreasing version of `seconds` in which the entry of size n is unchanged."""
    below = list(accumulate(reversed(seconds[:n]), min))
    _, *above = accumulate(seconds[n - 1 :], max)
    return (*reversed(below), *above)


def _rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return a non-decreasing version of `seconds`. Each entry becomes the mean of two numbers: the
    maximum of the entries up to it, and the minimum of the entries from it on."""
    most = accumulate(seconds, max)
    least = reversed(list(accumulate(reversed(seconds), min)))
    return tuple((high + low) / 2 for high, low in zip(most, least, strict=True))
