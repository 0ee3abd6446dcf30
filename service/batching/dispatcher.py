"""The policy with its memory of arrivals and batches.

The batcher reports events and asks for decisions; the simulator does the same with its own clock.
"""

from collections.abc import Sequence
from math import inf

from service.batching.latency import Latency
from service.batching.policy import SHORT_S, Claim, Decision, View, completion, decide
from service.batching.traffic import Traffic

# Of short batches, and of single items that take as long as expected, every fourth is recorded.
_SAMPLE = 4

# By this factor a batch, the shortest time is forgotten.
_FORGET = 1.02

_NOTHING = Decision()
_ONE = Decision(dispatch=1)


class Dispatcher:
    """Decides for a batcher that runs one batch at a time. Times are seconds of one clock."""

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
        self._pause = _NOTHING  # the decision to wait, while it holds
        self._least = inf  # seconds of the shortest recent batch
        # Short batches never wait, so traffic need not be tracked. Judged by the shortest: a busy
        # event loop adds to the time of most.
        self._short = latency.known and latency.seconds[0] < SHORT_S

    @property
    def latency(self) -> Latency:
        """Measured latency by batch size; it learns."""
        return self._latency

    @latency.setter
    def latency(self, latency: Latency) -> None:
        self._latency = latency
        short = latency.known and min(latency.seconds[0], self._least) < SHORT_S
        if short and not self._short:
            self._traffic = Traffic()  # not updated from now on
        self._short = short

    @property
    def short(self) -> bool:
        """Whether batches are too short to wait for more items."""
        return self._short

    def arrived(self, now: float, items: int) -> None:
        """Items arrived."""
        if not self._short:
            self._traffic.arrived(now, items, self._latency.seconds[0])

    def dispatched(self, now: float, items: int) -> None:
        """A batch began."""
        self._running, self._started = items, now
        self._batches += 1
        if not self._short:
            self._traffic.dispatched(now)

    def answered(self, now: float, depth: int, *, failed: bool = False) -> None:
        """The batch ended, with `depth` items waiting; failed batches do not count for L(n)."""
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
        # Recording takes microseconds, so skip single items that took as long as expected.
        usual = items == 1 and not depth and abs(took_s - self._latency.of(1)) < 0.1 * took_s
        if sampled or not usual:
            self.latency = self._latency.observed(items, took_s)
        shortest_s = self._latency.seconds[0]
        self._traffic.answered(now, items, took_s, shortest_s, alone=not depth)

    @property
    def batch_ends(self) -> float:
        """When the running batch should end."""
        return self._started + self._latency.of(self._running)

    def decide(
        self,
        now: float,
        depth: int,
        claims: Sequence[Claim] = (),
        others_until: float | None = None,
    ) -> Decision:
        """What to do with `depth` waiting items; `claims` is empty if none has a deadline.

        `others_until` is when another model's batch on the device should end; None: none runs.
        """
        if not claims:
            if not depth or self._running or others_until is not None:
                return _NOTHING
            if self._short:
                return Decision(min(depth, self._latency.max_batch))
            if depth == 1 and not self._traffic.expecting:
                return _ONE
            if depth < self._pause.enough and now < self._pause.look_again:
                return self._pause
        decision = decide(self._view(now, depth, claims, others_until))
        self._pause = _NOTHING if claims else decision
        return decision

    def completion(
        self, now: float, ahead: int, items: int, others_until: float | None = None
    ) -> float:
        """When `items` that arrive now would be done, behind `ahead` items."""
        return completion(self._view(now, ahead, (), others_until), ahead, items)

    def wait_s(self, now: float, depth: int) -> float:
        """Seconds until the running batch and `depth` waiting items will be done.

        An overdue batch is assumed to take as long again as it has taken, and so are those after
        it.
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
