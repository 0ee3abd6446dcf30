"""Begins calls that the application answers, one in each turn of the event loop.

Such a call takes up to a millisecond of the loop. Those of sixteen connections, all begun in one
turn, would hold up a request to a model by sixteen at each of its steps.
"""

import asyncio
from collections import deque
from collections.abc import Callable

Begin = Callable[[], None]


class CallTurns:
    """Queues calls by client; clients take turns. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Begin]] = {}  # the client that goes next first
        self._busy = False

    def post(self, client: str, begin: Begin) -> None:
        """Call `begin` in the client's turn, now if no other call waits or has just begun."""
        self._waiting.setdefault(client, deque()).append(begin)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if not self._busy:
            return
        asyncio.get_running_loop().call_soon(self._next)
        client, calls = next(iter(self._waiting.items()))
        begin = calls.popleft()
        del self._waiting[client]
        if calls:
            self._waiting[client] = calls
        begin()
