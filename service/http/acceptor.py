"""Accepts the connections of a listening socket, a few in each iteration of the event loop.

    accept ─┬─ Connection
            └─ the client owes a turn ── wait for the turn ─┬─ Connection
                                                            └─ the client has left ── close

A client owes a turn if it has left before an answer, or after a refusal (`call_turns`). While its
next connection waits, nothing is read from the socket, and no `Connection` exists. So a client that
connects and leaves again and again costs little.
"""

import asyncio
import contextlib
import errno
import logging
import select
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial

from service.edge.call_turns import PAUSE_S, CallTurns
from service.edge.connections import network_of
from service.http.answer_queue import CONTINUE

# Connections that are opened at the same time: to open one takes 0.3 ms of the event loop's time.
_AT_ONCE = 4

MOST_WAITING = 128
"""The most connections that wait for a turn. If there are more, the client that has the most of
them loses its newest."""

_FULL_ANSWER = b'{"error": "too many connections of your address wait; try again in a second"}'
_REFUSAL = b"\r\n".join(
    [
        b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"content-length: %d" % len(_FULL_ANSWER),
        b"retry-after: 1",
        b"connection: close",
        b"",
        _FULL_ANSWER,
    ]
)

# Seconds without a new connection if the process may open no more files, as in asyncio.
_FULL_S = 1.0

_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ENDED = getattr(select, "POLLRDHUP", 0)  # what Linux reports if a client has ended its side
_PEEKED = 8192  # bytes of a request line and headers

_log = logging.getLogger("convoy")


class Acceptor:
    """Listens on a socket, and opens connections. Used from one event loop."""

    def __init__(
        self,
        listener: socket.socket,
        turns: CallTurns,
        make: Callable[[], asyncio.BaseProtocol],
        backlog: int,
    ) -> None:
        """Begin to listen. `make` returns the protocol of a new connection. The operating system
        queues at most `backlog` connections. Raises OSError if the address is in use."""
        self._listener = listener
        self._turns = turns
        self._make = make
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, str] = {}  # the clients that owe a turn
        self._by_client: Counter[str] = Counter()  # of those
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False
        listener.listen(backlog)
        listener.setblocking(False)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        self._closed = True
        self._loop.remove_reader(self._listener)

    async def accept_rest(self) -> None:
        """Open all connections that the operating system has queued, and those that wait for a
        turn."""
        self.close()
        for _ in range(self._backlog):
            accepted = self._accepted()
            if accepted is None:
                break
            self._open(accepted[0])
        for client in tuple(self._waiting):
            self._end_wait(client)
            self._open(client)
        await asyncio.gather(*self._opening)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE - len(self._opening)):
            accepted = self._accepted()
            if accepted is None:
                return
            client, address = accepted
            if self._turns.owed and self._turns.pay(address):
                self._wait(client, address)
            else:
                self._open(client)

    def _accepted(self) -> tuple[socket.socket, str] | None:
        """Return the next connection and its client's address, or None if none is queued."""
        try:
            client, address = self._listener.accept()
        except OSError as error:
            if error.errno in _FULL:
                _log.warning("cannot accept connections: %s", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_FULL_S, self._go_on)
            return None
        client.setblocking(False)
        return client, network_of(address[0])

    def _go_on(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def _open(self, client: socket.socket) -> None:
        task = self._loop.create_task(self._opened(client))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _opened(self, client: socket.socket) -> None:
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(self._make, client)
        except OSError:  # the client has left
            client.close()

    def _wait(self, client: socket.socket, address: str) -> None:
        """Put a connection in the queue of calls after a short pause. Most clients that leave at
        once do so during the pause."""
        self._waiting[client] = address
        self._by_client[address] += 1
        self._loop.call_later(PAUSE_S, self._ask, client)
        if len(self._waiting) > MOST_WAITING:
            most = max(self._by_client, key=self._by_client.__getitem__)
            newest = next(each for each in reversed(self._waiting) if self._waiting[each] == most)
            self._turns.owe(most)
            self._end_wait(newest)
            self._loop.call_later(PAUSE_S, _refuse, newest)  # its request may be on its way

    def _ask(self, client: socket.socket) -> None:
        """If the client has closed its sending side, find out whether it still waits for answers:
        send `100 Continue`, as connection.py explains."""
        if self._drop_if_left(client):
            return
        with contextlib.suppress(OSError):  # the client has left meanwhile
            if reports(client, _ENDED) and b" HTTP/1.1\r\n" in _peek(client):
                client.send(CONTINUE)
                self._loop.call_later(PAUSE_S, self._queue, client)
                return
        self._queue(client)

    def _queue(self, client: socket.socket) -> None:
        if not self._drop_if_left(client):
            self._turns.post(self._waiting[client], partial(self._begin, client))

    def _begin(self, client: socket.socket) -> None:
        if not self._drop_if_left(client):
            self._end_wait(client)
            self._open(client)

    def _drop_if_left(self, client: socket.socket) -> bool:
        """Close the connection of a client that has left. The client owes its turn again."""
        if client not in self._waiting:  # the server ends
            return True
        if not reports(client):
            return False
        self._turns.owe(self._waiting[client])
        self._end_wait(client)
        client.close()
        return True

    def _end_wait(self, client: socket.socket) -> None:
        address = self._waiting.pop(client)
        self._by_client[address] -= 1
        if not self._by_client[address]:
            del self._by_client[address]


def _refuse(client: socket.socket) -> None:
    """Tell a client that too many of its connections wait, and close the connection."""
    with contextlib.suppress(OSError):  # the client has left, or has sent nothing
        client.send(_REFUSAL)
        client.recv(_PEEKED)  # if bytes were left unread, the client would get a reset
    client.close()


def _peek(client: socket.socket) -> bytes:
    return client.recv(_PEEKED, socket.MSG_PEEK)


def reports(client: socket.socket, event: int = 0) -> bool:
    """Return whether poll(2) reports this event, or a reset, for a socket."""
    poll = select.poll()
    poll.register(client, event)
    return bool(poll.poll(0))
