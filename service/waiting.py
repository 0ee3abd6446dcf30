"""Who waits, in the order in which they are due."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from service.policy import Claim

T = TypeVar("T")
A = TypeVar("A")


@dataclass(eq=False, slots=True)
class Request(Generic[T, A]):
    """One submit. Its items are dispatched in order; `answers` are those of the first of them."""

    items: tuple[T, ...]
    submitted: float  # clock seconds
    outcome: "asyncio.Future[list[A]]"
    due: float  # clock seconds, see `service/policy.py`
    deadline: float
    left: int  # how many of the items are not dispatched yet
    answers: list[A] = field(default_factory=list)


class Waiting(Generic[T, A]):
    """Requests with items not dispatched yet: a queue by due moment, left from anywhere."""

    __slots__ = ("_requests", "deadlines", "depth")

    def __init__(self) -> None:
        self._requests: list[Request[T, A]] = []
        self.deadlines = 0  # requests that have one
        self.depth = 0  # items

    def __bool__(self) -> bool:
        return bool(self._requests)

    def all(self) -> Sequence[Request[T, A]]:
        """Everybody, in order."""
        return tuple(self._requests)

    def ahead_of(self, due: float) -> int:
        """How many items would go before a request that came now and were due then."""
        if not self._requests or self._requests[-1].due <= due:
            return self.depth
        return sum(request.left for request in self._requests if request.due <= due)

    def enter(self, request: Request[T, A]) -> None:
        """Put a request behind all that are due no later."""
        requests = self._requests
        if not requests or requests[-1].due <= request.due:
            requests.append(request)
        else:
            # From the right: equals stay in the order of their arrival.
            requests.insert(self._place(request.due, after=True), request)
        self.depth += request.left
        self.deadlines += request.deadline < inf

    def leave(self, request: Request[T, A]) -> None:
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

    def take(self, most: int) -> tuple[list[T], list[tuple[Request[T, A], int]]]:
        """Up to `most` items from the front, and from which requests how many of them came."""
        items: list[T] = []
        parts: list[tuple[Request[T, A], int]] = []
        while self._requests and len(items) < most:
            request = self._requests[0]
            if request.outcome.done():
                # Cancelled in this very turn of the event loop, so `submit` has not yet run on.
                self.leave(request)
                continue
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

    def claims(self) -> tuple[Sequence[Request[T, A]], Sequence[Claim]]:
        """Everybody who is not cancelled, and what they want; nobody where none has a deadline."""
        if not self.deadlines:
            return (), ()
        requests = [request for request in self._requests if not request.outcome.done()]
        return requests, [Claim(request.left, request.deadline) for request in requests]

    def _place(self, moment: float, *, after: bool) -> int:
        """Where requests due at `moment` begin, or end."""
        bisect = bisect_right if after else bisect_left
        return bisect(self._requests, moment, key=_due)


def _due(request: Request[Any, Any]) -> float:
    return request.due
