"""Queues requests, and divides the engines fairly among clients. The requests of one client are
served in the order in which they are due.

If the next requests of all clients have the same priority, the client with the least service is
next (`service/fair_queue.py`). If the priorities differ, the request that is due first is next. For
this comparison, a request counts as if it had arrived no earlier than its client was last served.
Otherwise, a client with old requests would always be served before the others.
"""

import asyncio
from bisect import insort_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from service.batching.policy import NO_HURRY, Claim, Urgency, due
from service.errors import ServiceError
from service.fair_queue import Client, FairQueue, Line

T = TypeVar("T")
R = TypeVar("R")

_due = attrgetter("due")

# How many items of the next lower priority weigh as much as one item. It is more items than can
# wait.
_LEVEL = 1e6


class BatchResult(NamedTuple, Generic[R]):
    """Holds a request's results in the order of its items, and facts about its last batch."""

    results: list[R]
    batch_size: int  # items in that batch, of all requests
    queue_s: float  # from when the request was posted until it was dispatched
    compute_s: float  # from its dispatch to its results


class BatchRecord(NamedTuple):
    """Holds facts about one batch that ended, for metrics."""

    size: int
    compute_s: float
    failed: bool


# Called in the event loop with the outcome: once, unless the request is withdrawn.
OnOutcome = Callable[[BatchResult[R] | ServiceError], None]


@dataclass(eq=False, slots=True)
class Posted(Generic[T, R]):
    """Holds a request in the queue. Its items are dispatched in order, possibly in several
    batches."""

    waiting: "Backlog[T, R]"
    items: tuple[T, ...]
    submitted: float  # clock seconds
    then: OnOutcome[R] | None  # None once it was called, or is withdrawn
    client: Client
    due: float  # clock seconds, see `service/batching/policy.py`
    urgency: Urgency
    left: int  # items that wait
    cost: float = 1.0  # of an item, in usual items: how much it counts when clients take turns
    parts: dict[int, list[R]] = field(default_factory=dict)  # see `gather`

    def gather(self, first: int, results: list[R]) -> list[R]:
        """Store the results of consecutive items, from item `first` on. Return the results of all
        items once they are complete, and an empty list until then.

        The parts of a request may run on several engines, and end in any order.
        """
        self.parts[first] = results
        if sum(map(len, self.parts.values())) < len(self.items):
            return []
        return [result for _, part in sorted(self.parts.items()) for result in part]

    def withdraw(self) -> None:
        """Drop the request's items that are not yet in a batch. `then` is never called."""
        self.then = None
        self.waiting.leave(self)

    def fail(self, failure: ServiceError) -> None:
        """Drop the request's items that are not yet in a batch, and call `then` with a failure."""
        self.waiting.leave(self)
        self.tell(failure)

    def tell(self, outcome: BatchResult[R] | ServiceError) -> None:
        """Call `then` with the outcome, unless it was called before or the request was
        withdrawn."""
        then, self.then = self.then, None
        if then is not None:
            call_safely(then, outcome)


# The part of a request that is in a batch: the request, the first item and the number of items.
Part = tuple[Posted[T, R], int, int]


@dataclass(eq=False, slots=True)
class Batch(Generic[T, R]):
    """Holds the items of a batch, and which items belong to which request."""

    dispatched: float  # clock seconds
    items: list[T]
    parts: list[Part[T, R]]

    def tell(self, results: list[R], compute_s: float) -> None:
        """Store the results in their requests, and call `then` of the requests that are now
        complete."""
        begins, size = 0, len(self.items)
        for request, first, count in self.parts:
            own = results[begins : begins + count]
            begins += count
            if count == len(request.items) or (own := request.gather(first, own)):
                queue_s = self.dispatched - request.submitted
                request.tell(BatchResult(own, size, queue_s, compute_s))


# Consecutive items of a request.
Stretch = tuple[Posted[T, R], int]


class Backlog(Generic[T, R]):
    """Holds the requests that have waiting items, and decides in which order they are served."""

    def __init__(self) -> None:
        self._queue: FairQueue[Posted[T, R]] = FairQueue(_due_by_turns)
        # While only one client waits, its requests are here in order, because the queue takes
        # longer. Only the first of them may have a deadline or a priority.
        self._alone: list[Posted[T, R]] = []
        self._taken = 0.0  # when the last of them was, in clock seconds
        self.deadlines = 0  # requests that have one
        self.depth = 0  # items

    def __bool__(self) -> bool:
        return self.depth > 0

    def all(self) -> Sequence[Posted[T, R]]:
        """Return all requests. The requests of each client are in order."""
        self._join()
        return [request for line in self._queue.lines() for request in line.entries]

    def ahead_of(self, items: int, client: Client, due: float, urgency: Urgency, spare: int) -> int:
        """Return how many items would be served before the last of `items` new items, which are due
        at the time `due`.

        If no other client waits, up to `spare` of the client's own items with deadlines are not
        counted, because the policy may refuse them in favour of the new items.
        """
        if not self.depth:
            return 0
        self._join()
        level, lines = urgency.level, list(self._queue.lines())
        mine = [line for line in lines if line.client.name == client.name]
        earlier = [request for line in mine for request in line.entries if request.due <= due]
        own = sum(request.left for request in earlier)
        if mine == lines:
            refusable = (
                request.left
                for request in earlier
                if request.urgency.level == level and request.urgency.deadline < inf
            )
            own -= min(spare, sum(refusable))
        better = sum(line.size for line in lines if line.level < level)
        alike = sum(
            min(line.size, ceil(share / line.entries[0].cost))
            for line, share in self._queue.ahead(client, own + items - 1)
            if line.level == level
        )
        return int(own + better + alike)

    def enter(self, request: Posted[T, R]) -> int:
        """Insert a request behind the requests of the same client that are due earlier or at the
        same time.

        Returns the number of this client's items that now wait.
        """
        alone = self._alone
        if not self.depth or (alone and _goes_behind(alone[-1], request)):
            alone.append(request)
            self.depth += request.left
            self.deadlines += request.urgency.deadline < inf
            return self.depth
        self._join()
        self.depth += request.left
        self.deadlines += request.urgency.deadline < inf
        return self._add(request)

    def _join(self) -> None:
        """Move requests from the list for a single client into the fair queue of all clients."""
        if self._alone:
            requests, self._alone = self._alone, []
            for request in requests:
                self._add(request)
            line = self._queue.line(requests[0].client)
            line.since = max(line.since, self._taken)

    def _add(self, request: Posted[T, R]) -> int:
        line = self._queue.line(request.client)
        entries = line.entries
        if not entries or entries[-1].due <= request.due:
            entries.append(request)
        else:
            insort_right(entries, request, key=_due)
        if entries[0] is request:
            if len(entries) == 1:
                line.since = request.submitted
            self._queue.place(line, request.urgency.level)
        line.size += request.left
        return int(line.size)

    def leave(self, request: Posted[T, R]) -> None:
        """Remove the items of a request that are not yet in a batch."""
        if request.left:
            self._join()
            line = self._queue.line(request.client)
            first = line.entries.index(request)
            del line.entries[first]
            line.size -= request.left
            self.deadlines -= request.urgency.deadline < inf
            self.depth -= request.left
            request.left = 0
            if not first:
                self._queue.place(line, _level(line))

    def take(self, limit: int, now: float) -> Batch[T, R]:
        """Take up to `limit` items in the fair order, and return them as a batch."""
        items: list[T] = []
        parts: list[Part[T, R]] = []
        counts = self._counts(min(limit, self.depth), now)
        for request, count in counts.items():
            first = len(request.items) - request.left
            items += request.items[first : first + count]
            parts.append((request, first, count))
            request.left -= count
            self.depth -= count
            if not request.left:
                self.deadlines -= request.urgency.deadline < inf
        return Batch(now, items, parts)

    def _counts(self, limit: int, now: float) -> dict[Posted[T, R], int]:
        """Choose the next `limit` items, and return how many of them belong to each request.
        Requests without further items leave the queue."""
        counts: dict[Posted[T, R], int] = {}
        if alone := self._alone:
            for request in alone:
                counts[request] = count = min(limit, request.left)
                limit -= count
                if not limit:
                    break
            del alone[: len(counts) - (count < request.left)]
            self._taken = now
            return counts
        for request, count in _stretches(self._queue, limit, now):
            counts[request] = counts.get(request, 0) + count
        return counts

    def in_order(self, now: float) -> Sequence[Stretch[T, R]]:
        """Return all waiting items in the order in which they will be served if no further items
        arrive."""
        self._join()
        return list(_stretches(self._queue.copy(), self.depth, now))

    def claims(self, now: float) -> Sequence[Claim]:
        """Return a `Claim` for each run of consecutive items of one request, in the order of
        service. Return an empty sequence if no request has a deadline.

        A client's weight is divided among its waiting items, so that a client gains nothing by
        sending more. An item of a higher priority weighs more than all items of lower priorities.
        """
        if not self.deadlines:
            return ()
        self._join()
        sizes = {line.client.name: line.size for line in self._queue.lines()}
        numbers: dict[Posted[T, R], int] = {}
        so_far: dict[Posted[T, R], int] = {}
        claims = []
        for request, count in self.in_order(now):
            number = numbers.setdefault(request, len(numbers))
            so_far[request] = so_far.get(request, 0) + count
            weight = _LEVEL**-request.urgency.level / sizes[request.client.name]
            claims.append(Claim(count, request.urgency.deadline, number, so_far[request], weight))
        return claims


def call_safely(then: Callable[[Any], None], outcome: Any) -> None:
    """Call a callback with an outcome. An exception that the callback raises is logged and not
    raised to the caller."""
    try:
        then(outcome)
    except Exception as error:  # noqa: BLE001  the event loop logs it
        context = {"message": f"{then} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


def _goes_behind(last: Posted[T, R], request: Posted[T, R]) -> bool:
    """Return whether a request can be appended directly behind the request `last`, which has the
    same client and is not served later. Requests with a deadline or a priority are never appended.
    """
    return (
        request.urgency is NO_HURRY
        and request.client.name == last.client.name
        and last.due <= request.due
    )


def _stretches(queue: FairQueue[Posted[T, R]], limit: int, now: float) -> Iterator[Stretch[T, R]]:
    """Yield the next `limit` items in the order of service, as pairs of a request and a number of
    consecutive items.

    A request may appear in several pairs. The items are removed from `queue`, but the requests do
    not change.
    """
    left: dict[Posted[T, R], int] = {}  # of those that are served in part
    while limit > 0:
        line, worth = queue.next()
        entries, served, items = line.entries, 0.0, 0
        while limit > 0 and served < worth and entries and entries[0].urgency.level == line.level:
            request = entries[0]
            rest = left.get(request, request.left) if left else request.left
            fitting = min(rest, limit, (worth - served) / request.cost)
            count = max(1, int(fitting))
            yield request, count
            limit -= count
            served += count * request.cost
            items += count
            if count == rest:
                del entries[0]
            else:
                left[request] = rest - count
        line.size -= items
        line.since = now
        queue.served(line, served, items)
        queue.place(line, _level(line))


def _level(line: Line[Posted[T, R]]) -> int:
    return line.entries[0].urgency.level if line.entries else 0


def _due_by_turns(line: Line[Posted[T, R]]) -> float:
    """Return when a client's first request is due. If the client was served after this request
    arrived, count from that time instead of the arrival."""
    head = line.entries[0]
    return due(max(head.submitted, line.since), head.urgency)
