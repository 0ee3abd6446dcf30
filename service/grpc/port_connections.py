"""Limits the connections of the gRPC port, in total and per address, as for HTTP.

grpcio accepts connections itself and does not expose them. So whenever the port's listener has a
connection to accept, this module lists the sockets of the process and counts the new ones. If a
limit is reached, the module shuts down the connection that has been silent longest, or the new
connection if none is silent.
"""

import asyncio
import errno
import logging
import os
import socket
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import unquote

from typing_extensions import override

from service.edge.connections import Connection, Connections, network_of
from service.edge.edge import Limits
from service.errors import TooManyConnectionsError
from service.grpc.receiving import bytes_received

# The open files of this process.
_FILES = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"

# Seconds after the first of several new connections until all are counted.
_SOON_S = 0.02

# The most new connections that are counted at once: each may take 0.1 ms.
_AT_ONCE = 16

Peer = tuple[str, int]  # address and port

_log = logging.getLogger("convoy")


def peer_of(text: str) -> Peer:
    """Parse a peer as grpcio writes it, such as ipv4:1.2.3.4:5 or ipv6:%5B::1%5D:5."""
    kind, _, rest = unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if kind in ("ipv4", "ipv6") else ("", 0)


def _plain(host: str) -> str:
    """Return an IPv4 address without the IPv6 prefix that a dual-stack socket adds."""
    return host.removeprefix("::ffff:") if "." in host else host


class _Seen(Connection):
    """A connection that grpcio has accepted, identified by the file descriptor of its socket."""

    def __init__(self, file: int, number: int, peer: Peer, busy: Counter[Peer], now: float) -> None:
        self.address = network_of(peer[0])
        self.peer = peer
        self.since = now  # it was opened, or its last request ended
        self._file, self._number, self._busy = file, number, busy
        self.closing = False
        self.health_only = False

    @property
    @override
    def silent_since(self) -> float | None:
        return None if self.closing or self._busy[self.peer] else self.since

    @override
    def hang_up_on(self) -> None:
        self.closing = True
        with self._socket() as same, suppress(OSError):  # closed meanwhile
            if same is not None:
                same.shutdown(socket.SHUT_RDWR)

    def received(self) -> int | None:
        """Return how many bytes the connection has received, or None if that is unknown."""
        with self._socket() as same:
            return None if same is None else bytes_received(same)

    @contextmanager
    def _socket(self) -> Iterator[socket.socket | None]:
        """Yield a copy of the socket. Yield None if the socket is closed, or if no file descriptor
        is left for the copy."""
        same = None
        with suppress(OSError):
            same = _copy_of(self._file, self._number)
        try:
            yield same
        finally:
            if same is not None:
                same.close()

    @override
    def inspect(self, now: float) -> None:
        """Do nothing, because grpcio closes connections that are idle for long."""


class PortConnections:
    """Counts the connections to one port of this process. Not thread-safe."""

    def __init__(self, port: int, limits: Limits) -> None:
        self._port, self._every_s = port, limits.sweep_s
        self._counts = Connections(limits.connections, limits.per_address or sys.maxsize)
        self._open: dict[int, _Seen] = {}  # by the socket's number in the system
        self._others: frozenset[int] = frozenset()  # sockets that are not the port's
        self._busy: Counter[Peer] = Counter()
        self._by_peer: dict[Peer, _Seen] = {}
        self._listeners: list[socket.socket] = []
        self._soon: asyncio.Event = asyncio.Event()
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to count connections."""
        self._listeners = list(_listeners(self._port))
        self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Stop counting; connections stay open."""
        if self._task is not None:
            self._task.cancel()
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        self._listeners = []

    @contextmanager
    def busy(self, peer: Peer) -> Iterator[None]:
        """Within the `with` block, count a request on the connection of `peer`. A connection with
        requests is not silent."""
        self._busy[peer] += 1
        try:
            yield
        finally:
            self._busy[peer] -= 1
            if not self._busy[peer]:
                del self._busy[peer]
            if (seen := self._by_peer.get(peer)) is not None:
                seen.since = asyncio.get_running_loop().time()

    def health_only(self, peer: Peer) -> bool:
        """Return whether a peer may only send health requests, because the server had reached its
        limit of connections."""
        seen = self._by_peer.get(peer)
        return seen is not None and seen.health_only

    def received(self, peer: Peer) -> int | None:
        """Return how many bytes a peer has sent, or None if that is unknown, for example just after
        the peer connected."""
        seen = self._by_peer.get(peer)
        return None if seen is None else seen.received()

    async def hang_up_on(self, peer: Peer) -> None:
        """Close a peer's connection."""
        if peer not in self._by_peer:
            await self._look()
        if (seen := self._by_peer.get(peer)) is not None:
            seen.hang_up_on()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for listener in self._listeners:
                loop.add_reader(listener, self._soon.set)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every_s):
                    await self._soon.wait()
            for listener in self._listeners:  # which stay readable until grpcio has accepted
                loop.remove_reader(listener)
            self._soon.clear()
            await asyncio.sleep(_SOON_S)
            await self._look()

    async def _look(self) -> None:
        """Count new connections, and forget closed ones. Skip this if the process has no file
        descriptor or no thread left for it."""
        known = self._others.union(self._open)
        loop = asyncio.get_running_loop()
        try:
            found, all_now = await loop.run_in_executor(None, _sockets, self._port, known)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            if not self._complained:
                _log.error("the connections of the gRPC port cannot be counted now: %s", error)
            self._complained = True
            return
        self._complained = False
        for number in self._open.keys() - all_now:
            self._forget(number)
        self._others = frozenset(
            all_now - self._open.keys() - {number for number, one in found.items() if one}
        )
        for count, (number, one) in enumerate(found.items()):
            if one is not None and number not in self._open:
                self._count(number, *one)
            if count % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        for seen in tuple(self._open.values()):
            if seen.closing:  # and still open: no descriptor was left to close it
                seen.hang_up_on()

    def _count(self, number: int, file: int, peer: Peer) -> None:
        now = asyncio.get_running_loop().time()
        seen = _Seen(file, number, peer, self._busy, now)
        self._open[number] = self._by_peer[peer] = seen
        try:
            seen.health_only = self._counts.open(seen, self._open.values(), now)
        except TooManyConnectionsError:
            seen.hang_up_on()

    def _forget(self, number: int) -> None:
        seen = self._open.pop(number)
        self._counts.close(seen)
        if self._by_peer.get(seen.peer) is seen:
            del self._by_peer[seen.peer]


def _sockets(
    port: int, known: frozenset[int]
) -> tuple[Mapping[int, tuple[int, Peer] | None], frozenset[int]]:
    """List this process's sockets. Return a mapping from inode number to socket for the sockets
    that are not in `known`, and the inode numbers of all sockets. A connection of the port is
    represented by its file descriptor and its peer, any other socket by None. Raises OSError if no
    file descriptor is left."""
    found: dict[int, tuple[int, Peer] | None] = {}
    every = set()
    for file, number in _own_sockets():
        every.add(number)
        if number in known:
            continue
        found[number] = None
        if (same := _copy_of(file, number)) is None:
            continue
        with same, suppress(OSError):  # it listens, or its client has left: it has no peer
            if _port_of(same) == port:
                host, peer_port = same.getpeername()[:2]
                found[number] = file, (_plain(host), peer_port)
    return found, frozenset(every)


def _own_sockets() -> Iterator[tuple[int, int]]:
    """Yield the file descriptor and the inode number of each socket of this process."""
    for name in os.listdir(_FILES):
        try:
            status = os.fstat(int(name))
        except OSError:  # closed meanwhile
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield int(name), status.st_ino


def _copy_of(file: int, number: int) -> socket.socket | None:
    """Return a copy of the socket with this descriptor and inode number. Return None if the socket
    was closed; the descriptor may belong to another file by now. Raises OSError if no file
    descriptor is left."""
    try:
        copy = os.dup(file)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None
    if os.fstat(copy).st_ino != number:
        os.close(copy)
        return None
    return socket.socket(fileno=copy)


def _listeners(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's sockets that listen on the port."""
    for file, number in _own_sockets():
        same = _copy_of(file, number)
        if same is not None and _port_of(same) == port and _listens(same):
            yield same
        elif same is not None:
            same.close()


def _listens(one: socket.socket) -> bool:
    return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _port_of(one: socket.socket) -> int:
    return int(one.getsockname()[1]) if one.family in (socket.AF_INET, socket.AF_INET6) else 0
