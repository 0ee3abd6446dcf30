"""Begins calls that no model answers, one per turn of the event loop, in every protocol.

Such a call may block the loop for a millisecond. If sixteen connections began such calls in one
turn, a request to a model would be delayed by sixteen milliseconds at each of its steps. A loop
busy with such calls would also keep the interpreter's lock from the threads that decode and run
images. So each call is followed by a pause while models have requests.

A client that sends a request and then leaves causes as much work. Such a client owes a turn: the
first bytes of its next connection, or its next gRPC call, wait for that turn. If the client has
left again by then, nothing more is done.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

Begin = Callable[[], object]

PAUSE_S = 0.004
"""Seconds between two calls while models have requests: calls get a sixth of the loop then."""

# A call that takes longer than a quarter of that is followed by so many times as long.
_PAUSES = 4

# The most turns that a client owes; and the most clients of which that is known.
_MOST_OWED, _MOST_CLIENTS = 512, 1024


@dataclass(eq=False, slots=True)
class Turn:
    """Holds a call that waits for its turn."""

    begin: Begin | None  # None once it has begun, or is withdrawn

    def withdraw(self) -> None:
        """Cancel the call, if it has not begun."""
        self.begin = None


class CallTurns:
    """Queues calls by client; clients take turns. Used from one event loop."""

    def __init__(self, is_busy: Callable[[], bool] = lambda: False) -> None:
        """Take `is_busy`, which returns whether models have requests."""
        self.is_busy = is_busy
        self._waiting: dict[str, deque[Turn]] = {}  # the client that goes next first
        self._owed: Counter[str] = Counter()
        self._paused = False

    def owe(self, client: str) -> None:
        """Note that a client caused useless work, for which it owes a turn."""
        if len(self._owed) >= _MOST_CLIENTS:
            self._owed.clear()
        self._owed[client] = min(_MOST_OWED, self._owed[client] + 1)

    def pay(self, client: str) -> bool:
        """Return whether a client owes a turn, and count the turn as paid. The caller lets the
        client wait for PAUSE_S and a turn."""
        if client not in self._owed:
            return False
        self._owed[client] -= 1
        if not self._owed[client]:
            del self._owed[client]
        return True

    async def settle(self, client: str) -> None:
        """Wait for PAUSE_S and a turn if the client owes a turn."""
        if self.pay(client):
            await asyncio.sleep(PAUSE_S)
            await self.wait(client)

    def post(self, client: str, begin: Begin) -> Turn:
        """Call `begin` when the client's turn comes: at once if no other call waits or has just
        begun."""
        turn = Turn(begin)
        self._waiting.setdefault(client, deque()).append(turn)
        if not self._paused:
            self._next()
        return turn

    async def wait(self, client: str) -> None:
        """Wait for the client's turn."""
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
        started = thread_time()
        try:
            begin()
        finally:
            if self.is_busy():
                took_s = thread_time() - started
                loop.call_later(max(PAUSE_S, _PAUSES * took_s), self._next)
            else:
                loop.call_soon(self._next)

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
