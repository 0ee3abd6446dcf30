"""The policy with its memory: what it has seen, and from that what to do now.

The batcher tells it what happens and asks it; so does the simulator, with a clock of its own.
"""

from collections.abc import Sequence
from math import inf

from service.batching.latency import Latency
from service.batching.policy import SHORT_S, Claim, Decision, View, completion, decide
from service.batching.traffic import Traffic

# While items come and go one by one, or batches are short, one in so many is looked at closely.
_SAMPLE = 4

# How fast it is forgotten that a batch was short, a batch.
_FORGET = 1.02


_NOTHING = Decision()
_ONE = Decision(dispatch=1)


class Dispatcher:
    """Decides for one batcher whose batches run one at a time. Times are seconds of one clock."""

    __slots__ = (
        *("_batches", "_least", "_pause", "_running", "_short", "_started", "_traffic"),
        "_latency",
    )

    def __init__(self, latency: Latency) -> None:
        self._latency = latency
        self._traffic = Traffic()
        self._batches = 0  # dispatched
        self._running = 0  # items
        self._started = 0.0
        self._pause = _NOTHING  # while somebody is waited for
        self._least = inf  # seconds that the quickest batch took lately
        # Where batches are short, nobody is waited for, and no time is spent on finding out whom
        # one could wait for. What a busy event loop adds to most of them must not hide it.
        self._short = latency.known and latency.seconds[0] < SHORT_S

    @property
    def latency(self) -> Latency:
        """What is known of how long batches take; it learns."""
        return self._latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self._latency = latency
        short = latency.known and min(latency.seconds[0], self._least) < SHORT_S
        if short and not self._short:
            self._traffic = Traffic()  # what is not told from now on would go stale
        self._short = short

    @property
    def short(self) -> bool:
        """Whether batches are so short that nobody is waited for."""
        return self._short

    def arrived(self, now: float, items: int) -> None:
        """Items came to wait."""
        if not self._short:
            self._traffic.arrived(now, items, self._latency.seconds[0])

    def dispatched(self, now: float, items: int) -> None:
        """A batch was begun."""
        self._running, self._started = items, now
        self._batches += 1
        if not self._short:
            self._traffic.dispatched(now)

    def answered(self, now: float, depth: int, *, failed: bool = False) -> None:
        """The batch ended while `depth` items wait; one that failed says nothing about L(n)."""
        items, took_s = self._running, now - self._started
        self._running = 0
        if failed:
            self._traffic.failed(now)
            return
        self._least = min(took_s, self._least * _FORGET)
        sampled = self._batches % _SAMPLE == 0
        if self._short:
            if sampled:
                self.latency = self._latency.observed(items, took_s)
            return
        # One by one, and as expected: not each is worth its microseconds.
        usual = items == 1 and not depth and abs(took_s - self._latency.of(1)) < 0.1 * took_s
        if sampled or not usual:
            self.latency = self._latency.observed(items, took_s)
        shortest_s = self._latency.seconds[0]
        self._traffic.answered(now, items, took_s, shortest_s, alone=not depth)

    @property
    def batch_ends(self) -> float:
        """When the batch that runs should be done."""
        return self._started + self._latency.of(self._running)

    def decide(
        self,
        now: float,
        depth: int,
        claims: Sequence[Claim] = (),
        others_until: float | None = None,
    ) -> Decision:
        """What to do with `depth` items that wait; `claims` where one has a deadline.

        `others_until` is when another model's batch on the device should be done, if one runs.
        """
        if not claims:
            if not depth or self._running or others_until is not None:
                return _NOTHING
            if self._short:
                return Decision(min(depth, self._latency.max_batch))
            if depth == 1 and not self._traffic.expecting:
                return _ONE
            if depth < self._pause.enough and now < self._pause.look_again:
                return self._pause  # as decided before this one came
        decision = decide(self._view(now, depth, claims, others_until))
        self._pause = _NOTHING if claims else decision
        return decision

    def completion(
        self, now: float, ahead: int, items: int, others_until: float | None = None
    ) -> float:
        """When `items` that came now would be done, after `ahead` items."""
        return completion(self._view(now, ahead, (), others_until), ahead, items)

    def wait_s(self, now: float, depth: int) -> float:
        """Seconds until what runs and the `depth` items that wait will be done.

        A batch that takes longer than it should have will take as long again, as far as one knows,
        and so will those after it.
        """
        waiting = self._latency.of(depth)
        if not self._running:
            return waiting
        expected, passed = self._latency.of(self._running), now - self._started
        if passed <= expected:
            return expected - passed + waiting
        batches = -(-depth // self._latency.max_batch)
        return passed + max(waiting, batches * passed)

    def _view(
        self, now: float, depth: int, claims: Sequence[Claim], others_until: float | None
    ) -> View:
        traffic = self._traffic
        return View(
            now,
            depth,
            self._latency,
            self.batch_ends if self._running else others_until,
            traffic.idle,
            self._batches,
            traffic.prospects(now),
            claims,
        )
