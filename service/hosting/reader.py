"""Reads long bodies and creates long answers in threads; clients share the threads' time.

    post ── behind its client's other bodies ── its client's turn ── a thread ── then
                       └───── a pause as long as the last took ─────────┘

A reading thread takes a core, and often the interpreter's lock, from the threads that decode and
run the images of other clients. So while other clients send requests, each client's reading pauses
for as long as its last work took.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter, thread_time
from typing import Any, TypeVar

from service.engine.lane import Cost, Lane
from service.engine.threads import OnDone, promised
from service.fair_queue import Client

T = TypeVar("T")

# What a thread has to do counts as one turn of its client, however long it takes.
_TURN = Cost()

# For so long after its last request a client counts as one that asks.
_RECENT_S = 1.0


@dataclass(eq=False, slots=True)
class Reading:
    """Holds a function that reads a body or creates an answer."""

    read: Callable[[], Any] | None  # None once it is withdrawn, or done
    then: OnDone[Any]
    took_s: float = 0.0  # of a core

    def withdraw(self) -> None:
        """Discard the result, and do not begin the work if it has not begun."""
        self.read = None

    def run(self) -> Any:
        """Call the function in a thread, unless the work is withdrawn."""
        read = self.read
        if read is None:
            return None
        started = thread_time()
        try:
            return read()
        finally:
            self.took_s = thread_time() - started


class Reader:
    """Lets the clients of all models take turns for a lane's threads; used from one event loop."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self._lines: dict[str, deque[Reading]] = {}  # of each client one of whose is read, or rests
        self._followed: deque[Reading] | None = None  # the line of the one that has just been read
        # Who asked last and when, and when a client asked last that is another.
        self._last, self._last_at, self._other_at = "", -_RECENT_S, -_RECENT_S

    def asked(self, client: str, now: float) -> None:
        """Note that a client sent a request; `now` is a time of the performance counter."""
        if client != self._last:
            self._last, self._other_at = client, self._last_at
        self._last_at = now

    def post(self, read: Callable[[], T], then: OnDone[T], client: Client) -> Reading | None:
        """Call `read` in a thread when the client's turn comes, then `then` with the outcome in the
        event loop. Return None if both calls have been made already.

        Work that `then` posts for the same client goes first, because it is another step of the
        same request.
        """
        reading = Reading(read, then)
        line = self._lines.get(client.name)
        if line is None:
            self._lines[client.name] = deque()
            self._begin(client, reading)
        elif line is self._followed:
            line.appendleft(reading)
        else:
            line.append(reading)
        return None if reading.read is None else reading

    def run(self, read: Callable[[], T], client: Client) -> "asyncio.Future[T]":
        """Post work like `post`, but return a future; cancelling the future withdraws the work."""
        return promised(lambda then: self.post(read, then, client))

    def _begin(self, client: Client, reading: Reading) -> None:
        self.lane.post(_TURN, reading.run, partial(self._ended, client, reading), client)

    def _ended(
        self, client: Client, reading: Reading, result: Any, error: Exception | None
    ) -> None:
        wanted, reading.read = reading.read is not None, None
        self._followed = self._lines[client.name]
        try:
            if wanted:
                reading.then(result, error)
        finally:
            self._followed = None
            if self._is_shared(client.name):
                asyncio.get_running_loop().call_later(reading.took_s, self._next, client)
            else:
                self._next(client)

    def _next(self, client: Client) -> None:
        line = self._lines[client.name]
        while line:
            reading = line.popleft()
            if reading.read is not None:
                self._begin(client, reading)
                return
        del self._lines[client.name]

    def _is_shared(self, client: str) -> bool:
        """Return whether another client has sent a request recently."""
        asked_at = self._other_at if client == self._last else self._last_at
        return perf_counter() - asked_at < _RECENT_S
