"""Who waits, in the order in which they are due."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from service.batching.policy import Claim
from service.errors import ServiceError

T = TypeVar("T")
R = TypeVar("R")


class Answered(NamedTuple, Generic[R]):
    """What became of a request: one result an item, in order, and how the last of them travelled.

    Batches run one after another, so the last item's wait covers the others'.
    """

    results: list[R]
    batch_size: int  # items in the last one's batch
    queue_s: float  # from when the request was posted until that batch was dispatched
    compute_s: float  # from then to its results


# Told in the event loop of an outcome: once, unless the request is withdrawn.
Then = Callable[[Answered[R] | ServiceError], None]


@dataclass(eq=False, slots=True)
class Request(Generic[T, R]):
    """What was posted. Its items are dispatched in order; `results` are those of the first."""

    waiting: "Waiting[T, R]"  # where it is while it waits
    items: tuple[T, ...]
    submitted: float  # clock seconds
    then: Then[R] | None  # None once it was told, or nobody wants to hear of it
    due: float  # clock seconds, see `service/batching/policy.py`
    deadline: float
    left: int  # how many of the items are not dispatched yet
    results: list[R] = field(default_factory=list)

    def withdraw(self) -> None:
        """Nobody wants to hear of it any longer: what of it is not dispatched yet never is."""
        self.then = None
        self.waiting.leave(self)


class Waiting(Generic[T, R]):
    """Requests with items not dispatched yet: a queue by due moment, left from anywhere."""

    __slots__ = ("_requests", "deadlines", "depth")

    def __init__(self) -> None:
        self._requests: list[Request[T, R]] = []
        self.deadlines = 0  # requests that have one
        self.depth = 0  # items

    def __bool__(self) -> bool:
        return bool(self._requests)

    def all(self) -> Sequence[Request[T, R]]:
        """Everybody, in order."""
        return tuple(self._requests)

    def ahead_of(self, due: float) -> int:
        """How many items would go before a request that came now and were due then."""
        if not self._requests or self._requests[-1].due <= due:
            return self.depth
        return sum(request.left for request in self._requests if request.due <= due)

    def enter(self, request: Request[T, R]) -> None:
        """Put a request behind all that are due no later."""
        requests = self._requests
        if not requests or requests[-1].due <= request.due:
            requests.append(request)
        else:
            # From the right: equals stay in the order of their arrival.
            requests.insert(self._place(request.due, after=True), request)
        self.depth += request.left
        self.deadlines += request.deadline < inf

    def leave(self, request: Request[T, R]) -> None:
        """Take what is left of a request out, if anything is in."""
        if not request.left:
            return
        requests = self._requests
        place = self._place(request.due, after=False)
        while place < len(requests) and requests[place].due == request.due:
            if requests[place] is request:
                del requests[place]
                self.depth -= request.left
                self.deadlines -= request.deadline < inf
                return
            place += 1

    def take(self, most: int) -> tuple[list[T], list[tuple[Request[T, R], int]]]:
        """Up to `most` items from the front, and from which requests how many of them came."""
        items: list[T] = []
        parts: list[tuple[Request[T, R], int]] = []
        while self._requests and len(items) < most:
            request = self._requests[0]
            count = min(request.left, most - len(items))
            if count == len(request.items):
                items += request.items
            else:
                first = len(request.items) - request.left
                items += request.items[first : first + count]
            parts.append((request, count))
            request.left -= count
            self.depth -= count
            if not request.left:
                del self._requests[0]
                self.deadlines -= request.deadline < inf
        return items, parts

    def claims(self) -> tuple[Sequence[Request[T, R]], Sequence[Claim]]:
        """Everybody, and what they want; nobody where none has a deadline."""
        if not self.deadlines:
            return (), ()
        requests = self.all()
        return requests, [Claim(request.left, request.deadline) for request in requests]

    def _place(self, moment: float, *, after: bool) -> int:
        """Where requests due at `moment` begin, or end."""
        bisect = bisect_right if after else bisect_left
        return bisect(self._requests, moment, key=_due)


def _due(request: Request[Any, Any]) -> float:
    return request.due
