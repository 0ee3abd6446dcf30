"""Limits requests that need no model to one per iteration of the event loop.

Such a request, over HTTP or gRPC, is named a call here. An example is a request for the list of
models. A call may block the loop for a millisecond. If sixteen connections began calls in the same
iteration, they would delay all other requests by sixteen milliseconds. While calls run, the loop
also keeps the interpreter's lock from the threads that decode and run images. So if any model has
requests, a pause follows each call.

A client may close its connection before its call is answered, or after a refusal, and connect
again. Such a client must not get more calls than others. So its next connection waits in the queue
of calls before it is read. Over gRPC, the client's next request waits instead.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

Begin = Callable[[], object]

PAUSE_S = 0.004
"""Seconds between two calls while models have requests. Calls then take a sixth of the loop's
time."""

# The most turns that a client owes, and the most clients that owe any.
_MOST_OWED, _MOST_CLIENTS = 512, 1024


@dataclass(eq=False, slots=True)
class Turn:
    """A call that waits in the queue."""

    begin: Begin | None  # None once it has begun, or is withdrawn

    def withdraw(self) -> None:
        """Cancel the call, if it has not begun."""
        self.begin = None


class CallTurns:
    """A queue of calls that is fair to all clients. Not thread-safe."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        """`is_busy` returns whether any model has requests in progress."""
        self.is_busy = is_busy
        self._waiting: dict[str, deque[Turn]] = {}  # in the order of turns
        self._paused = False
        self.owed: Counter[str] = Counter()  # turns by client

    def owe(self, client: str) -> None:
        """Record that the client's last request was refused, or that its last connection ended
        before the answer. The client's next connection then waits in the queue. Over gRPC, its next
        request waits."""
        if len(self.owed) >= _MOST_CLIENTS:
            self.owed.clear()
        self.owed[client] = min(_MOST_OWED, self.owed[client] + 1)

    def pay(self, client: str) -> bool:
        """Return whether the client's new connection, or over gRPC its new request, must wait in
        the queue. For each earlier `owe`, one call of `pay` returns True."""
        if client not in self.owed:
            return False
        self.owed[client] -= 1
        if not self.owed[client]:
            del self.owed[client]
        return True

    def post(self, client: str, begin: Begin) -> Turn:
        """Add a call of this client to the queue. `begin` is called when the call may start: at
        once if no other call waits or has just begun."""
        turn = Turn(begin)
        self._waiting.setdefault(client, deque()).append(turn)
        if not self._paused:
            self._next()
        return turn

    async def wait(self, client: str) -> None:
        """Wait in the queue until the client may begin a call."""
        come = asyncio.Event()
        turn = self.post(client, come.set)
        try:
            await come.wait()
        finally:
            turn.withdraw()

    def _next(self) -> None:
        begin = self._take()
        self._paused = begin is not None
        if begin is None:
            return
        loop = asyncio.get_running_loop()
        if self.is_busy():
            loop.call_later(PAUSE_S, self._next)
        else:
            loop.call_soon(self._next)
        begin()

    def _take(self) -> Begin | None:
        """Remove the next call from the queue, and return the function that begins it. Skip
        withdrawn calls. Return None if no call waits."""
        while self._waiting:
            client, calls = next(iter(self._waiting.items()))
            turn = calls.popleft()
            begin, turn.begin = turn.begin, None
            if begin is not None or not calls:
                del self._waiting[client]
            if begin is not None:
                if calls:
                    self._waiting[client] = calls  # behind those of other clients
                return begin
        return None
