"""Queues function calls of many clients for the threads of a pool.

    post ── the client's queue ── memory and a thread are free ── a thread ── then

Clients share the threads fairly: `service/fair_queue.py` adds up the expected seconds of each
client's calls, and decides which client is next. The calls of one client begin in the order of
`post`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import call
from typing import Any, NamedTuple, TypeVar

from service.engine.threads import OnDone, ThreadPool, promised
from service.fair_queue import ANYONE, Client, FairQueue

R = TypeVar("R")

# The least seconds that any work counts when clients take turns.
_LEAST_S = 0.0001


class Cost(NamedTuple):
    """Holds the estimated memory and time of one function call, such as decoding an image. The
    memory of the call's input is not included."""

    bytes: int = 0
    seconds: float = 0.0  # of one core


@dataclass(eq=False, slots=True)
class Work:
    """Holds a function call that waits for a thread or is running."""

    lane: "Lane"
    client: Client
    cost: Cost
    function: Callable[[], Any]
    then: OnDone[Any] | None  # None once it is withdrawn
    begun: bool = False  # or removed from its line

    def withdraw(self) -> None:
        """Cancel the call if it has not begun. Otherwise, discard its result."""
        self.then = None
        if not self.begun:
            self.begun = True
            self.lane.leave(self)

    def run(self) -> Any:
        """Call the function in the current thread, unless it was withdrawn."""
        if self.then is None:
            return None
        return self.lane.call(self.function, self.cost.bytes)


Call = Callable[[Callable[[], Any], int], Any]
"""Calls a function that takes at most the given number of bytes of memory."""


def here(function: Callable[[], Any], _: int) -> Any:
    """Call the function in the current thread."""
    return function()


@dataclass(eq=False, slots=True)
class Lane:
    """Queues function calls for the threads of a pool, and divides the threads fairly among
    clients. Not thread-safe: use it from one event loop."""

    pool: ThreadPool
    threads: int  # of the pool
    has_room: Callable[[Cost], bool] | None = None  # for this cost; None: if a thread is free
    call: Call = here  # how a thread does the work
    patience_s: float = inf
    shared: bool = False  # one client leaves a thread to others
    on_end: Callable[[], None] = lambda: None  # called when there may be room again
    clients: Counter[str] = field(default_factory=Counter)  # whose work runs
    waiting: FairQueue[Work] = field(default_factory=FairQueue)
    running: int = 0
    bytes: float = 0  # of what runs
    seconds: float = 0.0

    def post(
        self, cost: Cost, function: Callable[[], R], then: OnDone[R], client: Client = ANYONE
    ) -> Work | None:
        """Queue the function, and call it in a thread when the client is next. Then call `then`
        with the outcome, in the event loop. If the pool has no threads, make both calls immediately
        and return None."""
        if not self.threads:
            self.pool.post(call, function, then)
            return None
        work = Work(self, client, cost, function, then)
        if not self.waiting and self._may_begin(work):
            self._begin(work)
            return work
        line = self.waiting.line(client)
        line.entries.append(work)
        line.size += cost.seconds
        if len(line.entries) == 1:
            self.waiting.place(line)
            self.go_on()
        return work

    def run(self, cost: Cost, function: Callable[[], R], client: Client) -> "asyncio.Future[R]":
        """Queue a function like `post`, but return a future. Cancelling the future withdraws the
        function."""
        return promised(lambda then: self.post(cost, function, then, client))

    def leave(self, work: Work) -> None:
        """Remove work that has not begun from the queue."""
        line = self.waiting.line(work.client)
        line.entries.remove(work)
        line.size -= work.cost.seconds
        self.waiting.place(line)
        self.go_on()

    def ahead_s(self, client: Client) -> float:
        """Return the estimated seconds of all calls that run now or begin before this client's next
        call, on one core."""
        own = self.waiting.size(client)
        others = sum(
            min(line.size, share + line.entries[0].cost.seconds)
            for line, share in self.waiting.ahead(client, own)
        )
        return self.seconds + own + others

    def go_on(self) -> None:
        """Begin queued calls, in the fair order, until the pool can take no more."""
        while self.waiting:
            line, _ = self.waiting.next()
            if not self._may_begin(line.entries[0]):
                others = [one for one in self.waiting.lines() if not self.clients[one.client.name]]
                line = min(others, key=lambda one: one.service, default=line)
            work = line.entries[0]
            if not self._may_begin(work):
                return
            del line.entries[0]
            line.size -= work.cost.seconds
            self.waiting.served(line, max(work.cost.seconds, _LEAST_S))
            self.waiting.place(line)
            self._begin(work)

    def _may_begin(self, work: Work) -> bool:
        if self.shared and self.clients[work.client.name] >= max(1, self.threads - 1):
            return False
        return self.running < self.threads if self.has_room is None else self.has_room(work.cost)

    def _begin(self, work: Work) -> None:
        cost = work.cost
        work.begun = True
        self.running += 1
        self.clients[work.client.name] += 1
        self.bytes += cost.bytes
        self.seconds += cost.seconds
        self.pool.post(Work.run, work, partial(self._ended, work))

    def _ended(self, work: Work, result: Any, error: Exception | None) -> None:
        cost = work.cost
        self.running -= 1
        self.clients[work.client.name] -= 1
        self.clients += Counter()  # forgets those that have none
        self.bytes -= cost.bytes
        self.seconds = self.seconds - cost.seconds if self.running else 0.0
        then, work.then = work.then, None
        try:
            if then is not None:
                then(result, error)
        finally:
            self.on_end()
            self.go_on()
