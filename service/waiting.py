"""Who waits, in the order in which they are due."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Generic, TypeVar

from service.policy import Claim, due

T = TypeVar("T")
A = TypeVar("A")


@dataclass(eq=False, slots=True)
class Request(Generic[T, A]):
    """One submit. Its items are dispatched in order; `answers` are those of the first of them."""

    items: tuple[T, ...]
    submitted: float  # clock seconds
    outcome: "asyncio.Future[list[A]]"
    deadline: float = inf
    priority: int = 0
    due: float = field(init=False)
    dispatched: int = 0  # how many of the items, from the front
    answers: list[A] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.due = due(self.submitted, self.deadline, self.priority)

    @property
    def left(self) -> int:
        """How many items are not dispatched yet."""
        return len(self.items) - self.dispatched


class Waiting(Generic[T, A]):
    """Requests with items not dispatched yet: a queue by due moment, left from anywhere."""

    __slots__ = ("_deadlines", "_requests", "depth")

    def __init__(self) -> None:
        self._requests: list[Request[T, A]] = []
        self._deadlines = 0  # how many of them have one
        self.depth = 0  # items

    def __bool__(self) -> bool:
        return bool(self._requests)

    def all(self) -> Sequence[Request[T, A]]:
        """Everybody, in order."""
        return tuple(self._requests)

    def ahead_of(self, request: Request[T, A]) -> int:
        """How many items would go before a request that is not in yet."""
        return sum(other.left for other in self._requests if other.due <= request.due)

    def enter(self, request: Request[T, A]) -> None:
        """Put a request behind all that are due no later."""
        requests = self._requests
        if not requests or requests[-1].due <= request.due:
            requests.append(request)
        else:
            # From the right: equals stay in the order of their arrival.
            requests.insert(self._place(request.due, after=True), request)
        self.depth += request.left
        self._deadlines += request.deadline < inf

    def leave(self, request: Request[T, A]) -> None:
        """Take what is left of a request out, if anything is in."""
        requests = self._requests
        place = self._place(request.due, after=False)
        while place < len(requests) and requests[place].due == request.due:
            if requests[place] is request:
                del requests[place]
                self.depth -= request.left
                self._deadlines -= request.deadline < inf
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
            first = request.dispatched
            taken = request.items[first : first + most - len(items)]
            items += taken
            parts.append((request, len(taken)))
            request.dispatched += len(taken)
            self.depth -= len(taken)
            if not request.left:
                del self._requests[0]
                self._deadlines -= request.deadline < inf
        return items, parts

    def claims(self) -> tuple[Sequence[Request[T, A]], Sequence[Claim]]:
        """Everybody who is not cancelled, and what they want; nobody where none has a deadline."""
        if not self._deadlines:
            return (), ()
        requests = [request for request in self._requests if not request.outcome.done()]
        return requests, [Claim(request.left, request.deadline) for request in requests]

    def _place(self, moment: float, *, after: bool) -> int:
        """Where requests due at `moment` begin, or end."""
        bisect = bisect_right if after else bisect_left
        return bisect(self._requests, moment, key=_due)


def _due(request: Request[Any, Any]) -> float:
    return request.due
