"""The policy with its memory: what it has seen, and from that what to do now.

The batcher tells it what happens and asks it; so does the simulator, with a clock of its own.
"""

from collections.abc import Sequence

from service.latency import Latency
from service.policy import Claim, Decision, View, completion, decide
from service.traffic import Traffic

# While items come and go one by one, one in so many is looked at closely.
_SAMPLE = 4


class Dispatcher:
    """Decides for one batcher whose batches run one at a time. Times are seconds of one clock."""

    __slots__ = ("_running", "_started", "_traffic", "latency")

    def __init__(self, latency: Latency) -> None:
        self.latency = latency
        self._traffic = Traffic()
        self._running = 0  # items
        self._started = 0.0

    def arrived(self, now: float, items: int) -> None:
        """Items came to wait."""
        self._traffic.arrived(now, items, self.latency.seconds[0])

    def dispatched(self, now: float, items: int) -> None:
        """A batch was begun."""
        self._running, self._started = items, now
        self._traffic.dispatched(now)

    def answered(self, now: float, depth: int, *, failed: bool = False) -> None:
        """The batch ended while `depth` items wait; one that failed says nothing about L(n)."""
        items, took_s = self._running, now - self._started
        self._running = 0
        if failed:
            self._traffic.failed(now)
        else:
            # One by one, and as expected: not each is worth its microseconds.
            usual = items == 1 and not depth and abs(took_s - self.latency.of(1)) < 0.1 * took_s
            if not usual or self._traffic.batches % _SAMPLE == 0:
                self.latency = self.latency.observed(items, took_s)
            shortest_s = self.latency.seconds[0]
            self._traffic.answered(now, items, took_s, shortest_s, alone=not depth)

    @property
    def batch_ends(self) -> float:
        """When the batch that runs should be done."""
        return self._started + self.latency.of(self._running)

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
            if depth == 1 and not self._traffic.expecting:
                return _ONE
        return decide(self._view(now, depth, claims, others_until))

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
        waiting = self.latency.of(depth)
        if not self._running:
            return waiting
        expected, passed = self.latency.of(self._running), now - self._started
        if passed <= expected:
            return expected - passed + waiting
        batches = -(-depth // self.latency.max_batch)
        return passed + max(waiting, batches * passed)

    def _view(
        self, now: float, depth: int, claims: Sequence[Claim], others_until: float | None
    ) -> View:
        traffic = self._traffic
        return View(
            now,
            depth,
            self.latency,
            self.batch_ends if self._running else others_until,
            traffic.idle,
            traffic.batches,
            traffic.prospects(now),
            claims,
        )


_NOTHING = Decision()
_ONE = Decision(dispatch=1)
