"""Limits requests that need no model to one per iteration of the event loop.

Such a request, over HTTP or gRPC, is named a call here; an example is a request for a list of
models. A call may block the loop for a millisecond. If sixteen connections began calls in the same
iteration, they would delay all other requests by sixteen milliseconds. A loop that is busy with
calls would also keep the interpreter's lock from the threads that decode and run images. So each
call is followed by a pause if any model has requests.

A client may close its connection before the answer to its call, or after a refusal, and connect
again. Such a client must not get more calls than others. So the first bytes of its next connection
wait in the queue like a call. Over gRPC, the client's next request waits instead.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

Begin = Callable[[], object]

PAUSE_S = 0.004
"""Seconds between two calls while models have requests: calls get a sixth of the loop then."""

# The most turns that a client owes, and the most clients that owe any.
_MOST_OWED, _MOST_CLIENTS = 512, 1024


@dataclass(eq=False, slots=True)
class Turn:
    """Holds a call that waits in the queue."""

    begin: Begin | None  # None once it has begun, or is withdrawn

    def withdraw(self) -> None:
        """Cancel the call, if it has not begun."""
        self.begin = None


class CallTurns:
    """Queues calls, and begins them in an order that is fair to all clients. Used from one event
    loop."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        """`is_busy` returns whether models have requests."""
        self.is_busy = is_busy
        self._waiting: dict[str, deque[Turn]] = {}  # in the order of turns
        self._paused = False
        self.owed: Counter[str] = Counter()  # turns by client

    def owe(self, client: str) -> None:
        """Note that the client's last request was refused, or that its last connection ended before
        the answer. The client's next connection then waits in the queue. Over gRPC, the client's
        next request waits."""
        if len(self.owed) >= _MOST_CLIENTS:
            self.owed.clear()
        self.owed[client] = min(_MOST_OWED, self.owed[client] + 1)

    def pay(self, client: str) -> bool:
        """Return whether the client's new connection must wait in the queue, because `owe` was
        called for this client. Over gRPC, the new request must wait. Each call of `owe` makes the
        client wait once."""
        if client not in self.owed:
            return False
        self.owed[client] -= 1
        if not self.owed[client]:
            del self.owed[client]
        return True

    def post(self, client: str, begin: Begin) -> Turn:
        """Put a call of this client in the queue, and run `begin` when it is the call's turn. If no
        other call waits or has just begun, run `begin` at once."""
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
        """Return the function that begins the next call, or None if no call waits. Withdrawn calls
        are removed."""
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
