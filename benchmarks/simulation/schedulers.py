"""Contains three schedulers to compare. One of them runs Convoy's batching policy, with the code of
the server."""

from collections.abc import Sequence
from math import inf
from random import Random

from benchmarks.simulation.bounds import DEPTH, poisson
from benchmarks.simulation.server import Choice, Item
from service.batching.dispatcher import Dispatcher
from service.batching.latency import Latency, measure
from service.batching.policy import Claim, due


class Convoy:
    """Runs the server's batching policy. Orders the queue like the server's batcher."""

    def __init__(self, *latencies: Latency) -> None:
        """Create a scheduler. `latencies` has L(n), the time of a batch of n, for each engine."""
        self._dispatcher = Dispatcher(*latencies)
        self._deadlines = 0

    def position(self, now: float, item: Item, queue: Sequence[Item]) -> int | None:
        """Return the index at which the item joins the queue, which is sorted by due time. Return
        None if the item cannot meet its deadline."""
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
    """Serves requests in the order of arrival, and admits all requests. Does not learn from earlier
    batches."""

    def __init__(self, max_batch: int) -> None:
        self._max_batch = max_batch

    def position(self, _: float, __: Item, queue: Sequence[Item]) -> int | None:
        """Return the index of the queue's end."""
        return len(queue)

    def dispatched(self, now: float, items: int, engine: int) -> None:
        """Do nothing."""

    def answered(self, now: float, waiting: int, engine: int) -> None:
        """Do nothing."""


class AtOnce(_Fifo):
    """Dispatches all waiting items at once, up to the largest batch. Other servers do this by
    default."""

    def decide(self, _: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Dispatch all waiting items that fit into a batch."""
        return Choice() if engine is None else Choice(min(self._max_batch, len(queue)))


class Planned(_Fifo):
    """Follows a plan that bounds.py computed for Poisson arrivals at a given rate: the plan with
    the lowest mean latency."""

    def __init__(self, seconds: Sequence[float], rate: float) -> None:
        super().__init__(len(seconds))
        _, self._sizes = poisson(tuple(seconds), rate)
        self._end_s = 20 / rate  # after this time without an arrival, no more are expected

    def decide(self, now: float, queue: Sequence[Item], engine: int | None) -> Choice:
        """Dispatch the number of items that the plan has for the current number of waiting items.
        If this number is 0, wait for an arrival."""
        if engine is None:
            return Choice()
        end = queue[-1].arrived + self._end_s
        size = self._sizes[min(len(queue), DEPTH)]
        return Choice(size if now < end else min(self._max_batch, len(queue)), end)


def measured(seconds: Sequence[float], seed: int, noise: float = 0.03) -> Latency:
    """Return the batch latencies that a server would measure when it starts: L(n) with random
    noise."""
    draw = Random(seed)
    return measure(
        lambda n: seconds[n - 1] * draw.lognormvariate(0, noise), len(seconds), budget_s=inf
    )
