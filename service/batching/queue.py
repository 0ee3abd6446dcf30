"""The waiting requests, in the order in which they are due."""

from bisect import bisect_left, insort_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from service.batching.policy import Claim
from service.errors import ServiceError

T = TypeVar("T")
R = TypeVar("R")

_due = attrgetter("due")


class Answered(NamedTuple, Generic[R]):
    """A request's results, one an item, in order, and the times of its batch that ended last."""

    results: list[R]
    batch_size: int  # items in that batch, of all requests
    queue_s: float  # from when the request was posted until it was dispatched
    compute_s: float  # from then to its results


# Called in the event loop with the outcome: once, unless the request is withdrawn.
OnOutcome = Callable[[Answered[R] | ServiceError], None]


@dataclass(eq=False, slots=True)
class Request(Generic[T, R]):
    """A posted request. Its items are dispatched in order."""

    waiting: "Waiting[T, R]"
    items: tuple[T, ...]
    submitted: float  # clock seconds
    then: OnOutcome[R] | None  # None once it was called, or is withdrawn
    due: float  # clock seconds, see `service/batching/policy.py`
    deadline: float
    left: int  # items that wait
    parts: dict[int, list[R]] = field(default_factory=dict)  # see `gather`

    def gather(self, first: int, results: list[R]) -> list[R]:
        """Keep the results from item `first` on; returns all once they are complete, else none.

        Parts that run on several engines may end in any order.
        """
        self.parts[first] = results
        if sum(map(len, self.parts.values())) < len(self.items):
            return []
        return [each for _, part in sorted(self.parts.items()) for each in part]

    def withdraw(self) -> None:
        """Never call `then`; nor dispatch the items that wait."""
        self.then = None
        self.waiting.leave(self)


# What a batch has of a request: the first item and how many.
Part = tuple[Request[T, R], int, int]


class Waiting(Generic[T, R]):
    """Requests with items that are not dispatched: a queue by due moment."""

    def __init__(self) -> None:
        self._requests: list[Request[T, R]] = []
        self.deadlines = 0  # requests that have one
        self.depth = 0  # items

    def __bool__(self) -> bool:
        return bool(self._requests)

    def all(self) -> Sequence[Request[T, R]]:
        """The requests, in order."""
        return tuple(self._requests)

    def ahead_of(self, due: float) -> int:
        """How many items go before those of a request that comes now and is due then."""
        if not self._requests or self._requests[-1].due <= due:
            return self.depth
        return sum(request.left for request in self._requests if request.due <= due)

    def enter(self, request: Request[T, R]) -> None:
        """Insert a request behind those due no later."""
        insort_right(self._requests, request, key=_due)
        self.depth += request.left
        self.deadlines += request.deadline < inf

    def leave(self, request: Request[T, R]) -> None:
        """Remove what is left of a request, if anything."""
        if request.left:
            first = bisect_left(self._requests, request.due, key=_due)
            del self._requests[self._requests.index(request, first)]
            self.deadlines -= request.deadline < inf
            self.depth -= request.left
            request.left = 0

    def take(self, most: int) -> tuple[list[T], list[Part[T, R]]]:
        """Up to `most` items from the front, and which requests they are parts of."""
        items: list[T] = []
        parts: list[Part[T, R]] = []
        while self._requests and len(items) < most:
            request = self._requests[0]
            first = len(request.items) - request.left
            count = min(request.left, most - len(items))
            items += request.items[first : first + count]
            parts.append((request, first, count))
            request.left -= count
            self.depth -= count
            if not request.left:
                del self._requests[0]
                self.deadlines -= request.deadline < inf
        return items, parts

    def claims(self) -> Sequence[Claim]:
        """What the requests claim, in order; empty where none has a deadline."""
        if not self.deadlines:
            return ()
        return [Claim(request.left, request.deadline) for request in self._requests]
