"""Contains the schedulers to compare: Convoy's own policy, the code that serves, and others.

- `FixedDelay`: dispatch when a batch is full or its oldest item has waited so long; what LitServe's
  `batch_timeout`, Ray Serve's `batch_wait_timeout_s` and Triton's `max_queue_delay_microseconds`
  do. An item whose deadline has passed is dropped (Triton's `default_queue_policy` with REJECT).
- `TritonDefault`: `dynamic_batching {}`: as many as there are, at once, no timeouts.
- `Clipper` (Crankshaw et al. 2017, section 4.3.1): the largest batch grows by one as long as
  batches stay within the latency objective and shrinks by a tenth when one does not; what is late
  already is dropped, which the Nexus paper calls lazy dropping.
- `Nexus` (Shen et al. 2019, sections 4.1 and 6.3): batches of the largest b with 2 L(b) within the
  objective; early drop: a window of b items slides over the queue to the first index where all of
  it would be in time, and everything before that is dropped.

The last two want a latency objective: the deadline, or 2 L(max_batch) where there is none; without
deadlines nothing is dropped.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from random import Random

from typing_extensions import override

from benchmarks.simulation.bounds import DEPTH, poisson
from benchmarks.simulation.server import Choice, Item, Scheduler
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency, measure
from service.batching.policy import Claim, due


class Convoy:
    """Runs the policy that serves, with the same queue discipline as the batcher."""

    def __init__(self, *latencies: Latency) -> None:
        """Take each engine's known latencies."""
        self._dispatcher = Dispatcher(*latencies)
        self._deadlines = 0

    def position(self, now: float, item: Item, queue: Sequence[Item]) -> int | None:
        """Return the item's index by its due time, or None if it cannot meet its deadline."""
        moment = due(now, item.urgency)
        position = len(queue)
        while position and self._due(queue[position - 1]) > moment:
            position -= 1
        if item.deadline < inf:
            ahead = max(0, position - self._dispatcher.spare)
            if self._dispatcher.completion(now, ahead, 1) > item.deadline:
                return None
            self._deadlines += 1
        self._dispatcher.arrived(now, 1)
        return position

    def decide(self, now: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Return the policy's decision."""
        if engine is None:
            engine = self._dispatcher.first_free(now)
        claims: list[Claim] = []
        if self._deadlines:
            claims = [Claim(1, item.deadline) for item in queue]
        return Choice(*self._dispatcher.decide(now, len(queue), claims, engine)[:3])

    def dispatched(self, now: float, items: int, engine: int) -> None:
        """Tell the policy that an engine began a batch."""
        self._dispatcher.dispatched(now, items, engine)

    def answered(self, now: float, waiting: int, engine: int) -> None:
        """Tell the policy that an engine's batch ended."""
        self._dispatcher.answered(now, waiting, engine)

    def _due(self, item: Item) -> float:
        return due(item.arrived, item.urgency)


class _Fifo:
    """Serves requests in the order of arrival, admits all, and learns nothing."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch

    def position(self, _: float, __: Item, queue: Sequence[Item]) -> int | None:
        """Return the end of the queue."""
        return len(queue)

    def dispatched(self, now: float, items: int, engine: int) -> None:
        """Do nothing."""

    def answered(self, now: float, waiting: int, engine: int) -> None:
        """Do nothing."""


class TritonDefault(_Fifo):
    """Takes all waiting items at once, up to the largest batch."""

    def decide(self, _: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Dispatch all items that fit into a batch."""
        return Choice() if engine is None else Choice(min(self._max_batch, len(queue)))


class Planned(_Fifo):
    """Follows the plan of bounds.py with the least mean latency for Poisson arrivals at a rate."""

    def __init__(self, seconds: Sequence[float], rate: float) -> None:
        super().__init__(len(seconds))
        _, self._sizes = poisson(tuple(seconds), rate)
        self._end_s = 20 / rate  # without an arrival: none comes any more

    def decide(self, now: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Dispatch as many items as the plan says for the number that wait; 0 means wait for an
        arrival."""
        if engine is None:
            return Choice()
        end = queue[-1].arrived + self._end_s
        size = self._sizes[min(len(queue), DEPTH)]
        return Choice(size if now < end else min(self._max_batch, len(queue)), end)


class FixedDelay(_Fifo):
    """Dispatches a full batch, or all items when the oldest has waited `delay_s`."""

    def __init__(self, max_batch: int, delay_s: float) -> None:
        super().__init__(max_batch)
        self._delay_s = delay_s

    def decide(self, now: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Drop the late items, and dispatch or keep waiting."""
        if engine is None:
            return Choice()
        late = _late(now, queue)
        left = len(queue) - len(late)
        if not left:
            return Choice(refused=late)
        oldest = next(item for item in queue if item.deadline >= now)
        ripe = oldest.arrived + self._delay_s
        if left >= self._max_batch or now >= ripe:
            return Choice(min(self._max_batch, left), inf, late)
        return Choice(0, ripe, late)


class Clipper(_Fifo):
    """Increases its largest batch additively and decreases it multiplicatively."""

    def __init__(self, max_batch: int, objective_s: float) -> None:
        super().__init__(max_batch)
        self._objective_s = objective_s
        self._largest = 1.0
        self._begun: dict[int, tuple[float, int]] = {}  # by engine: when, items

    def decide(self, now: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Drop the late items, and dispatch up to the current largest batch."""
        if engine is None:
            return Choice()
        late = _late(now, queue)
        return Choice(min(int(self._largest), len(queue) - len(late)), inf, late)

    @override
    def dispatched(self, now: float, items: int, engine: int) -> None:
        self._begun[engine] = now, items

    @override
    def answered(self, now: float, _: int, engine: int) -> None:
        started, items = self._begun[engine]
        if now - started > self._objective_s:
            self._largest = max(1.0, self._largest * 0.9)
        elif items >= int(self._largest):
            self._largest = min(float(self._max_batch), self._largest + 1)


class Nexus(_Fifo):
    """Drops items early, based on an exact profile of latency."""

    def __init__(self, seconds: Sequence[float], objective_s: float) -> None:
        super().__init__(len(seconds))
        self._seconds = seconds
        within = [n for n, took in enumerate(seconds, 1) if 2 * took <= objective_s]
        self._window = max(within, default=1)

    def decide(self, now: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Move the window to the first position at which all of it would be in time."""
        if engine is None:
            return Choice()
        for position in range(len(queue)):
            items = min(self._window, len(queue) - position)
            done = now + self._seconds[items - 1]
            if all(item.deadline >= done for item in queue[position : position + items]):
                return Choice(items, inf, range(position))
        return Choice(refused=range(len(queue)))


def _late(now: float, queue: Sequence[Item]) -> list[int]:
    """Return the indices of the items whose deadline has passed."""
    return [position for position, item in enumerate(queue) if item.deadline < now]


CONVOY = "Convoy"

# (L(1..max_batch) in seconds, latency objective in seconds, seed, engines) → a scheduler in its
# first state
SCHEDULERS: Mapping[str, Callable[[Sequence[float], float, int, int], Scheduler]] = {
    CONVOY: lambda seconds, _, seed, engines: Convoy(
        *(measured(seconds, seed + engine) for engine in range(engines))
    ),
    "delay 0": lambda seconds, *_: FixedDelay(len(seconds), 0.0),
    "delay 1 ms": lambda seconds, *_: FixedDelay(len(seconds), 0.001),
    "delay 5 ms": lambda seconds, *_: FixedDelay(len(seconds), 0.005),
    "Triton": lambda seconds, *_: TritonDefault(len(seconds)),
    "Clipper": lambda seconds, objective, *_: Clipper(len(seconds), objective),
    "Nexus": lambda seconds, objective, *_: Nexus(seconds, objective),
}


def measured(seconds: Sequence[float], seed: int, noise: float = 0.03) -> Latency:
    """Return the latencies that warming up would have measured, including noise."""
    draw = Random(seed)
    return measure(
        lambda n: seconds[n - 1] * draw.lognormvariate(0, noise), len(seconds), budget_s=inf
    )
